"""The window pattern: its sets, and one rule for the dense mask, block layouts and GPU lists.

Axes: B batch, H heads, N positions.
"""

import pytest
import torch

from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.window import Window
from headwise.config.folders import group_node
from headwise.ops import check
from headwise.ops.attention import triton_blocks
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.attention.pattern_rule import POSITION, Rule
from headwise.ops.cpp import call
from triton_marks import DEVICE, needs_triton
from weights_recorded import with_weights

PLACE = Place("encoder_self", 1, 2, 8)


def pattern(radius, n_global):
    made = Window(PLACE, radius, n_global, block_sparse_from=1)
    made.max_share = 2.0
    return made


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("radius", "n_global"), [(3, 2), (5, 0), (8, 1)])
def test_keys_are_the_window_and_the_first_positions(radius, n_global, causal):
    n, lengths = 41, torch.tensor([41, 23, 1])
    mask = Mask(lengths, causal, pattern(radius, n_global))
    dense = mask.dense(n, n, lengths.device)
    layout = mask.layout(n, n, lengths.device)
    assert dense is not None
    assert layout is not None
    counts = torch.zeros(3, 1, n, n, dtype=torch.int64)
    allowed = layout.allowed_BHNK.expand(3, 1, n, -1)
    slots = layout.key_positions(n).long().expand_as(allowed)
    counts.scatter_add_(3, slots, allowed.long())
    for row, length in enumerate(lengths.tolist()):
        for i in range(n):
            keys = {j for j in range(length) if abs(i - j) <= radius or j < n_global}
            keys = {j for j in keys if j <= i or not causal}
            assert set(dense[row, 0, i].nonzero().flatten().tolist()) == keys
            assert counts[row, 0, i].tolist() == [int(j in keys) for j in range(n)]


@pytest.mark.parametrize("causal", [True, False])
def test_slots_and_blocks_per_query_are_constant(causal):
    slots, blocks = [], []
    for n in (1024, 4096):
        layout = Window(PLACE, 32, 4).layout(n, causal, None, torch.device("cpu"))
        assert layout is not None
        slots.append(layout.n_slots)
        lengths = torch.tensor([n])
        places = triton_blocks.places(layout.rule, n, 1, lengths.device)
        windows = torch.tensor(layout.rule.windows)
        marks = triton_blocks._marks(places, windows, causal, lengths, 64)
        blocks.append(int((marks > 0).sum()) / n)
    assert slots == [(2 if causal else 3) * 32 + 4] * 2
    assert blocks[1] == pytest.approx(blocks[0], rel=0.05)


def test_rule_that_states_too_few_keys_is_refused():
    n, lengths = 40, torch.tensor([40])
    every_BHN = (torch.arange(n) % 8 < 2)[None, None]
    for numbers in ((1, None), (2, 1)):
        rule = Rule(8, (3, 3), (POSITION, POSITION), every_BHN, *numbers)
        with pytest.raises(ValueError, match=r"n_every=. .*2 keys|every_blocks"):
            _ = BlockLayout(rule, n, False, lengths).allowed_BHNK


class TestTriton:
    pytestmark = needs_triton

    def test_lists_give_the_masked_result(self, monkeypatch):
        monkeypatch.setattr(call, "supports", lambda values: False)
        monkeypatch.setattr(check, "failure", lambda library: None)
        choices = {
            "attention": group_node("attention", "alpha_entmax"),
            "pattern": group_node("pattern", "window")
            | {"radius": 8, "global_keys": 2, "block_sparse_from": 1},
        }
        layer = AttentionFactory(choices)(PLACE).to(DEVICE)
        states = torch.randn(2, 90, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        mask = Mask(torch.tensor([90, 50], device=DEVICE))
        fused = layer(states, states, states, mask)
        formed, _ = with_weights(layer, states, states, states, mask)
        torch.testing.assert_close(fused, formed, rtol=1e-4, atol=1e-4)

"""Block-sparse self-attention equals the masked dense one and is used where it is faster.

Axes: B batch, H heads, N positions, K places of a layout, E head width, D model width.
"""

import math

import pytest
import torch

from headwise.attention.build import AttentionFactory
from headwise.attention.cache import KeyValueCache
from headwise.attention.factorised import FactorisedPattern
from headwise.attention.heads import HeadGate
from headwise.attention.mask import Mask
from headwise.attention.parts import Normaliser
from headwise.attention.place import Place
from headwise.attention.softmax import Softmax
from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import target_class
from weights_recorded import with_weights

B, H, E = 3, 3, 4
D = H * E
CPU = torch.device("cpu")
PATTERNS = {
    "strided": {},
    "fixed": {"summary_cells": 2},
    "fixed own cells": {"summary_cells": 1, "own_cells": True},
}
COMBINATIONS = [
    ("merged", None, 1),
    ("interleaved", None, 1),
    ("interleaved", None, 2),
    ("heads", None, 1),
    ("heads", ["merged", "interleaved"], 2),
]
NORMALISERS = [
    name
    for name in group_choices("attention")
    if issubclass(target_class(group_node("attention", name), "attention"), Normaliser)
]


def make(
    pattern,
    in_blocks,
    stride=4,
    attention="softmax",
    layer=1,
    dropout=0.0,
    scaling="none",
    max_share=math.inf,
    **settings,
):
    """Make an attention in float64 that always or never uses the block-sparse path.

    Short sentences use it too, although that saves nothing, unless `max_share` is set.
    """
    torch.manual_seed(0)
    node = {**group_node("pattern", pattern.split()[0]), **PATTERNS[pattern], **settings}
    node |= {"stride": stride, "block_sparse_from": 1 if in_blocks else 10**9}
    choices = {
        "attention": group_node("attention", attention),
        "pattern": node,
        "scaling": group_node("scaling", scaling),
    }
    attention_module = AttentionFactory(choices, dropout=dropout)(
        Place("encoder_self", layer, H, E)
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in attention_module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    attention_module.pattern.max_share = max_share
    return attention_module.double()


def states(n, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, n, D, generator=generator, dtype=torch.float64)


def context_and_gradients(attention, n, mask):
    """Context of real positions, gradient of the states, gradients of the parameters."""
    states_BND = states(n).requires_grad_()
    context = attention(states_BND, states_BND, states_BND, mask)
    if mask.key_lengths_B is not None:
        context = context * (torch.arange(n) < mask.key_lengths_B[:, None])[..., None]
    (context * states(n, 3)).sum().backward()
    tensors = [context.detach(), states_BND.grad]
    tensors += [parameter.grad for parameter in attention.parameters()]
    return [torch.zeros(()) if tensor is None else tensor for tensor in tensors]


def assert_same(actual, expected):
    for tensor, expected_tensor in zip(actual, expected, strict=True):
        torch.testing.assert_close(tensor, expected_tensor, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("combine", "heads", "layer"), COMBINATIONS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_equals_the_masked_dense_computation(pattern, combine, heads, layer, causal):
    settings = {"combine": combine, "heads": heads, "layer": layer}
    for n in (1, 4, 7, 18):  # whole blocks, partial ones, less than one
        for lengths in (None, torch.tensor([n, max(1, n - 5), 1])):
            mask = Mask(lengths, causal)
            in_blocks = make(pattern, True, **settings)
            layout = mask.restricted(in_blocks.pattern).layout(n, n, CPU)
            assert layout.allowed_BHNK.shape[2:] == (n, layout.n_slots)
            dense = make(pattern, False, **settings)
            assert_same(
                context_and_gradients(in_blocks, n, mask), context_and_gradients(dense, n, mask)
            )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_scaling_gates_and_the_number_of_visible_keys(pattern):
    class Halves(HeadGate):
        def forward(self, context_BHQE):
            return context_BHQE * torch.tensor([0.5, 1.0, 2.0]).view(1, H, 1, 1)

    results = []
    for in_blocks in (True, False):
        attention = make(pattern, in_blocks, scaling="length", combine="heads")
        attention.gate = Halves()
        results.append(
            context_and_gradients(attention, 18, Mask(torch.tensor([18, 9, 2]), causal=True))
        )
    assert_same(*results)


def test_block_sparse_path_starts_at_the_configured_length(monkeypatch):
    place = Place("encoder_self", 1, H, E)
    node = {**group_node("pattern", "fixed"), "stride": 8, "block_sparse_from": 40}
    choices = {"attention": group_node("attention", "softmax"), "pattern": node}
    attention = AttentionFactory(choices)(place)
    query_counts = []
    attend = Softmax.attend

    def recorded(self, query_BHQE, *rest):
        if rest[2].layout is None:
            query_counts.append(query_BHQE.shape[2])
        return attend(self, query_BHQE, *rest)

    monkeypatch.setattr(Softmax, "attend", recorded)
    for n in (39, 40, 41):
        states_BND = torch.randn(1, n, D)
        attention(states_BND, states_BND, states_BND, Mask())
    assert query_counts == [39], "without a layout, all pairs are formed"
    # recorded weights are those of all pairs and give the same context
    recorded_context, weights = with_weights(attention, states_BND, states_BND, states_BND, Mask())
    assert weights.shape == (1, H, 41, 41)
    torch.testing.assert_close(
        recorded_context, attention(states_BND, states_BND, states_BND, Mask())
    )
    # it is not used for a decoding step, whose queries are not all positions
    cache = KeyValueCache(static=False)
    attention(states_BND[:, :40], states_BND[:, :40], states_BND[:, :40], Mask(None, True), cache)
    last = states_BND[:, 40:]
    attention(last, last, last, Mask(None, True, query_offset=40), cache)
    assert query_counts == [39, 1]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_block_sparse_path_is_not_used_for_dense_patterns(pattern):
    for stride, is_used in ((16, True), (200, False)):
        module_pattern = make(
            pattern, True, stride=stride, max_share=FactorisedPattern.max_share
        ).pattern
        assert (module_pattern.layout(300, False, None, CPU) is not None) is is_used


@pytest.mark.parametrize("pattern", PATTERNS)
def test_number_of_scores_grows_with_the_square_root_of_the_length(pattern):
    for causal in (True, False):
        slot_counts = []
        for n in (1024, 4096, 16384):
            module_pattern = make(pattern, True, stride=math.isqrt(n)).pattern
            slot_counts.append(module_pattern.layout(n, causal, None, CPU).n_slots)
        assert slot_counts[1] == 2 * slot_counts[0]
        assert slot_counts[2] == 4 * slot_counts[0]

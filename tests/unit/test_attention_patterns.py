"""Masks, and the patterns of Child et al. (2019) compared with sets from their definitions.

Axes: B batch, H heads, Q and K numbers of queries and keys, N positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest
import torch

from headwise.attention.attention import ScoreAttention
from headwise.attention.build import AttentionFactory
from headwise.attention.fixed import Fixed
from headwise.attention.mask import Mask
from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.attention.softmax import Softmax
from headwise.attention.strided import Strided
from headwise.config.register import group_node
from headwise.errors import ConfigError
from headwise.ops.visible import Visible
from weights_recorded import with_weights

CPU = torch.device("cpu")
SELF_SITES = {True: "decoder_self", False: "encoder_self"}
SIZES = [(8, 4, 1), (7, 3, 2), (12, 5, 2), (20, 4, 4), (32, 6, 2), (32, 6, 1), (3, 8, 2), (1, 2, 1)]


class Window(Pattern):
    """Neighbours at most one position away."""

    def allowed(self, query_positions_Q, n_keys, causal, key_lengths_B):
        distance = query_positions_Q[:, None] - torch.arange(n_keys)
        return (distance.abs() <= 1)[None, None]


class OddQueries(Pattern):
    def allowed(self, query_positions_Q, *others):
        return query_positions_Q[:, None] % 2 == 1  # (Q, 1)


PLACE = Place("encoder_self", 1, 4, 8)
LENGTHS = torch.tensor([3, 1])
VISIBLE = {  # mask, numbers of queries and keys, keys of every query of the last row
    "lengths, causal": (Mask(LENGTHS, causal=True), 3, 3, [[1, 0, 0]] * 3),
    "causal": (Mask(causal=True), 3, 3, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
    "two steps": (Mask(causal=True, query_offset=4), 2, 6, [[1, 1, 1, 1, 1, 0], [1] * 6]),
    "keys ahead": (Mask(causal=True, query_offset=2), 1, 5, [[1, 1, 1, 0, 0]]),
    "expanded": (Mask(pattern=OddQueries(PLACE)), 4, 6, [[0] * 6, [1] * 6] * 2),
    "all": (Mask(LENGTHS, True, Window(PLACE)), 3, 3, [[1, 0, 0], [1, 0, 0], [0, 0, 0]]),
    "pairs": (
        Visible(
            torch.tensor([4]), True, segments_BN=torch.tensor([[0, 0, 1, 1, 1]]),
            mask=torch.arange(5) != 2,
        ),
        5, 5, [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0] * 5, [0, 0, 0, 1, 0], [0, 0, 0, 1, 0]],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("mask", "n_queries", "n_keys", "expected"), VISIBLE.values(), ids=VISIBLE)
def test_dense_mask(mask, n_queries, n_keys, expected):
    dense = mask.dense(n_queries, n_keys, CPU)
    assert dense.shape[-2:] == (n_queries, n_keys)
    assert dense[-1, 0].int().tolist() == expected


def test_one_cached_step_needs_no_mask():
    assert Mask(causal=True, query_offset=4).dense(1, 5, CPU) is None


def test_plain_causal_excludes_offsets_lengths_and_patterns():
    assert Mask(causal=True).is_plain_causal
    pattern = Window(PLACE)
    for more in ({"query_offset": 2}, {"key_lengths_B": LENGTHS}, {"pattern": pattern}):
        assert not Mask(causal=True, **more).is_plain_causal
    assert not Mask().is_plain_causal


def test_layer_with_a_pattern_has_weights_of_its_keys():
    attention = ScoreAttention(PLACE, Softmax(PLACE), Window(PLACE), dropout=0.0)
    states, mask = torch.randn(2, 5, 32), Mask(torch.tensor([5, 3]), causal=True)
    _, weights = with_weights(attention, states, states, states, mask)
    expected = mask.restricted(Window(PLACE)).dense(5, 5, CPU)
    assert torch.equal(weights > 0, expected.expand_as(weights))
    assert not weights[1, :, 4].any()  # sees no key: zeros, not NaN


def test_pattern_on_cross_attention_is_refused(monkeypatch):
    # a search folds the hypotheses of a source into one row of queries without positions
    name = Window.__module__
    monkeypatch.setenv("HEADWISE_PLUGINS", name.split(".")[0])
    node = {"_target_": f"{name}.Window"}
    make = AttentionFactory({"attention": group_node("attention", "softmax"), "pattern": node})
    make(Place("decoder_self", 1, 4, 8))
    with pytest.raises(ConfigError, match="Window restricts attention at cross"):
        make(Place("cross", 1, 4, 8))


# -- patterns of Child et al. -----------------------------------------------------------------


@dataclass(frozen=True)
class Sets:
    """A1 and A2 of one query by the definitions, with loops."""

    kind: str
    n: int
    stride: int
    cells: int = 1
    causal: bool = True

    def near(self, i):
        keys = range(i + 1) if self.causal else range(self.n)
        if self.kind == "fixed":
            return {j for j in keys if j // self.stride == i // self.stride}
        if self.causal:
            return set(range(max(0, i - self.stride), i + 1))
        return {j for j in keys if abs(i - j) <= self.stride}

    def far(self, i):
        keys = range(i + 1) if self.causal else range(self.n)
        if self.kind == "strided":
            return {j for j in keys if (i - j) % self.stride == 0}
        if self.causal:
            residues = range(self.stride - self.cells, self.stride)
            return {j for j in keys if j % self.stride in residues}
        keys_of_cells = set()
        for start in range(0, self.n, self.stride):
            block = list(range(start, min(start + self.stride, self.n)))
            is_final = start + self.stride >= self.n
            keys_of_cells |= set(
                block[-self.cells :] if is_final else block[self.stride - self.cells :]
            )
        return keys_of_cells


def make(kind, stride, cells, site, **settings):
    place = settings.pop("place", None) or Place(site, 1, 1, 4)
    if kind == "strided":
        return Strided(place, stride=stride, **settings)
    return Fixed(place, stride=stride, summary_cells=cells, **settings)


def allowed_in(pattern, n, causal):
    """Return the mask (H, N, N) of self-attention without padding."""
    mask = Mask(causal=causal, pattern=pattern).dense(n, n, CPU)
    return mask.expand(1, len(pattern.near_H), n, n)[0]


def as_sets(allowed_QK):
    return [set(row.nonzero().flatten().tolist()) for row in allowed_QK]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("n", "stride", "cells"), SIZES)
@pytest.mark.parametrize("kind", ["strided", "fixed"])
def test_sets_equal_those_of_the_paper(kind, n, stride, cells, causal):
    sets = Sets(kind, n, stride, cells, causal)
    far = {"strided": "strided", "fixed": "summary"}[kind]
    place = Place(SELF_SITES[causal], 1, 3, 4)
    heads = ["local", far, "merged"]
    pattern = make(kind, stride, cells, "", place=place, combine="heads", heads=heads)
    near, distant, merged = (as_sets(head) for head in allowed_in(pattern, n, causal))
    for i in range(n):
        assert near[i] == sets.near(i)
        assert distant[i] == sets.far(i) | {i}, "and the query's position"
        assert merged[i] == sets.near(i) | sets.far(i) | {i}
    whole = make(kind, stride, cells, SELF_SITES[causal])
    assert as_sets(allowed_in(whole, n, causal)[0]) == merged


@pytest.mark.parametrize("lengths", [[12, 7, 1], [12, 9, 4]])
@pytest.mark.parametrize("kind", ["strided", "fixed"])
def test_padding_does_not_change_the_sets(kind, lengths):
    pattern = make(kind, 4, 2, "encoder_self")
    mask = Mask(torch.tensor(lengths), pattern=pattern).dense(12, 12, CPU)
    for row, n in enumerate(lengths):
        sets = Sets(kind, n, 4, 2, causal=False)
        row_sets = as_sets(mask.expand(3, 1, 12, 12)[row, 0])
        assert row_sets[:n] == [sets.near(i) | sets.far(i) for i in range(n)]


@pytest.mark.parametrize("n", [7, 9, 10, 11, 12, 17])
def test_cells_per_head(n):
    stride, cells, heads = 6, 2, 3
    place = Place("decoder_self", 2, heads, 4)
    pattern = make("fixed", stride, cells, "", place=place, combine="interleaved", own_cells=True)
    allowed = allowed_in(pattern, n, causal=True)
    for head in range(heads):
        residues = range(stride - (head + 1) * cells, stride - head * cells)
        for i, keys in enumerate(as_sets(allowed[head])):
            assert keys == {j for j in range(i + 1) if j % stride in residues} | {i}
    # an encoder: in the final block the cells are closer to the front, as many as fit
    allowed = allowed_in(pattern, n, causal=False)
    start = (n - 1) // stride * stride
    for head in range(heads):
        first = max(start, n - (head + 1) * cells)
        final_keys = {j for j in as_sets(allowed[head])[0] if j >= start}
        assert final_keys == set(range(first, min(first + cells, n)))


def two_hops(first, second):
    """Return the keys (Q, K) that a query reaches through `second` and then `first`."""
    return (second.int() @ first.int()) > 0


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("kind", "n", "stride", "cells"),
    [(k, *size) for k, size in product(("strided", "fixed"), SIZES)],
)
def test_pairs_are_two_hops_apart(kind, n, stride, cells, causal):
    expected = torch.ones(n, n).bool().tril() if causal else torch.ones(n, n).bool()

    def keys(combine, layer=1, n_heads=1):
        """Return the keys visible to any head, (N, N)."""
        place = Place("encoder_self", layer, n_heads, 4)
        return allowed_in(
            make(kind, stride, cells, "", place=place, combine=combine), n, causal
        ).any(0)

    assert torch.equal(two_hops(keys("interleaved", 1), keys("interleaved", 2)), expected)
    assert torch.equal(two_hops(keys("merged"), keys("merged")), expected)
    by_head = keys("heads", n_heads=2)
    assert torch.equal(two_hops(by_head, by_head), expected)


def test_layers_and_heads_alternate():
    def shares(layer=1, n_heads=4, **settings):
        place = Place("encoder_self", layer, n_heads, 4)
        pattern = Fixed(place, **settings)
        return list(zip(pattern.near_H, pattern.far_H, strict=True))

    near, far, both = (True, False), (False, True), (True, True)
    assert [shares(layer, 1, combine="interleaved")[0] for layer in (1, 2, 3, 4)] == [near, far] * 2
    assert shares() == [both] * 4
    assert shares(combine="heads") == [near, far, near, far]
    listed = {"combine": "heads", "heads": ["merged", "interleaved", "summary"]}
    assert shares(1, **listed) == [both, near, far, both]
    assert shares(2, **listed) == [both, far, far, both]


def test_pruned_heads_keep_their_pattern():
    place = Place("decoder_self", 1, 2, 4, 16, (2, 3))
    pattern = Fixed(place, 8, 2, own_cells=True, combine="heads", heads=["local", "summary"])
    assert pattern.near_H == (False, True)
    row_sets = as_sets(allowed_in(pattern, 16, causal=True)[0])
    assert row_sets[15] == {4, 5, 12, 13, 15}, "head 2 keeps the second cells"


def test_one_far_head_with_cells_per_head():
    """The cache must distinguish (False, True), the far heads, and (0, 1), their cells."""
    for heads in [["local", "summary"], ["summary", "local"]] * 2:
        place = Place("decoder_self", 1, 2, 4)
        pattern = Fixed(place, 4, 1, own_cells=True, combine="heads", heads=heads)
        mask = Mask(None, True, pattern).dense(9, 9, CPU)
        assert mask.dtype is torch.bool
        rows = (mask[0, heads.index(name), 8] for name in ("local", "summary"))
        near, far = (row.nonzero().flatten().tolist() for row in rows)
        assert near == [8]
        assert far == ([3, 7, 8] if heads[0] == "summary" else [2, 6, 8])


def test_layers_with_equal_patterns_share_one_mask():
    mask = Mask(torch.tensor([9, 4]))
    patterns = [
        Fixed(Place("encoder_self", layer, 2, 4), combine=combine)
        for combine in ("merged", "interleaved")
        for layer in (1, 2, 3)
    ]
    masks = [mask.restricted(pattern) for pattern in patterns]
    assert masks[0] is masks[1] is masks[2]
    assert masks[3] is masks[5]
    assert len({id(restricted) for restricted in masks}) == 3
    assert masks[0].dense(9, 9, CPU) is masks[1].dense(9, 9, CPU)
    # patterns with different settings do not
    place = Place("encoder_self", 1, 2, 4)
    others = [
        Strided(place),
        Fixed(place, stride=4),
        Fixed(place, summary_cells=1),
        Fixed(place, own_cells=True),
    ]
    assert len({id(mask.restricted(pattern)) for pattern in [patterns[0], *others]}) == 5

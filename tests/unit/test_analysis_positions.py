"""Positional heads, confidence, rare words and densities from weights that are written down."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from headwise.analysis.density import Densities
from headwise.analysis.positions import positions
from headwise.analysis.text.rarity import rarest, rarity
from weights_by_hand import Means, batch_of, seen


def one_hot(keys: list[int], n_keys: int) -> list[list[float]]:
    return [[float(key == k) for k in range(n_keys)] for key in keys]


def test_queries_without_a_token_at_the_offset_take_no_part() -> None:
    part = Means(positions, range(-2, 3))
    # three tokens and the end; the first looks at itself for want of one before
    part.take(batch_of([3]), seen("encoder_self", [one_hot([0, 0, 1, 2], 4)], [4]))
    assert (part.of("share-1"), part.of("exists-1")) == (1, pytest.approx(2 / 3))
    assert part.of("share0") == pytest.approx(1 / 3)
    # at +1 the last token has the end only, which is no token
    assert (part.of("share1"), part.of("exists1")) == (0, pytest.approx(2 / 3))
    assert part.of("exists2") == pytest.approx(1 / 3)


def test_weight_on_the_end_is_weight_elsewhere() -> None:
    part = Means(positions, range(-1, 2))
    rows = [[0.1, 0.2, 0.0, 0.7], [0.3, 0.1, 0.0, 0.6], [0.0, 0.9, 0.0, 0.1], [0.0, 0.0, 0.0, 1.0]]
    part.take(batch_of([3]), seen("encoder_self", [rows], [4]))
    assert part.of("share-1") == pytest.approx(1 / 2)  # the second looks at the end
    assert part.of("weight-1") == pytest.approx((0.3 + 0.9) / 2)
    assert part.of("confidence") == pytest.approx((0.2 + 0.3 + 0.9) / 3)


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_an_even_spread_is_no_evidence_for_any_place(noise: float) -> None:
    part = Means(positions, range(-1, 2))
    generator = torch.Generator().manual_seed(0)
    rows = torch.full((5, 5), 0.2) + noise * torch.rand(5, 5, generator=generator)
    part.take(batch_of([4]), seen("encoder_self", [rows.tolist()], [5]))
    assert [part.of(f"share{offset}") for offset in (-1, 0, 1)] == [0, 0, 0]
    assert part.of("weight0") == pytest.approx(0.2, abs=1e-5)


def test_a_query_with_one_key_has_no_choice() -> None:
    part = Means(positions, range(-1, 2))
    rows = [[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.2, 0.3, 0.5]]
    part.take(batch_of([1], [2]), seen("decoder_self", [rows], [3], causal=True))
    assert part.of("share0", "decoder_self") == pytest.approx(1 / 2)
    assert part.of("share-1", "decoder_self") == pytest.approx(1 / 2)
    assert part.of("confidence", "decoder_self") == pytest.approx((0.6 + 0.5) / 2)
    assert part.of("share1", "decoder_self") is None, "the future is nowhere to be seen"


def test_cross_attention_has_confidence_and_no_offsets() -> None:
    part = Means(positions, range(-1, 2))
    part.take(batch_of([2]), seen("cross", [[[0.3, 0.1, 0.6]] * 3], [3]))
    assert part.of("confidence", "cross") == pytest.approx(0.3)
    assert part.of("share0", "cross") is None


def test_queries_of_cross_attention_are_not_left_out_where_the_source_ends() -> None:
    part = Means(positions, range(-1, 2))
    rows = [[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6]]  # four queries, a token and its end
    part.take(batch_of([1], [3]), seen("cross", [rows], [4]))
    assert part.of("confidence", "cross") == pytest.approx((0.9 + 0.2 + 0.3 + 0.4) / 4)


def test_signed_weights_are_shared_out_by_size() -> None:
    rows = [[-3.0, 1.0, 0.0], [0.5, 0.5, 1.0], [0.0, 0.0, 0.0]]
    found = seen("encoder_self", [rows], [3], is_distribution=False)
    assert found.shares_BHQK[0, 0].tolist() == [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0, 0]]
    assert found.peaks_BHQ[0, 0].tolist() == [0, 2, -1]
    part = Means(positions, range(-1, 2))
    part.take(batch_of([2]), found)
    assert part.of("weight0") == pytest.approx((0.75 + 0.25) / 2)


def test_a_head_that_is_not_what_it_says_is_not_measured() -> None:
    unsound = [(-0.5, True), (math.nan, True), (math.inf, True), (math.nan, False)]
    for first, is_distribution in unsound:
        rows = [[first, 1.5], [0.0, 1.0]]
        found = seen("encoder_self", [rows], [2], is_distribution=is_distribution)
        part, histogram = Means(positions, range(-1, 2)), Densities(9)
        part.take(batch_of([1]), found)
        histogram.take(batch_of([1]), found)
        for name in ("confidence", "share0", "weight0", "share-1"):
            assert part.of(name) is None
        assert histogram.histograms() == []
        assert (found.peaks_BHQ == -1).all()


# -- rare words -----------------------------------------------------------------------------------


def test_the_rarest_piece_by_counts_then_by_its_place_in_the_vocabulary() -> None:
    text = [[5, 6, 7], [5, 6, 6, 9], [5, 7], [8, 5, 9, 8]]
    assert rarest(text) == [[0, 0, 1], [0, 0, 0, 1], [], [0, 0, 1, 0]]


def test_most_tokens_of_a_sentence_must_point_at_it() -> None:
    part = Means(rarity, {"source": [[0, 1, 0], [1, 0, 0], []]})
    sentences = [
        one_hot([1, 1, 0, 1], 4),  # two of three, the end not asked
        one_hot([0, 1, 1, 0], 4),  # one of three
        one_hot([0, 0, 0, 0], 4),  # too short to be looked at
    ]
    part.take(batch_of([3, 3, 2]), seen("encoder_self", sentences, [4, 4, 3]))
    assert part.of("rare_share") == 0.5


def test_neither_half_of_the_tokens_nor_an_even_spread_point_at_it() -> None:
    part = Means(rarity, {"source": [[1, 0, 0, 0]] * 3})
    sentences = [one_hot([0, 0, 1, 1, 0], 5), one_hot([0, 0, 0, 1, 1], 5), [[0.2] * 5] * 5]
    part.take(batch_of([4, 4, 4]), seen("encoder_self", sentences, [5, 5, 5]))
    assert part.of("rare_share") == pytest.approx(1 / 3)


# -- density --------------------------------------------------------------------------------------


def test_the_histogram_counts_every_query_once_and_dense_ones_apart() -> None:
    rows = [[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.2] * 5, [0.25, 0.25, 0.25, 0.25, 0], [0] * 5]
    part = Densities(9)
    part.take(batch_of([4]), seen("encoder_self", [rows], [5]))
    part.take(batch_of([1]), seen("encoder_self", [[[0.5, 0.5], [1.0, 0.0]]], [2]))
    found = {
        (row["low"], row["high"]): row["n_queries"] for row in part.histograms() if row["n_queries"]
    }
    assert found == {
        (0.0, 0.05): 1, (0.2, 0.25): 1, (0.4, 0.45): 1, (0.5, 0.55): 1, (0.8, 0.85): 1,
        (1.0, 1.0): 2,
    }  # fmt: skip
    assert len(part.histograms()) == 21


@pytest.mark.parametrize(
    ("site", "rows", "is_distribution"),
    [
        ("encoder_self", [[-0.5, 0.0], [0.5, -0.5]], False),  # a weight below 0 uses its key too
        ("decoder_self", [[1.0, 0.0], [1.0, 0.0]], True),  # the first position sees one key
    ],
)
def test_one_of_two_is_dense(site: str, rows: list[list[float]], is_distribution: bool) -> None:
    part = Densities(9)
    causal = site == "decoder_self"
    part.take(batch_of([1]), seen(site, [rows], [2], causal, is_distribution))
    found = {row["low"]: row["n_queries"] for row in part.histograms() if row["n_queries"]}
    assert found == {0.5: 1, 1.0: 1}


def densities(site: str, lengths: Sequence[int], n_used: Sequence[int]) -> Densities:
    """Of sentences whose queries all use so many of the keys; the other side is a piece longer."""
    part = Densities(len(lengths))
    for index, (length, used) in enumerate(zip(lengths, n_used, strict=True)):
        sides = [length - 1, length]
        batch = batch_of(*([n] for n in (sides[::-1] if site == "decoder_self" else sides)))
        batch.rows[:] = [index]
        row = [1.0 / used] * used + [0.0] * (length - used)
        part.take(batch, seen(site, [[row] * length], [length]))
    return part


def test_padding_beside_a_sentence_does_not_change_its_density() -> None:
    lengths, n_used = [4] * 10 + [20] * 40, [1] * 10 + [2] * 20 + [12] + [3] * 19
    alone = densities("encoder_self", lengths, n_used).unusual_sentences()
    together = Densities(len(lengths))
    rows = [[[1.0 / used] * used + [0.0] * (20 - used)] * 20 for used in n_used]
    batch = batch_of([length - 1 for length in lengths], lengths)
    together.take(batch, seen("encoder_self", rows, lengths))
    assert len(alone) == 1
    assert together.unusual_sentences() == alone


def test_a_sentence_is_compared_with_those_of_like_length() -> None:
    """Short sentences are denser; only the odd one among the long is told."""
    n_used = [2 + index % 2 for index in range(101)]
    n_used[70] = 12
    (found,) = densities("encoder_self", [4] * 50 + [20] * 51, n_used).unusual_sentences()
    assert (found["sentence"], found["n_keys"], found["density"]) == (71, 20, 0.6)
    like = np.array(n_used[50:]) / 20
    assert found["expected"] == pytest.approx(like.mean())
    assert found["deviations"] == pytest.approx((0.6 - like.mean()) / like.std())
    short = np.array(n_used[:50]) / 4
    assert found["head_mean"] == pytest.approx((short.sum() + like.sum()) / 101)


@pytest.mark.parametrize("site", ["encoder_self", "decoder_self", "cross"])
def test_the_keys_of_a_sentence_are_those_of_its_site(site: str) -> None:
    (found,) = densities(site, [20] * 40, [3] * 25 + [12] + [2] * 14).unusual_sentences()
    assert (found["sentence"], found["n_keys"], found["density"]) == (26, 20, 0.6)


FARTHEST = {10: 9, 20: 12, 30: 10, 40: 13, 50: 11}


@pytest.mark.parametrize(
    ("n_used", "named"),
    [
        ([8] * 30 + [1] + [9] * 29, []),  # sparser than others
        ([8] * 30 + [19] + [9] * 29, [31]),
        ([2, 3] * 15 + [4] + [2, 3] * 14 + [2], []),  # 2.7 deviations above the like
        ([2, 3] * 15 + [5] + [2, 3] * 14 + [2], [31]),  # 3.9 above
        ([FARTHEST.get(i, 2 + i % 2) for i in range(100)], [41, 21, 51]),  # at most three
    ],
)
def test_the_farthest_sentences_are_named(n_used: list[int], named: list[int]) -> None:
    found = densities("encoder_self", [20] * len(n_used), n_used).unusual_sentences()
    assert [row["sentence"] for row in found] == named


def test_a_head_broken_in_one_sentence_names_no_other() -> None:
    part = densities("encoder_self", [4] * 50 + [20] * 51, [2] * 20 + [3] * 50 + [12] + [2] * 30)
    assert [row["sentence"] for row in part.unusual_sentences()] == [71]
    batch = batch_of([3])
    batch.rows[:] = [0]
    part.take(batch, seen("encoder_self", [[[math.nan, 0.0, 0.0, 0.0]] * 4], [4]))
    assert part.unusual_sentences() == part.histograms() == []

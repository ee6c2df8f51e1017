"""Positional heads, confidence, rare words and densities from weights written by hand."""

import math

import pytest
import torch

from headwise.analysis.density import Densities
from headwise.analysis.positions import positions
from headwise.analysis.text.rarity import rarest, rarity
from weights_by_hand import Means, batch_of, observation


def one_hot(keys, n_keys):
    return [[float(key == k) for k in range(n_keys)] for key in keys]


def test_queries_without_a_token_at_the_offset_are_excluded():
    part = Means(positions, range(-2, 3))
    # three tokens and the end; the first has no predecessor and attends to itself
    part.add(batch_of([3]), observation("encoder_self", [one_hot([0, 0, 1, 2], 4)], [4]))
    assert (part.of("share-1"), part.of("exists-1")) == (1, pytest.approx(2 / 3))
    assert part.of("share0") == pytest.approx(1 / 3)
    # at +1 the last token has only the end, which is no token
    assert (part.of("share1"), part.of("exists1")) == (0, pytest.approx(2 / 3))
    assert part.of("exists2") == pytest.approx(1 / 3)


def test_weight_on_the_end_counts_for_no_offset():
    part = Means(positions, range(-1, 2))
    rows = [[0.1, 0.2, 0.0, 0.7], [0.3, 0.1, 0.0, 0.6], [0.0, 0.9, 0.0, 0.1], [0.0, 0.0, 0.0, 1.0]]
    part.add(batch_of([3]), observation("encoder_self", [rows], [4]))
    assert part.of("share-1") == pytest.approx(1 / 2)  # the second attends to the end
    assert part.of("weight-1") == pytest.approx((0.3 + 0.9) / 2)
    assert part.of("confidence") == pytest.approx((0.2 + 0.3 + 0.9) / 3)


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_uniform_weights_count_for_no_offset(noise):
    part = Means(positions, range(-1, 2))
    generator = torch.Generator().manual_seed(0)
    rows = torch.full((5, 5), 0.2) + noise * torch.rand(5, 5, generator=generator)
    part.add(batch_of([4]), observation("encoder_self", [rows.tolist()], [5]))
    assert [part.of(f"share{offset}") for offset in (-1, 0, 1)] == [0, 0, 0]
    assert part.of("weight0") == pytest.approx(0.2, abs=1e-5)


def test_queries_with_one_key_are_excluded():
    part = Means(positions, range(-1, 2))
    rows = [[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.2, 0.3, 0.5]]
    part.add(batch_of([1], [2]), observation("decoder_self", [rows], [3], causal=True))
    assert part.of("share0", "decoder_self") == pytest.approx(1 / 2)
    assert part.of("share-1", "decoder_self") == pytest.approx(1 / 2)
    assert part.of("confidence", "decoder_self") == pytest.approx((0.6 + 0.5) / 2)
    assert part.of("share1", "decoder_self") is None, "the future is not visible"


def test_cross_attention_has_confidence_and_no_offsets():
    part = Means(positions, range(-1, 2))
    part.add(batch_of([2]), observation("cross", [[[0.3, 0.1, 0.6]] * 3], [3]))
    assert part.of("confidence", "cross") == pytest.approx(0.3)
    assert part.of("share0", "cross") is None


def test_cross_attention_includes_queries_beyond_the_source_length():
    part = Means(positions, range(-1, 2))
    rows = [[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6]]  # four queries, a token and its end
    part.add(batch_of([1], [3]), observation("cross", [rows], [4]))
    assert part.of("confidence", "cross") == pytest.approx((0.9 + 0.2 + 0.3 + 0.4) / 4)


def test_shares_of_signed_weights_are_by_magnitude():
    rows = [[-3.0, 1.0, 0.0], [0.5, 0.5, 1.0], [0.0, 0.0, 0.0]]
    observed = observation("encoder_self", [rows], [3], is_distribution=False)
    assert observed.shares_BHQK[0, 0].tolist() == [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0, 0]]
    assert observed.peaks_BHQ[0, 0].tolist() == [0, 2, -1]
    part = Means(positions, range(-1, 2))
    part.add(batch_of([2]), observed)
    assert part.of("weight0") == pytest.approx((0.75 + 0.25) / 2)


def test_invalid_distributions_are_not_measured():
    invalid = [(-0.5, True), (math.nan, True), (math.inf, True), (math.nan, False)]
    for first, is_distribution in invalid:
        rows = [[first, 1.5], [0.0, 1.0]]
        observed = observation("encoder_self", [rows], [2], is_distribution=is_distribution)
        part, histogram = Means(positions, range(-1, 2)), Densities()
        part.add(batch_of([1]), observed)
        histogram.add(observed)
        for name in ("confidence", "share0", "weight0", "share-1"):
            assert part.of(name) is None
        assert histogram.histograms() == []
        assert (observed.peaks_BHQ == -1).all()


# -- rare words -----------------------------------------------------------------------------------


def test_rarest_token_is_by_count_then_by_id():
    text = [[5, 6, 7], [5, 6, 6, 9], [5, 7], [8, 5, 9, 8]]
    assert rarest(text) == [[0, 0, 1], [0, 0, 0, 1], [], [0, 0, 1, 0]]


def test_rare_share_counts_sentences_where_most_tokens_attend_to_the_rarest():
    part = Means(rarity, {"source": [[0, 1, 0], [1, 0, 0], []]})
    sentences = [
        one_hot([1, 1, 0, 1], 4),  # two of three, the end is not counted
        one_hot([0, 1, 1, 0], 4),  # one of three
        one_hot([0, 0, 0, 0], 4),  # too short to be evaluated
    ]
    part.add(batch_of([3, 3, 2]), observation("encoder_self", sentences, [4, 4, 3]))
    assert part.of("rare_share") == 0.5


def test_rare_share_excludes_ties_and_uniform_weights():
    part = Means(rarity, {"source": [[1, 0, 0, 0]] * 3})
    sentences = [one_hot([0, 0, 1, 1, 0], 5), one_hot([0, 0, 0, 1, 1], 5), [[0.2] * 5] * 5]
    part.add(batch_of([4, 4, 4]), observation("encoder_self", sentences, [5, 5, 5]))
    assert part.of("rare_share") == pytest.approx(1 / 3)


# -- density --------------------------------------------------------------------------------------


def test_histogram_counts_each_query_once_and_has_a_bin_for_density_1():
    rows = [[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.2] * 5, [0.25, 0.25, 0.25, 0.25, 0], [0] * 5]
    part = Densities()
    part.add(observation("encoder_self", [rows], [5]))
    part.add(observation("encoder_self", [[[0.5, 0.5], [1.0, 0.0]]], [2]))
    counts = {
        (row["low"], row["high"]): row["n_queries"] for row in part.histograms() if row["n_queries"]
    }
    assert counts == {
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
def test_density_of_signed_weights_and_of_one_visible_key(site, rows, is_distribution):
    part = Densities()
    causal = site == "decoder_self"
    part.add(observation(site, [rows], [2], causal, is_distribution))
    counts = {row["low"]: row["n_queries"] for row in part.histograms() if row["n_queries"]}
    assert counts == {0.5: 1, 1.0: 1}

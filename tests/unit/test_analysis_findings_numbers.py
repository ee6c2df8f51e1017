"""The numbers that findings tell of a site, and which head is named for what."""

from __future__ import annotations

import re
from typing import Any

import pytest

from findings_told import COUNTS, head, told


def test_the_densities_of_a_site_are_summed_up_by_layer_and_query() -> None:
    heads = [head(n, density=value) for n, value in ((1, 1.0), (2, 0.2))]
    heads += [head(1, layer=2, density=0.9), head(1, "cross", density=0.1)]
    place = {"site": "encoder_self", "layer": 1, "head": 1}
    bins = [{**place, "low": low, "n_queries": n} for low, n in ((0.5, 12), (0.95, 18), (1.0, 10))]
    text = told(heads, density=[*bins, {**bins[0], "site": "cross", "n_queries": 60}])
    assert (
        "mean 0.70, from 0.20 (layer 1 head 2) to 1.00 (layer 1 head 1); 1 of 3 heads dense "
        "throughout; 25 % of all queries use every key they see. Layer by layer 0.60, 0.90." in text
    )
    assert "mean 0.10, from 0.10 (layer 1 head 1) to 0.10 (layer 1 head 1); 0 % of all" in text


def test_the_confidence_of_a_site_is_its_median() -> None:
    text = told([head(n, confidence=value) for n, value in ((1, 0.3), (2, 0.9), (3, 0.2))])
    assert "median 30 %, highest 90 % (layer 1 head 2)." in text


@pytest.mark.parametrize(
    ("alphas", "wanted"),
    [
        (
            [1.9, 1.1, 1.75, 1.5, 1.25, 1.25, 1.2],
            "1.10 (layer 1 head 2) to 1.90 (layer 1 head 1), median 1.25; 2 of 7 below 1.25, "
            "1 above 1.75. Sarle's coefficient 0.37: no sign of two modes.",
        ),
        (
            [1.1, 1.9] * 10,
            "median 1.50; 10 of 20 below 1.25, 10 above 1.75. Sarle's coefficient 0.77: there may "
            "be two modes.",
        ),
    ],
)
def test_where_the_alphas_of_a_site_ended(alphas: list[float], wanted: str) -> None:
    assert wanted in told([head(n, alpha=alpha) for n, alpha in enumerate(alphas, start=1)])


def test_how_few_heads_a_site_has_is_that_of_sites_with_any() -> None:
    six = [head(n, alpha=1.5) for n in range(1, 7)]
    assert "with 6 heads a site it is a hint" in told(six)
    assert "with 1 head a site it is a hint" in told([*six, head(1, "cross", alpha=1.2)])
    assert "with 6 heads a site it is a hint" in told([*six, head(1, "cross")])


def trajectory(number: int, first: float, lowest: float, last: float) -> dict[str, Any]:
    return {
        "site": "encoder_self", "layer": 1, "head": number, "first_update": 0, "first": first,
        "lowest_update": 50, "lowest": lowest, "last_update": 100, "last": last, "fell_first": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lasts", "wanted"),
    [
        ([1.3, 1.4, 1.5, 1.9], "with 1.00 (Spearman): the order of the start is kept."),
        ([1.9, 1.3, 1.5, 1.4], "with -0.40 (Spearman): the start alone does not decide."),
    ],
)
def test_starts_are_compared_with_ends(lasts: list[float], wanted: str) -> None:
    rows = [
        trajectory(n, 1.2 + n / 10, 1.2 - n / 100, last) for n, last in enumerate(lasts, start=1)
    ]
    text = told([head(n, alpha=1.5) for n in range(1, 5)], trajectories=rows)
    assert "all 4 α fell first; the median went from 1.45 to 1.45." in text
    assert wanted in text
    assert re.findall(r"head (\d) from 1\.\d\d at update 50", text) == [
        str(number) for number in sorted(range(1, 5), key=lambda n: -(lasts[n - 1] + n / 100))
    ], "what rose most comes first"


def test_trajectories_that_hardly_moved_or_were_not_recorded() -> None:
    rows = [trajectory(n, 1.5, 1.2, 1.2) for n in (1, 2, 3)]
    rows[1].update(fell_first=None, last_update=200)
    heads = [head(n, alpha=1.5) for n in (1, 2, 3)]
    text = told(heads, trajectories=rows)
    assert "From update 0 to 200: 2 of 3 α fell first (1 hardly moved)" in text
    unseen = [{**row, "last_update": 0} for row in rows]
    assert "The record of the training is not here" in told(heads, trajectories=unseen)


def test_a_correlation_beyond_chance_is_told_with_its_direction() -> None:
    heads = [
        head(n, alpha=1 + n / 10, density=1 - n / 10, output_norm=float(n), entropy=float(n % 2))
        for n in range(1, 10)
    ]
    text = told(heads)
    assert "| density | -1.00 |" in text
    assert (
        "a higher α goes in encoder self-attention with lower density and higher output norm; "
        "of 3 correlations chance alone would put fewer than one there." in text
    )


def test_four_heads_are_too_few_for_a_correlation() -> None:
    def of(n_heads: int) -> str:
        return told([head(n, alpha=1 + n / 10, density=1 - n / 10) for n in range(1, n_heads + 1)])

    assert "Rank correlation" not in of(4)
    assert "more than 0.98 either way" in of(5)


def test_a_head_is_told_unlike_itself_by_its_farthest_sentence() -> None:
    odd = [
        {
            "site": "encoder_self", "layer": 1, "head": number, "sentence": sentence, "n_keys": 9,
            "density": 0.9, "expected": 0.2, "deviations": far, "head_mean": 0.2, "text": "So.",
        }
        for number, sentence, far in ((1, 5, 4.0), (2, 6, 5.0), (2, 7, 9.0))
    ]  # fmt: skip
    text = told([head(1), head(2)], sentences=odd)
    assert re.findall(r"head (\d), mean density 0.20: 0.90 in sentence (\d)", text) == [
        ("2", "7"),
        ("1", "5"),
    ]


def test_the_nearest_of_each_kind_may_be_different_heads() -> None:
    heads = [
        head(1, merge_score=0.7, split_merge_score=0.1, cluster_mass=0.2, rare_share=0.2),
        head(2, merge_score=0.2, split_merge_score=0.35, cluster_mass=0.3, rare_share=0.4),
        head(3, merge_score=0.3, split_merge_score=0.2, cluster_mass=0.6, rare_share=0.1),
        head(4, question_weight=0.6, statement_weight=0.55),
        head(5, question_weight=0.5, statement_weight=0.0),
    ]
    text = told(heads)
    assert (
        "merge score 70 % (layer 1 head 1), at words of several pieces alone 35 % (layer 1 head "
        "2), cluster mass 60 % (layer 1 head 3)." in text
    )
    assert "largest difference is that of encoder layer 1 head 5, which puts 50 %" in text
    assert "nearest is encoder layer 1 head 2, with 40 %" in text


def test_a_head_that_looks_at_the_end_anyway_asks_nothing() -> None:
    text = told([head(1, question_weight=0.9, statement_weight=0.85)])
    assert "No head that puts 80 % on the question mark there looks away where they ask" in text


def test_an_offset_that_is_no_role_is_not_listed() -> None:
    assert "**+2**" not in told([head(1, offset=2, offset_share=0.3)])


def test_words_are_counted_on_the_side_that_a_head_reads() -> None:
    counts = {**COUNTS, "target_words": 650, "target_split_words": 50}
    text = told([head(1), head(1, "decoder_self")], counts)
    assert "**encoder self-attention**: 60 of 700 words have several pieces." in text
    assert "**decoder self-attention**: 50 of 650 words have several pieces." in text

"""Trajectories of α, roles, and the table of findings."""

import re

import numpy as np
import pytest

from headwise.analysis.findings import findings, findings_text
from headwise.analysis.roles import Thresholds, roles
from headwise.analysis.tables import FINDINGS
from headwise.analysis.trajectories import (
    came_back,
    p_value_of_two_groups,
    sarle,
    spearman,
    spearman_interval,
    trajectory_rows,
)

S = "encoder_self"
COUNTS = {
    "source_tokens": 900, "target_tokens": 800, "source_words": 700, "source_split_words": 60,
    "target_words": 700, "target_split_words": 60, "question_word_tokens": 20,
    "statement_word_tokens": 30,
}  # fmt: skip
ABOUT = {
    "run": "demo", "attention": "alpha_entmax", "not_distributions": 0, "effective_weights": False,
    "sentences": 50, "unit": "sentences", "split": "valid", "languages": "de→en",
    "checkpoint": "best",
    "self_attention": {"encoder_self": "source", "decoder_self": "target"}, "too_long": 0,
    "counts": COUNTS,
    "thresholds": {
        "positional_share": 0.9, "merge_score": 0.8, "question_weight": 0.8, "rare_share": 0.5,
    },
}  # fmt: skip


def head(number=1, site=S, **values):
    plain = {
        "site": site, "layer": 1, "head": number, "density": 0.5, "entropy": 1.0,
        "confidence": 0.4, "merge_score": 0.3, "split_merge_score": 0.1, "cluster_mass": 0.3,
        "previous_share": 0.1, "previous_weight": 0.1, "current_share": 0.2, "current_weight": 0.2,
        "next_share": 0.1, "next_weight": 0.1, "offset": 0, "offset_share": 0.2,
        "offset_weight": 0.2, "question_weight": 0.2, "statement_weight": 0.1, "rare_share": 0.1,
        "roles": "",
    }  # fmt: skip
    return {**plain, **values}


def finding_rows(heads, about=None, **tables):
    """Map (finding, site) to its row."""
    names = ("other_statistics", "layers", "density", "trajectories", "kinds")
    all_tables = {**{name: [] for name in names}, **tables}
    settings = {**ABOUT, **(about or {})}
    rows = findings({"heads": heads, **all_tables}, settings)
    FINDINGS.text(rows)  # has these columns and no others
    lines = findings_text(rows, settings).splitlines()
    assert len([line for line in lines if line.startswith("| ")]) == len(rows) + 2
    assert not any(re.search(r"\b(nan|None)\b", line) for line in lines), lines
    unmeasured = [row for row in rows if row["outcome"] == "not measured"]
    assert [row for row in rows if row.get("reason")] == unmeasured
    return {(row["finding"], row.get("site")): row for row in rows}


def summary_of(row):
    """Outcome, value, numbers of heads, and the head with the largest value."""
    return row["outcome"], *map(row.get, ("value", "n_heads", "n_measured", "head"))


# -- roles ----------------------------------------------------------------------------------------

ROLES = [
    ({}, []),
    ({"offset": -1, "offset_share": 0.9}, ["previous"]),
    ({"offset": -1, "offset_share": 0.89}, []),
    ({"offset": 3, "offset_share": 0.95}, ["offset+3"]),
    ({"offset": -4, "offset_share": 0.95}, ["offset-4"]),
    ({"merge_score": 0.85, "split_merge_score": 0.5}, ["merging"]),
    ({"merge_score": 0.85, "split_merge_score": 0.2}, []),
    ({"merge_score": 0.8, "split_merge_score": 0.4}, ["merging"]),
    ({"merge_score": 0.75, "split_merge_score": 0.9}, []),
    ({"question_weight": 0.9, "statement_weight": 0.1}, ["interrogation"]),
    ({"question_weight": 0.8, "statement_weight": 0.4}, ["interrogation"]),
    ({"question_weight": 0.9, "statement_weight": 0.65}, []),
    ({"question_weight": 0.9, "statement_weight": None}, []),
    ({"rare_share": 0.5}, ["rare"]),
    ({"rare_share": 0.49}, []),
    ({"offset_share": None, "offset": None, "merge_score": None, "rare_share": None}, []),
]


@pytest.mark.parametrize(("values", "expected"), ROLES)
def test_roles_by_their_thresholds(values, expected):
    assert roles(head(**values), "source", COUNTS, Thresholds()) == expected


def test_roles_need_enough_words_and_tokens():
    merging = head(merge_score=0.9, split_merge_score=0.9)
    interrogating = head(question_weight=0.9, statement_weight=0.0)
    few = {**COUNTS, "source_split_words": 9, "statement_word_tokens": 9}
    assert (
        roles(merging, "source", few, Thresholds())
        == roles(interrogating, "source", few, Thresholds())
        == []
    )
    assert roles(merging, "target", few, Thresholds()) == ["merging"]
    enough = {**few, "source_split_words": 10, "statement_word_tokens": 10}
    assert roles(merging, "source", enough, Thresholds()) == ["merging"]
    assert roles(interrogating, "source", enough, Thresholds()) == ["interrogation"]
    assert roles(head(offset=1, offset_share=0.7), "source", COUNTS, Thresholds(0.6)) == ["next"]


# -- α --------------------------------------------------------------------------------------------


def test_spearman_averages_ranks_of_ties():
    assert spearman([1, 2, 3, 4], [1, 8, 27, 64]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    assert spearman([0, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_interval_of_rank_correlation_covers_it_in_95_of_100_samples():
    rho = 0.6  # of normal values; of their ranks 6 / π asin(rho / 2)
    random = np.random.default_rng(1)
    x, noise = random.standard_normal((2, 400, 24))
    y = rho * x + (1 - rho**2) ** 0.5 * noise
    intervals = [spearman_interval(a.tolist(), b.tolist()) for a, b in zip(x, y, strict=True)]
    of_ranks = 6 / np.pi * np.arcsin(rho / 2)
    covered = sum(low < of_ranks < high for _, low, high in filter(None, intervals))
    assert 0.92 < covered / 400 < 0.98
    assert spearman_interval(range(7), range(7)) is None
    assert spearman_interval([1.0] * 8, range(8)) is None
    perfect = spearman_interval(range(24), range(24))
    assert perfect == pytest.approx((1, 1, 1))


def records(alphas):
    updates = range(0, 50 * len(next(iter(alphas.values()))), 50)
    return [
        {"update": update, "alpha": {"encoder_self": [[values[i] for values in alphas.values()]]}}
        for i, update in enumerate(updates)
    ] + [{"update": 999, "density": {}}]


def test_trajectories_detect_early_falls_and_later_rises():
    alphas = {
        2: [1.5, 1.495, 1.4, 1.3, 1.9],  # falls, then rises above its start
        3: [1.5, 1.52, 1.3, 1.2, 1.2],  # rises first
        5: [1.5, 1.5, 1.495, 1.5, 1.5],  # hardly moves
    }
    rows = trajectory_rows(records(alphas), {"encoder_self": [[2, 3, 5]]})
    assert [row["head"] for row in rows] == [2, 3, 5]
    assert [row["fell_first"] for row in rows] == [1, 0, None]
    assert [came_back(row) for row in rows] == [True, False, False]
    assert [came_back({"lowest": 1.2, "last": last}) for last in (1.24, 1.26)] == [False, True]
    assert (rows[0]["lowest"], rows[0]["lowest_update"], rows[0]["last_update"]) == (1.3, 150, 200)
    assert (rows[1]["lowest"], rows[1]["lowest_update"]) == (1.2, 150), "the first of equals"
    assert trajectory_rows(records(alphas), {"encoder_self": [[1, 2]]}) == []
    rows_by_finding = finding_rows([head(n, alpha=1.5) for n in (2, 3, 5)], trajectories=rows)
    assert summary_of(rows_by_finding["α falls first", None]) == (
        "in part",
        pytest.approx(1 / 3),
        1,
        3,
        None,
    )
    assert summary_of(rows_by_finding["α falls and comes back", S]) == (
        "seen",
        pytest.approx(0.6),
        1,
        3,
        2,
    )


def test_two_groups_are_found_if_they_are_apart():
    draw = np.random.default_rng(2)
    low, high = draw.normal(1.2, 0.1, 12), draw.normal(1.8, 0.1, 12)
    assert p_value_of_two_groups([*low, *high]) < 0.01
    assert p_value_of_two_groups([*low, *(high - 0.6)]) > 0.05
    assert p_value_of_two_groups([*low[:7]]) is p_value_of_two_groups([1.5] * 9) is None


def test_sarle_coefficient_follows_its_definition():
    # by hand for 0, 0, 0, 1: skewness 2, excess kurtosis 4, both corrected
    assert sarle([0, 0, 0, 1]) == pytest.approx(5 / (4 + 13.5))
    assert sarle([1.0, 2.0, 1.0]) is sarle([1.5] * 9) is None


# -- findings -------------------------------------------------------------------------------------


def test_heads_with_a_role_are_reported():
    heads = [
        head(1, roles="previous", previous_share=0.91),
        head(2, roles="previous", previous_share=0.95),
        head(3, roles="merging", merge_score=0.88, split_merge_score=0.7),
        head(4, roles="interrogation", question_weight=0.97, statement_weight=0.03),
        head(5, roles="rare", rare_share=0.66),
        head(6, roles="offset+2", offset=2, offset_share=0.93),
        head(7, merge_score=0.95, question_weight=0.99),  # larger values without the role
        head(8, offset=3, offset_share=0.3),
        head(1, "decoder_self"),
    ]
    rows = finding_rows(heads)
    for finding, expected in {
        "previous-token head": ("seen", 0.95, 2, 9, 2),
        "merging head": ("seen", 0.88, 1, 8, 3),
        "interrogation head": ("seen", 0.97, 1, 9, 4),
        "rare-word head": ("seen", 0.66, 1, 9, 5),
        "head at another offset": ("seen", 0.93, None, None, 6),
        "next-token head": ("not seen", 0.1, 0, 9, 1),
    }.items():
        assert summary_of(rows[finding, S]) == expected, finding
    assert len([f for f, _ in rows if f == "head at another offset"]) == 1
    assert summary_of(rows["merging head", "decoder_self"])[0] == "not seen"


def test_without_a_finding_the_closest_head_is_reported():
    rows = finding_rows([head(1), head(2, previous_share=0.52, merge_score=0.39, rare_share=0.0)])
    assert summary_of(rows["previous-token head", S]) == ("in part", 0.52, 0, 2, 2)
    assert summary_of(rows["merging head", S]) == ("not seen", 0.39, 0, 2, 2)
    assert rows["merging head", S]["threshold"] == 0.8
    assert rows["α falls first", None]["reason"] == "No head has an α."
    assert not any(finding.startswith(("α goes", "most important")) for finding, _ in rows)


BARE = [{"site": "cross", "layer": 1, "head": 1, "roles": ""}]
UNMEASURED = [
    ("sparse heads", None, BARE, COUNTS, "No head forms weights"),
    ("previous-token head", None, BARE, COUNTS, "No head has weights"),
    ("interrogation head", None, BARE, {}, "no list of question words"),
    ("merging head", S, [head()], {}, "written without spaces"),
    ("merging head", S, [head()], {**COUNTS, "source_split_words": 9}, "Fewer than 10 words"),
    (
        "interrogation head", S, [head()], {**COUNTS, "statement_word_tokens": 9},
        "Fewer than 10 tokens",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("finding", "site", "heads", "counts", "reason"), UNMEASURED)
def test_unmeasured_findings_have_a_reason(finding, site, heads, counts, reason):
    row = finding_rows(heads, {"counts": {"source_tokens": 9, "target_tokens": 8, **counts}})[
        finding, site
    ]
    assert row["outcome"] == "not measured"
    assert reason in row["reason"]


@pytest.mark.parametrize(
    ("densities", "outcome", "n_sparse"),
    [([1.0, 1.0], "not seen", 0), ([1.0, 0.2], "in part", 1), ([0.9, 0.2], "seen", 2)],
)
def test_density_findings_of_a_site(densities, outcome, n_sparse):
    heads = [head(n, density=value) for n, value in enumerate(densities, start=1)]
    place = {"site": S, "layer": 1, "head": 1}
    bins = [{**place, "low": low, "n_queries": n} for low, n in ((0.5, 12), (0.95, 18), (1.0, 10))]
    rows = finding_rows(heads, density=[*bins, {**bins[0], "site": "cross", "n_queries": 60}])
    mean = pytest.approx(sum(densities) / 2)
    assert summary_of(rows["sparse heads", S])[:4] == (outcome, mean, n_sparse, 2)
    assert rows["sparse queries", S]["value"] == 0.75
    if n_sparse:
        assert rows["sparse heads", S]["head"] == 2


def test_diversity_confidence_and_importance():
    layers = [
        {"site": S, "layer": n, "diversity_heads": value, "diversity_keys": value and value / 2}
        for n, value in ((1, 0.3), (2, None), (3, 0.5))
    ]
    heads = [head(n, confidence=c, importance_normalised=n / 9)
             for n, c in ((1, 0.3), (2, 0.9), (3, 0.2))]  # fmt: skip
    rows = finding_rows(heads, layers=layers)
    row = rows["heads disagree", S]
    assert (row["value"], row["layer"]) == (pytest.approx(0.4), 3)
    assert summary_of(rows["confidence", S]) == (None, 0.3, None, None, 2)
    assert rows["most important head", S]["head"] == 3
    assert rows["least important head", S]["head"] == 1


@pytest.mark.parametrize(
    ("alphas", "outcome", "coefficient", "n_outside"),
    [
        ([1.9, 1.1, 1.75, 1.5, 1.25, 1.25, 1.2], "not seen", 0.37, 3),
        ([1.1, 1.9] * 10, "seen", 0.77, 20),
        ([1.1, 1.9], "not measured", None, 2),
    ],
)
def test_final_alphas(alphas, outcome, coefficient, n_outside):
    heads = [head(n, alpha=alpha) for n, alpha in enumerate(alphas, start=1)]
    row = finding_rows([*heads, head(1, "cross")])["α ends in two groups", S]
    expected = coefficient and pytest.approx(coefficient, abs=0.005)
    assert summary_of(row) == (outcome, expected, n_outside, len(alphas), None)


def trajectory(number, first, lowest, last):
    return {
        "site": S, "layer": 1, "head": number, "first_update": 0, "first": first,
        "lowest_update": 50, "lowest": lowest, "last_update": 100, "last": last, "fell_first": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lasts", "outcome", "correlation"),
    [([1.3, 1.4, 1.5, 1.9], "seen", 1.0), ([1.9, 1.3, 1.5, 1.4], "not seen", -0.4)],
)
def test_first_and_last_alphas_are_compared(lasts, outcome, correlation):
    rows = [trajectory(n, 1.2 + n / 10, 1.2, last) for n, last in enumerate(lasts, start=1)]
    rows[1]["lowest"] = 0.5  # rises most, and ends below another
    rows_by_finding = finding_rows([head(n, alpha=1.5) for n in range(1, 5)], trajectories=rows)
    assert summary_of(rows_by_finding["α keeps its order", None])[:2] == (
        outcome,
        pytest.approx(correlation),
    )
    back = rows_by_finding["α falls and comes back", S]
    assert summary_of(back) == ("seen", pytest.approx(lasts[1] - 0.5), 4, 4, 2)


def test_findings_name_the_kinds():
    site = "decoder_self"
    place = {"site": site, "layer": 1}
    rows = [
        {**place, "head": 1, "local": 0.7, "global": 0.3, "variation": 0.1, "kinds": "local"},
        {**place, "head": 2, "local": 0.1, "global": 0.3, "variation": 0.9,
         "kinds": "data_dependent"},
    ]  # fmt: skip
    about = {"self_attention": {site: "tokens"}, "languages": ""}
    found = finding_rows([], about, kinds=rows)
    outcomes = {name: (row["outcome"], row["n_heads"]) for (name, _), row in found.items()
                if name.split()[0] in ("local", "row", "global", "data-dependent")}  # fmt: skip
    assert outcomes == {
        "local head": ("seen", 1), "global head": ("in part", 0),
        "data-dependent head": ("seen", 1),
    }  # fmt: skip
    assert not {"merging head", "next-token head", "rare-word head"} & {name for name, _ in found}


def test_one_window_shows_no_data_dependence():
    place = {"site": "decoder_self", "layer": 1, "head": 1}
    row = {**place, "local": 0.7, "global": 0.3, "variation": None, "kinds": "local"}
    about = {"self_attention": {"decoder_self": "tokens"}, "languages": ""}
    found = finding_rows([], about, kinds=[row])
    (unmeasured,) = (row for (name, _), row in found.items() if name == "data-dependent head")
    assert unmeasured["outcome"] == "not measured"
    assert "two whole windows" in unmeasured["reason"]

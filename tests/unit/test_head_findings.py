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


def finding_rows(heads=(), about=None, **tables):
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
    value = row.get("value")
    number = value if value is None else round(value, 5)
    return row["outcome"], number, *map(row.get, ("n_heads", "n_measured", "head"))


# -- roles ----------------------------------------------------------------------------------------

MERGING = {"merge_score": 0.9, "split_merge_score": 0.9}
ASKING = {"question_weight": 0.9, "statement_weight": 0.1}
FEW_WORDS, ENOUGH_WORDS = {"source_split_words": 9}, {"source_split_words": 10}
FEW_TOKENS, ENOUGH_TOKENS = {"statement_word_tokens": 9}, {"statement_word_tokens": 10}
ROLES = [
    ({}, [], {}),
    ({"offset": -1, "offset_share": 0.9}, ["previous"], {}),
    ({"offset": -1, "offset_share": 0.89}, [], {}),
    ({"offset": 3, "offset_share": 0.95}, ["offset+3"], {}),
    ({"offset": -4, "offset_share": 0.95}, ["offset-4"], {}),
    ({"merge_score": 0.85, "split_merge_score": 0.5}, ["merging"], {}),
    ({"merge_score": 0.85, "split_merge_score": 0.2}, [], {}),
    ({"merge_score": 0.8, "split_merge_score": 0.4}, ["merging"], {}),
    ({"merge_score": 0.75, "split_merge_score": 0.9}, [], {}),
    (MERGING, [], FEW_WORDS),
    (MERGING, ["merging"], ENOUGH_WORDS),
    (MERGING, ["merging"], {"target_split_words": 9}),
    (ASKING, ["interrogation"], {}),
    (ASKING, [], FEW_TOKENS),
    (ASKING, ["interrogation"], ENOUGH_TOKENS),
    ({"question_weight": 0.8, "statement_weight": 0.4}, ["interrogation"], {}),
    ({"question_weight": 0.9, "statement_weight": 0.65}, [], {}),
    ({"question_weight": 0.9, "statement_weight": None}, [], {}),
    ({"rare_share": 0.5}, ["rare"], {}),
    ({"rare_share": 0.49}, [], {}),
    ({"offset_share": None, "offset": None, "merge_score": None, "rare_share": None}, [], {}),
]


@pytest.mark.parametrize(("values", "expected", "counts"), ROLES)
def test_roles_by_their_thresholds(values, expected, counts):
    assert roles(head(**values), "source", {**COUNTS, **counts}, Thresholds()) == expected


def test_thresholds_can_be_set():
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


ALPHAS = {
    2: [1.5, 1.495, 1.4, 1.3, 1.9],  # falls, then rises above its start
    3: [1.5, 1.52, 1.3, 1.2, 1.2],  # rises first
    5: [1.5, 1.5, 1.495, 1.5, 1.5],  # hardly moves
}


def test_trajectories_detect_early_falls_and_later_rises():
    rows = trajectory_rows(records(ALPHAS), {"encoder_self": [[2, 3, 5]]})
    assert [row["head"] for row in rows] == [2, 3, 5]
    assert [row["fell_first"] for row in rows] == [1, 0, None]
    assert [came_back(row) for row in rows] == [True, False, False]
    assert [came_back({"lowest": 1.2, "last": last}) for last in (1.24, 1.26)] == [False, True]
    assert (rows[0]["lowest"], rows[0]["lowest_update"], rows[0]["last_update"]) == (1.3, 150, 200)
    assert (rows[1]["lowest"], rows[1]["lowest_update"]) == (1.2, 150), "the first of equals"
    assert trajectory_rows(records(ALPHAS), {"encoder_self": [[1, 2]]}) == []


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

IN_DECODER = {"self_attention": {"decoder_self": "tokens"}, "languages": ""}
NO_WORDS = {"source_tokens": 9, "target_tokens": 8}
BARE = {"site": "cross", "layer": 1, "head": 1, "roles": ""}


def heads_with(name, values, **others):
    return [head(n, **{name: value}, **others) for n, value in enumerate(values, start=1)]


def with_counts(**counts):
    return {"counts": {**NO_WORDS, **counts}}


def trajectory(number, first, lowest, last):
    return {
        "site": S, "layer": 1, "head": number, "first_update": 0, "first": first,
        "lowest_update": 50, "lowest": lowest, "last_update": 100, "last": last, "fell_first": 1,
    }  # fmt: skip


def trajectories(*lasts):
    """The second rises most, and ends below another."""
    lowest = (1.2, 0.5, 1.2, 1.2)
    rows = zip((1, 2, 3, 4), (1.3, 1.4, 1.5, 1.6), lowest, lasts, strict=True)
    return {"heads": heads_with("alpha", [1.5] * 4), "trajectories": [trajectory(*r) for r in rows]}


def densities(*values):
    bins = [(S, 0.5, 12), (S, 0.95, 18), (S, 1.0, 10), ("cross", 0.5, 60)]
    rows = [{"site": s, "layer": 1, "head": 1, "low": low, "n_queries": n} for s, low, n in bins]
    return {"heads": heads_with("density", values), "density": rows}


def kinds(*rows):
    names = ("local", "global", "variation", "kinds")
    place = {"site": "decoder_self", "layer": 1}
    table = [dict(zip(names, row, strict=True)) for row in rows]
    return {"kinds": [{**place, "head": n, **row} for n, row in enumerate(table, start=1)]}


WITH_ROLES = [
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
WITHOUT_ROLES = [head(1), head(2, previous_share=0.52, merge_score=0.39, rare_share=0.0)]
LAYERS = [
    {"site": S, "layer": n, "diversity_heads": value, "diversity_keys": value and value / 2}
    for n, value in ((1, 0.3), (2, None), (3, 0.5))
]
CONFIDENCES = [
    head(n, confidence=c, importance_normalised=n / 9) for n, c in ((1, 0.3), (2, 0.9), (3, 0.2))
]
# Tables, changes of the settings, and of (finding, site): outcome, value, numbers of heads with it
# and of all, and the head that is named; or None: there is no such finding.
CASES = {
    "heads with a role": ({"heads": WITH_ROLES}, {}, {
        ("previous-token head", S): ("seen", 0.95, 2, 9, 2),
        ("merging head", S): ("seen", 0.88, 1, 8, 3),
        ("interrogation head", S): ("seen", 0.97, 1, 9, 4),
        ("rare-word head", S): ("seen", 0.66, 1, 9, 5),
        ("head at another offset", S): ("seen", 0.93, None, None, 6),
        ("head at another offset", "decoder_self"): None,
        ("next-token head", S): ("not seen", 0.1, 0, 9, 1),
        ("merging head", "decoder_self"): ("not seen",),
    }),
    "the closest head without a role": ({"heads": WITHOUT_ROLES}, {}, {
        ("previous-token head", S): ("in part", 0.52, 0, 2, 2),
        ("merging head", S): ("not seen", 0.39, 0, 2, 2),
        ("α falls first", None): ("not measured",),
        ("α ends in two groups", S): None,
        ("α keeps its order", None): None,
        ("most important head", S): None,
    }),
    "no sparse head": (densities(1.0, 1.0), {}, {
        ("sparse heads", S): ("not seen", 1.0, 0, 2), ("sparse queries", S): ("seen", 0.75),
    }),
    "some sparse heads": (densities(1.0, 0.2), {}, {
        ("sparse heads", S): ("in part", 0.6, 1, 2, 2),
    }),
    "all heads sparse": (densities(0.9, 0.2), {}, {("sparse heads", S): ("seen", 0.55, 2, 2, 2)}),
    "diversity": ({"heads": [], "layers": LAYERS}, {}, {("heads disagree", S): (None, 0.4)}),
    "confidence and importance": ({"heads": CONFIDENCES}, {}, {
        ("confidence", S): (None, 0.3, None, None, 2),
        ("most important head", S): (None, 0.33333, None, None, 3),
        ("least important head", S): (None, 0.11111, None, None, 1),
    }),
    "one group of α": (
        {"heads": [*heads_with("alpha", [1.9, 1.1, 1.75, 1.5, 1.25, 1.25, 1.2]), head(1, "cross")]},
        {}, {("α ends in two groups", S): ("not seen", 0.36532, 3, 7)},
    ),
    "two groups of α": (
        {"heads": heads_with("alpha", [1.1, 1.9] * 10)}, {},
        {("α ends in two groups", S): ("seen", 0.76692, 20, 20)},
    ),
    "too few α for groups": (
        {"heads": heads_with("alpha", [1.1, 1.9])}, {},
        {("α ends in two groups", S): ("not measured", None, 2, 2)},
    ),
    "α keep their order": (trajectories(1.3, 1.4, 1.5, 1.9), {}, {
        ("α keeps its order", None): ("seen", 1.0),
        ("α falls and comes back", S): ("seen", 0.9, 4, 4, 2),
    }),
    "α change their order": (trajectories(1.9, 1.3, 1.5, 1.4), {}, {
        ("α keeps its order", None): ("not seen", -0.4),
        ("α falls and comes back", S): ("seen", 0.8, 4, 4, 2),
    }),
    "one α of three falls": (
        {"heads": heads_with("alpha", [1.5] * 3),
         "trajectories": trajectory_rows(records(ALPHAS), {S: [[2, 3, 5]]})}, {},
        {("α falls first", None): ("in part", 0.33333, 1, 3),
         ("α falls and comes back", S): ("seen", 0.6, 1, 3, 2)},
    ),
    "kinds": (kinds((0.7, 0.3, 0.1, "local"), (0.1, 0.3, 0.9, "data_dependent")), IN_DECODER, {
        ("local head", "decoder_self"): ("seen", 0.7, 1, 2, 1),
        ("global head", "decoder_self"): ("in part", 0.3, 0, 2),
        ("data-dependent head", "decoder_self"): ("seen", 0.9, 1, 2, 2),
        ("row head", None): None, ("merging head", None): None, ("next-token head", None): None,
        ("rare-word head", None): None,
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_findings(name):
    tables, about, expected = CASES[name]
    rows = finding_rows(about=about, **tables)
    for finding, values in expected.items():
        actual = summary_of(rows[finding])[: len(values)] if finding in rows else None
        assert actual == values, finding


def test_findings_name_layers_and_thresholds():
    rows = finding_rows(WITHOUT_ROLES, layers=LAYERS)
    assert rows["heads disagree", S]["layer"] == 3
    assert rows["merging head", S]["threshold"] == 0.8


@pytest.mark.parametrize(
    ("finding", "site", "tables", "about", "reason"),
    [
        ("α falls first", None, {"heads": [head()]}, {}, "No head has an α."),
        ("sparse heads", None, {"heads": [BARE]}, {}, "No head forms weights"),
        ("previous-token head", None, {"heads": [BARE]}, {}, "No head has weights"),
        ("interrogation head", None, {"heads": [BARE]}, with_counts(), "no list of question words"),
        ("merging head", S, {"heads": [head()]}, with_counts(), "written without spaces"),
        ("merging head", S, {"heads": [head()]}, {"counts": {**COUNTS, **FEW_WORDS}},
         "Fewer than 10 words"),
        ("interrogation head", S, {"heads": [head()]}, {"counts": {**COUNTS, **FEW_TOKENS}},
         "Fewer than 10 tokens"),
        ("data-dependent head", None, kinds((0.7, 0.3, None, "local")), IN_DECODER,
         "two whole windows"),
    ],
)  # fmt: skip
def test_unmeasured_findings_have_a_reason(finding, site, tables, about, reason):
    row = finding_rows(about=about, **tables)[finding, site]
    assert row["outcome"] == "not measured"
    assert reason in row["reason"]

"""Values of a run's heads for comparisons: selected heads and averages over heads."""

from typing import Any

import pytest

from headwise.analysis.tables import DENSITY, FOLDER, HEADS, LAYERS, OTHERS, TRAJECTORIES
from headwise.runs.record import Record
from headwise.studies.head_facts import analysis_facts, facts_of_all_seeds

Rows = list[dict[str, Any]]


def values(folder, heads, site="encoder_self", queries=None, alphas=None, others=None):
    """Write an analysis of these heads and return the value of every quantity."""
    rows = [
        {"site": site, "layer": 1, "head": number, **head}
        for number, head in enumerate(heads, start=1)
    ]
    analysis = folder / FOLDER
    analysis.mkdir(exist_ok=True)
    HEADS.path(analysis).write_text(HEADS.text(rows), encoding="utf-8")
    for table, given in (
        (LAYERS, None), (DENSITY, queries), (TRAJECTORIES, alphas), (OTHERS, others)
    ):  # fmt: skip
        placed = [{"site": site, "layer": 1, "head": 1, **row} for row in given or ()]
        table.path(analysis).write_text(table.text(placed), encoding="utf-8")
    facts = analysis_facts(Record(folder))
    levels = {(fact["site"], fact["layer"]) for fact in facts}
    assert levels <= {(None, None), (site, None), *([(site, 1)] if others else [])}
    return {fact["quantity"]: fact["value"] for fact in facts}


@pytest.mark.parametrize("site", ["encoder_self", "decoder_self", "cross"])
@pytest.mark.parametrize(
    ("quantity", "expected"), [("alpha", 1.5), ("density", 1.5), ("confidence", 1.2)]
)
def test_means_and_medians(tmp_path, site, quantity, expected):
    heads = [{quantity: value} for value in (1.0, 2.3, 1.2, None)]
    spread = {"density_spread": 0.7} if quantity == "density" else {}
    assert values(tmp_path, heads, site) == pytest.approx({quantity: expected, **spread})


def test_densities_of_heads_and_of_queries(tmp_path):
    heads = [{"layer": n, "density": x} for n, x in ((1, 0.2), (1, 0.4), (2, 0.5), (2, 0.5))]
    queries = [{"low": low, "high": 1.0, "n_queries": n} for low, n in ((0.95, 30), (1.0, 10))]
    of_run = values(tmp_path, heads, queries=queries)
    assert of_run["density"] == pytest.approx(0.4)
    assert of_run["density_spread"] == pytest.approx(0.2 / 2**0.5 / 2)  # deviation, mean of layers
    assert of_run["dense_queries"] == 0.25


def test_gradients_are_means_of_a_layer(tmp_path):
    others = [
        {"head": head, "statistic": statistic, "value": value}
        for head, statistic, value in (
            (1, "query_gradient", 2e-5), (2, "query_gradient", 4e-5), (1, "key_gradient", 9.0)
        )
    ]  # fmt: skip
    assert values(tmp_path, [{}], others=others) == pytest.approx({"query_gradient": 3e-5})


def test_alphas_over_the_training(tmp_path):
    points = ((1.5, 1.2, 1.3, 1), (1.8, 1.4, 1.41, 1), (1.1, 1.1, 1.6, 0), (1.3, 1.3, 1.3, None))
    alphas = [
        {
            "first": first,
            "lowest": lowest,
            "lowest_update": 100 * i,
            "last": last,
            "fell_first": fell,
        }
        for i, (first, lowest, last, fell) in enumerate(points)
    ]
    of_run = values(tmp_path, [{}], alphas=alphas)
    assert of_run["alpha_fell"] == pytest.approx(2 / 3)  # of those that changed
    assert (of_run["alpha_turned"], of_run["alpha_turned_at"]) == (2, 100)
    assert of_run["alpha_rise"] == pytest.approx(0.5)
    assert of_run["alpha_order"] == pytest.approx(-0.316, abs=1e-3)
    run = Record(tmp_path)
    assert not facts_of_all_seeds([run])  # too few heads to test
    of_all = {f["quantity"]: f["value"] for f in facts_of_all_seeds([run, run])}
    assert 0 < of_all["alpha_groups_p"] <= 1
    assert of_all["alpha_order_all"] == pytest.approx(-0.316, abs=1e-3)
    assert -1 < of_all["alpha_order_low"] < -0.316 < of_all["alpha_order_high"] < 1


@pytest.mark.parametrize("role", ["previous", "next"])
def test_positional_weights_are_medians_over_the_role(tmp_path, role):
    with_role = [
        {"roles": f"merging;{role}", f"{role}_share": 0.9, f"{role}_weight": weight}
        for weight in (0.5, 0.95, 0.6)
    ]
    without_role = {"roles": "", f"{role}_share": 0.97, f"{role}_weight": 0.1}
    assert values(tmp_path, [*with_role, without_role]) == pytest.approx(
        {f"{role}_heads": 3, f"{role}_share": 0.97, f"{role}_weight": 0.6}
    )


@pytest.mark.parametrize(
    "statements",
    [(0.85, 0.1), (0.3, None), (None, None)],
)
def test_question_head_separates_questions_from_statements(tmp_path, statements):
    heads = [
        {"question_weight": question, "statement_weight": statement, "roles": role}
        for question, statement, role in zip(
            (0.9, 0.7), statements, ("", "interrogation"), strict=True
        )
    ]
    measured = values(tmp_path, heads)
    assert measured.pop("interrogation_heads") == 1
    is_first = statements[0] is None
    expected = {
        "question_weight": 0.9 if is_first else 0.7,
        "statement_weight": statements[not is_first],
    }
    assert measured == {name: value for name, value in expected.items() if value is not None}


def test_word_measures_are_of_the_best_encoder_heads(tmp_path):
    heads = [
        {"merge_score": score, "cluster_mass": mass, "rare_share": rare, "roles": role}
        for score, mass, rare, role in (
            (0.2, 0.1, 0.3, ""),
            (0.9, 0.3, 0.6, "merging"),
            (0.5, 0.7, 0.1, ""),
        )
    ]
    decoder_head = {
        "site": "decoder_self",
        "merge_score": 0.95,
        "cluster_mass": 0.99,
        "roles": "merging",
    }
    assert values(tmp_path, [*heads, decoder_head]) == pytest.approx(
        {
            "merging_heads": 1,
            "merge_score_1": 0.9,
            "merge_score_2": 0.5,
            "cluster_mass": 0.7,
            "rare_share": 0.6,
        }
    )

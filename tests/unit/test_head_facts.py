"""Values of a run's heads for comparisons: selected heads and averages over heads."""

import pytest

from headwise.analysis.quantities import head_facts
from headwise.analysis.tables import DENSITY, FOLDER, HEADS, LAYERS, OTHERS, TRAJECTORIES
from headwise.runs.record import Record

TABLES = (HEADS, LAYERS, DENSITY, TRAJECTORIES, OTHERS)


def write_analysis(folder, site="encoder_self", **rows):
    """An analysis with these rows of tables, the heads numbered from 1."""
    analysis = folder / FOLDER
    analysis.mkdir()
    for table in TABLES:
        places = {"site": site, "layer": 1}
        placed = [
            {**places, "head": number if table is HEADS else 1, **row}
            for number, row in enumerate(rows.get(table.name, ()), start=1)
        ]
        table.path(analysis).write_text(table.text(placed), encoding="utf-8")
    return Record(folder)


def columns(names, *rows):
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


TRAJECTORY = "first lowest lowest_update last fell_first"
ALPHAS = columns(
    TRAJECTORY,
    *((1.5, 1.2, 0, 1.3, 1), (1.8, 1.4, 100, 1.41, 1)),
    *((1.1, 1.1, 200, 1.6, 0), (1.3, 1.3, 300, 1.3, None)),
)
ASKING, MERGING = "question_weight statement_weight roles", "merge_score cluster_mass rare_share"
IN_DECODER = {
    "site": "decoder_self", "merge_score": 0.95, "cluster_mass": 0.99, "roles": "merging"
}  # fmt: skip
# Rows of tables and the value of every quantity.
CASES = {
    "α are averaged": ({"heads": columns("alpha", *zip((1.0, 2.3, 1.2, None)))}, {"alpha": 1.5}),
    "densities are averaged": (
        {"heads": columns("density", *zip((1.0, 2.3, 1.2, None)))},
        {"density": 1.5, "density_spread": 0.7},
    ),
    "of confidences the median": (
        {"heads": columns("confidence", *zip((1.0, 2.3, 1.2, None)))}, {"confidence": 1.2}
    ),
    "densities of heads and of queries": (
        {
            "heads": columns("layer density", (1, 0.2), (1, 0.4), (2, 0.5), (2, 0.5)),
            "density": columns("low high n_queries", (0.95, 1.0, 30), (1.0, 1.0, 10)),
        },
        # the spread is the mean over layers of the deviation
        {"density": 0.4, "density_spread": 0.2 / 2**0.5 / 2, "dense_queries": 0.25},
    ),
    "gradients are means of a layer": (
        {
            "heads": [{}],
            "other_statistics": columns(
                "head statistic value", (1, "query_gradient", 2e-5), (2, "query_gradient", 4e-5),
                (1, "key_gradient", 9.0),
            ),
        },
        {"query_gradient": 3e-5},
    ),
    # two of the three α that changed fell first
    "α over the training": (
        {"heads": [{}], "trajectories": ALPHAS},
        {"alpha_fell": 2 / 3, "alpha_turned": 2, "alpha_turned_at": 100, "alpha_rise": 0.5,
         "alpha_order": -0.31623, "alpha_groups": 0.18678},
    ),
    **{
        f"weights of {role} tokens are medians over the role": (
            {
                "heads": columns(
                    f"roles {role}_share {role}_weight", (f"merging;{role}", 0.9, 0.5),
                    (f"merging;{role}", 0.9, 0.95), (f"merging;{role}", 0.9, 0.6), ("", 0.97, 0.1),
                )
            },
            {f"{role}_heads": 3, f"{role}_share": 0.97, f"{role}_weight": 0.6},
        )
        for role in ("previous", "next")
    },
    **{
        f"question heads {name}": (
            {"heads": columns(ASKING, (0.9, first, ""), (0.7, second, "interrogation"))},
            {"interrogation_heads": 1, **expected},
        )
        for name, first, second, expected in (
            ("differ most", 0.85, 0.1, {"question_weight": 0.7, "statement_weight": 0.1}),
            ("may have no statement", 0.3, None, {"question_weight": 0.7}),
            ("are the first of equals", None, None, {"question_weight": 0.9}),
        )
    },
    "measures of words are of the best heads of the encoder": (
        {
            "heads": [
                *columns(f"{MERGING} roles", (0.2, 0.1, 0.3, ""), (0.9, 0.3, 0.6, "merging"),
                         (0.5, 0.7, 0.1, "")),
                IN_DECODER,
            ]
        },
        {"merging_heads": 1, "merge_score_1": 0.9, "merge_score_2": 0.5, "cluster_mass": 0.7,
         "rare_share": 0.6},
    ),
}  # fmt: skip


@pytest.mark.parametrize("site", ["encoder_self", "cross"])
@pytest.mark.parametrize("name", CASES)
def test_facts_of_a_run(tmp_path, name, site):
    rows, expected = CASES[name]
    facts = head_facts([write_analysis(tmp_path, site, **rows)])
    values = {fact["quantity"]: fact["value"] for fact in facts}
    assert values == pytest.approx(expected, rel=1e-4)
    places = {(fact["site"], fact["layer"]) for fact in facts}
    assert places <= {(None, None), (site, 1 if "query_gradient" in values else None)}


def test_all_seeds_are_tested_together(tmp_path):
    run = write_analysis(tmp_path, heads=[{}], trajectories=ALPHAS)
    assert not head_facts([run], all_seeds=True)  # too few heads to test
    of_all = {f["quantity"]: f["value"] for f in head_facts([run, run], all_seeds=True)}
    assert 0 < of_all["alpha_groups_p"] <= 1
    assert of_all["alpha_order_all"] == pytest.approx(-0.316, abs=1e-3)
    assert -1 < of_all["alpha_order_low"] < -0.316 < of_all["alpha_order_high"] < 1

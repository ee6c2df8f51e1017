"""Values of the heads of a study's runs, averaged over the seeds of each cell."""

import json
from dataclasses import replace

import pandas as pd

from headwise.analysis.tables import DENSITY, FOLDER, HEADS, LAYERS, OTHERS, SETTINGS, TRAJECTORIES
from headwise.studies.heads import head_tables
from headwise.studies.match import SavedRun
from headwise.studies.study import Column, Row, Study

STUDY = Study(
    name="tiny",
    title="",
    rows={"softmax": Row(), "sparse": Row(), "no": Row("none")},
    columns={"x": Column("Corpus"), "y": Column("Nothing yet")},
)


def analysed(folder, density, alpha, n_previous=0, seed=1):
    """A run and its analysis, of two encoder heads."""
    analysis = folder / FOLDER
    analysis.mkdir(parents=True)
    place = {"site": "encoder_self", "layer": 1}
    shared = {**place, "density": density, "alpha": alpha}
    roles = ["previous" if head <= n_previous else "" for head in (1, 2)]
    heads = [
        {**shared, "head": head, "previous_share": 0.1, "previous_weight": 0.5, "roles": role}
        for head, role in enumerate(roles, start=1)
    ]
    HEADS.path(analysis).write_text(HEADS.text(heads), encoding="utf-8")
    layer = {**place, "diversity_heads": 0.25, "diversity_keys": 0.75}
    LAYERS.path(analysis).write_text(LAYERS.text([layer]), encoding="utf-8")
    for table in (DENSITY, OTHERS, TRAJECTORIES):
        table.path(analysis).write_text(table.text([]), encoding="utf-8")
    run = SavedRun(folder)
    run.settings = {"seed": seed}
    return run


def rows_of(table):
    return dict(table.rows)


def heads_of(runs, study=STUDY):
    """Facts and tables of runs in column x, by row; every run folder holds its analysis."""
    rows = [
        {"row": row, "column": "x", "seed": run.seed, "run": str(run.folder), "saved": run}
        for row, row_runs in runs.items()
        for run in row_runs
    ]
    frame = pd.DataFrame(rows, columns=["row", "column", "seed", "run", "saved"])
    analysed = {run.folder for row_runs in runs.values() for run in row_runs}
    return head_tables(study, frame, analysed)


def test_values_are_means_over_the_seeds_that_have_them(tmp_path):
    runs = {
        "softmax": [analysed(tmp_path / "a", 1.0, None), analysed(tmp_path / "b", 1.0, None)],
        "sparse": [
            analysed(tmp_path / name, density, alpha, n)
            for name, density, alpha, n in (
                ("c", 0.2, 1.4, 1),
                ("d", 0.4, 1.6, 2),
                ("e", 0.9, 1.5, 2),
            )
        ],
        "no": [],
    }
    facts, (table,) = heads_of(runs)
    assert table.title == "Heads, Corpus"
    assert table.headers == ["softmax", "sparse"]
    rows = rows_of(table)
    assert rows["density, mean, encoder self-attention"] == ["1.00", "0.50 [0.00, 1.00]"]
    assert rows["α, mean, encoder self-attention"] == ["–", "1.50 [1.25, 1.75]"]
    assert rows["heads at -1"] == ["0", "1.7 [0.2, 3.1]"]
    assert rows["their weight at -1, median"] == ["–", "50 %"]
    assert rows["diversity, encoder self-attention layer 1"] == ["0.25", "0.25"]
    assert "softmax 2, sparse 3" in table.notes[0]
    alphas = facts[facts.quantity == "alpha"].set_index("run").value.to_dict()
    assert alphas == {str(tmp_path / name): a for name, a in (("c", 1.4), ("d", 1.6), ("e", 1.5))}
    of_layers = facts[facts.layer.notna()][["quantity", "site", "layer"]].drop_duplicates()
    assert of_layers.values.tolist() == [["diversity", "encoder_self", 1]]


def test_analyses_of_other_texts_are_noted(tmp_path):
    runs = {row: [analysed(tmp_path / row, 1.0, None)] for row in ("softmax", "sparse")}
    for row, text in (("softmax", "1" * 16), ("sparse", "2" * 16)):
        (tmp_path / row / FOLDER / SETTINGS).write_text(json.dumps({"text": text}))
    _, (table,) = heads_of(runs)
    assert table.notes[1].startswith("The analysed text, or its tokens, differ (by their hash): ")
    assert f"{'2' * 16} in {tmp_path / 'sparse'}" in table.notes[1]
    (tmp_path / "sparse" / FOLDER / SETTINGS).write_text("{}")  # version 0.1.0: it is not known
    _, (table,) = heads_of(runs)
    assert len(table.notes) == 1


def test_differences_to_the_baseline_are_paired_by_seed(tmp_path):
    def runs(name, densities):
        return [
            analysed(tmp_path / f"{name}{seed}", density, None, seed=seed)
            for seed, density in enumerate(densities, start=1)
        ]

    of_rows = {"softmax": runs("a", [0.9, 0.8, 0.7]), "sparse": runs("b", [0.6, 0.4, 0.5])}
    _, (_, differences) = heads_of(of_rows, replace(STUDY, baseline="softmax"))
    assert differences.title == "Heads, Corpus: differences to softmax"
    assert differences.headers == ["sparse"]
    # mean -0.3 of -0.3, -0.4, -0.2; deviation 0.1, so 4.303 * 0.1 / sqrt(3)
    assert rows_of(differences)["density, mean, encoder self-attention"] == ["-0.30 [-0.55, -0.05]"]

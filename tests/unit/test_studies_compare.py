"""Runs of a column of a study: pairs of one seed, comparable runs only, both intervals."""

import os
import re
import statistics
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fabricated_runs import METRICS, REFERENCES, hashed, stable, translations
from golden_files import assert_golden
from headwise.config.register import group_node
from headwise.config.schema import DecodeConfig
from headwise.metrics.metric import Measured, Metric
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.runs.results import Results
from headwise.studies.compare import study_runs, supported, with_differences
from headwise.studies.study import Cell, Column, Published, Recipe, Row, Study
from headwise.studies.tables import study_tables
from headwise.tasks.translation.metrics import score_translations
from headwise.tasks.translation.task import Translation

STUDY = Study(
    name="tiny",
    title="",
    metrics=METRICS,
    baseline="softmax",
    rows={"softmax": Row("softmax", ["a=1"]), "sparse": Row("sparse", ["a=2"])},
    columns={"mine": Column("Mine", [], test="test", train_pairs=1000)},
)
RESAMPLES = 20


class Made(Record):
    """A run whose values of `TaskRecord` are set."""

    updates = 0


def make_run(folder, seed, hypotheses=None, references=REFERENCES, train_pairs=None):
    """A finished run with `hypotheses`, or with translations drawn by the seed."""
    lines = translations(3, seed) if hypotheses is None else hypotheses
    (folder / "hypotheses").mkdir(parents=True)
    (folder / "hypotheses" / "test.ref.sha256").write_text(str(hash(tuple(references))))
    measured = score_translations(lines, references, "en")
    RunFolder(folder).write_sums("test", "translation", measured.items)
    config = SimpleNamespace(
        data=SimpleNamespace(target="en"),
        decode=DecodeConfig(),
        loss=group_node("loss", "cross_entropy"),
    )
    run = Made(folder)
    vars(run).update(
        data={"text": "0" * 64, "train": {"pairs": train_pairs}, "vocabulary": "of T"},
        results=Results({"test": hashed(measured.scores())}),
        task=Translation(config),
        references=Translation.references,
        metrics=Translation(config).metrics(),
        config=config,
        settings={
            **{"seed": seed, "trainer": {"precision": "float32"}, "data": {}},
            "tokenizer": {"folder": "T"},
        },
    )
    return run


def compared(softmax, sparse, study=STUDY):
    """The runs of a column, compared where allowed."""
    return judged(study, {("softmax", "mine"): softmax, ("sparse", "mine"): sparse})


def judged(study, used, metrics=None):
    """The runs of cells, compared where allowed; `metrics`: those of a column's recipes."""
    recipes = [
        Recipe(Cell(*cell, ()), (), {}, 0, (metrics or {}).get(cell[1], {})) for cell in used
    ]
    return with_differences(study, study_runs(study, recipes, used), RESAMPLES)


def scores(of_study, row, metric="bleu_tokenised"):
    """Score by seed."""
    rows = of_study.scores[(of_study.scores.row == row) & (of_study.scores.metric == metric)]
    return dict(zip(rows.seed, rows.score, strict=True))


def tables(of_study, study=STUDY):
    return study_tables(study, of_study, RESAMPLES)


def test_runs_are_paired_by_seed(tmp_path):
    softmax = [make_run(tmp_path / f"a{seed}", seed, translations(seed)) for seed in (1, 2, 3)]
    sparse = [make_run(tmp_path / f"b{seed}", seed, translations(6 - seed)) for seed in (1, 3, 4)]
    of_study = compared(softmax, sparse)
    (test,) = of_study.differences.itertuples()
    assert (test.row, test.n_seeds, test.n_runs) == ("sparse", 2, 3)
    new, old = scores(of_study, "sparse"), scores(of_study, "softmax")
    by_seed = [new[seed] - old[seed] for seed in (1, 3)]
    assert test.difference == pytest.approx(statistics.fmean(by_seed), abs=1e-9)
    # t of 1 degree of freedom; the deviation of a mean of two is half their distance
    half = 12.7062 * abs(by_seed[0] - by_seed[1]) / 2
    around = test.difference - half, test.difference + half
    assert test.over_seeds == pytest.approx(around, rel=1e-5)
    assert test.over_items != pytest.approx(around, rel=0.1)
    unpaired = compared(softmax[1:2], sparse)
    assert unpaired.differences.empty


def test_runs_that_did_not_learn_are_counted_and_not_averaged(tmp_path):
    study = replace(STUDY, columns={"mine": replace(STUDY.columns["mine"], learned=50.0)})
    softmax, sparse = (
        [make_run(tmp_path / f"{name}{seed}", seed) for seed in (1, 2)] for name in "ab"
    )
    for run, score in zip([*softmax, *sparse], [90, 50, 10, 80], strict=True):
        run.settings["data"]["valid"] = "valid"
        run.results.scores["valid"] = {"bleu_tokenised": {"score": score}}
    of_study = compared(softmax, sparse, study)
    rows = dict(tables(of_study, study)[0].rows)
    assert rows["softmax"][0].endswith("(2)")
    assert rows["sparse"][0] == f"{scores(of_study, 'sparse')[2]:.2f} (1 of 2)"
    (test,) = of_study.differences.itertuples()
    assert (test.n_seeds, test.n_runs) == (1, 2)
    sparse[1].results.scores["valid"]["bleu_tokenised"]["score"] = 49
    rows = dict(tables(compared(softmax, sparse, study), study)[0].rows)
    assert rows["sparse"] == ["– (0 of 2)"]


def with_hashes(**hashes):
    """Return a change of hashes of a run's scores; None: not known."""
    return lambda run: [entry.update(hashes) for entry in run.results.scores["test"].values()]


unknown = with_hashes(content=None, items=None)


def test_only_differences_of_known_texts_are_bold(tmp_path):
    """And of several seeds."""
    softmax, sparse = (
        [make_run(tmp_path / f"{n}{seed}", seed, translations(n, 1)) for seed in (1, 2)]
        for n in (1, 5)
    )

    def n_bold(*changes, n_seeds=2):
        for change in changes:
            change(sparse[1])
        table = tables(compared(softmax[:n_seeds], sparse[:n_seeds]))[-1]
        ((_, (_, over_seeds, over_items, _)),) = table.rows
        assert over_items.count("−") == 2, "both ends"
        assert over_seeds.count("−") == (2 if n_seeds == 2 else 0)
        return table.markdown().count("**")

    known = with_hashes(content="0" * 16, items="0" * 16)
    assert (n_bold(), n_bold(n_seeds=1)) == (4, 0)
    assert (n_bold(unknown), n_bold(known), n_bold(lambda run: run.data.clear())) == (0, 4, 0)
    assert [supported(x) for x in (None, (-1.0, 1.0), (0.0, 1.0), (0.1, 1.0))] == [0, 0, 0, 1]


def signed(metric):
    """Return a change of the signature of a run's score."""
    return lambda run: run.results.scores["test"][metric].update(signature="of another version")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_hashes(content="1" * 16), "the scored text differs "),
        (signed("bleu"), "bleu has several signatures: .*of another version in "),
        (signed("bleu_tokenised"), "bleu_tokenised has several signatures: "),
        (lambda run: run.data.update(text="1" * 64), "the training text differs "),
        # seeds of one row
        (lambda run: vars(run).update(updates=400), r"the number of updates of s\w+ differs: "),
        (
            lambda run: run.data.update(vocabulary="other"),
            r"the vocabulary of s\w+ differs ",
        ),
    ],
)
@pytest.mark.parametrize("in_base", [True, False])
def test_incomparable_runs_are_not_compared(tmp_path, change, message, in_base):
    softmax = [make_run(tmp_path / f"a{n}", n) for n in (1, 2)]
    sparse = [make_run(tmp_path / f"b{n}", n) for n in (1, 2)]
    odd = softmax[1] if in_base else sparse[1]
    change(odd)
    of_study = compared(softmax, sparse)
    (problem,) = of_study.problems["mine"]
    assert re.match(message, problem)
    assert problem.endswith(f" in {odd.folder}")
    assert of_study.differences.empty
    rows = dict(tables(of_study)[0].rows)
    assert rows == {"softmax": ["not averaged"], "sparse": ["not averaged"]}


NOT_TESTED = "sparse is not tested against softmax: "
SUMS = "sums/test.translation.npz"


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (lambda run: run.settings["trainer"].update(precision="bf16"), ["differ in precision"]),
        (lambda run: run.data.clear(), ["training text not compared: no hash of it in 1 run"]),
        (lambda run: vars(run).update(updates=600), ["600 updates instead of the recipe's 0"]),
        (unknown, ["scored text not compared: no hash .* in 1 run"]),
        (
            lambda run: (unknown(run), (run.folder / "hypotheses/test.ref.sha256").write_text("")),
            ["no hash", f"{NOT_TESTED}the references of test differ in "],
        ),
        (with_hashes(items="1" * 16), [rf"{NOT_TESTED}the items of test differ .* in .*/b"]),
        (
            lambda run: RunFolder(run.folder).write_sums("test", "translation", np.ones((6, 44))),
            [rf"{NOT_TESTED}the sums in .*/b give 100.00, its results"],
        ),
        (
            lambda run: (run.folder / SUMS).write_bytes(b"?"),
            [rf"{NOT_TESTED}.*/test.translation.npz is broken"],
        ),
        (
            lambda run: os.truncate(run.folder / SUMS, 200),
            [rf"{NOT_TESTED}.*/test.translation.npz is broken"],
        ),
        (lambda run: (run.folder / SUMS).unlink(), [rf"{NOT_TESTED}.*/b has no {SUMS}"]),
    ],
)
def test_caveats_are_noted(tmp_path, change, messages):
    softmax, sparse = make_run(tmp_path / "a", 1), make_run(tmp_path / "b", 1)
    change(sparse)
    of_study = compared([softmax], [sparse])
    assert of_study.problems["mine"] == []
    notes = of_study.notes["mine"]
    assert len(notes) == len(messages)
    assert all(re.search(text, note) for text, note in zip(messages, notes, strict=True))
    assert notes[0] in " ".join(tables(of_study)[0].notes)


def test_smaller_training_text_than_the_papers_is_noted(tmp_path):
    softmax = make_run(tmp_path / "a", 1, train_pairs=1000)
    sparse = make_run(tmp_path / "b", 1, train_pairs=790)
    (note,) = compared([softmax], [sparse]).notes["mine"]
    assert "OTHER TEXT: ours was trained on 790 pairs, the paper on about 1,000" in note
    sparse.data["train"]["pairs"] = 800
    assert compared([softmax], [sparse]).notes["mine"] == []


# -- tables ---------------------------------------------------------------------------------------


BITS = Metric(
    "bits_per_byte", "lower", lambda sums: sums[0] / sums[1], (0, 1), "s", "window", "bits per byte"
)
DENSITY = SimpleNamespace(metrics=lambda: [BITS])


def make_density_run(folder, seed, bits):
    """A finished run with about `bits` per byte in each of 40 windows."""
    run = make_run(folder, seed)
    windows = np.random.default_rng(0).normal(bits, 0.001, 40)
    items = np.column_stack((windows * 10, np.full(40, 10.0)))
    RunFolder(folder).write_sums("test", "window", items)
    run.results = Results({"test": hashed(Measured(items, [BITS]).scores())})
    run.task, run.references, run.metrics = DENSITY, None, [BITS]
    return run


def test_tables_of_a_study_with_all_kinds_of_columns(tmp_path):
    """Bits, where lower is better, beside BLEU; a unit that is no score; numbers of others."""
    numbers = Published({"softmax": 1.0, "sparse": 0.99, "earlier": 1.25}, "OK")
    study = replace(
        STUDY,
        metrics={**METRICS, BITS.name: "bits per byte"},
        rows={**STUDY.rows, "earlier": Row("best earlier model")},
        columns={
            "bits": Column("Text", [], test="test", metric=BITS.name, paper=numbers),
            "mine": Column("Mine", [], test="test", paper=Published({"softmax": 30.0}, "r+")),
            "paper": Column("Published", paper=Published({"softmax": 30.0, "sparse": 31.5}, "r+")),
            "time": Column("Time", unit="min", paper=Published({"softmax": 4, "sparse": 3}, "r+")),
        },
    )
    softmax = [make_run(tmp_path / f"c{seed}", seed, translations(seed)) for seed in (1, 2, 3)]
    used = {
        ("softmax", "bits"): [make_density_run(tmp_path / "a", 1, 1.125)],
        ("sparse", "bits"): [make_density_run(tmp_path / "b", 1, 1.0)],
        ("softmax", "mine"): softmax,
        ("sparse", "mine"): [make_run(tmp_path / "d", 1, translations(5))],
    }
    of_study = judged(study, used, {"bits": {BITS.name: BITS}})
    alone = replace(study, columns={"bits": study.columns["bits"]}, metrics={BITS.name: "bits"})
    shown = [*tables(of_study, study), *tables(of_study, alone)]
    assert_golden("studies/columns.md", stable("\n".join(table.markdown() for table in shown)))

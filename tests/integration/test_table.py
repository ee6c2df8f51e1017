"""`headwise table` and `compare`: runs become tables; missing runs are listed and launched.

`table` writes the files of `tests/golden/table/` from runs that are fabricated.
"""

import json
import re
import shlex
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from command_line import SMALL, assert_rejected, change_config, composer, read_json, train_small
from fabricated_runs import RECIPE, csv_rows, stable, translations, write_run, write_study
from golden_files import assert_golden
from headwise.config.register import typed
from headwise.config.saved import saved_settings
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.runs.results import Results
from headwise.tasks.check import resolve
from headwise.tasks.task import task_of
from training_runs import Runs

pytestmark = pytest.mark.slow


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Write a finished run in the current folder: name, attention, seed, number of wrong words."""
    monkeypatch.chdir(tmp_path)

    def write(name, attention, seed, n_wrong, *more, **changes):
        overrides = [*RECIPE, f"attention={attention}", f"seed={seed}", *more]
        hypotheses = None if n_wrong is None else translations(n_wrong, seed)
        with composer() as make:  # with a new Hydra state, since commands reset it
            return write_run(tmp_path / name, make, overrides, hypotheses, **changes)

    return write


def table(headwise, folder, outputs, *more):
    """`headwise table study=tiny` on runs, with few resamples."""
    if not (folder / "configs").is_dir():
        write_study(folder)
    return headwise(
        "table", "--config-dir", f"{folder}/configs", "study=tiny", f"runs=[{outputs}]",
        f"output={folder}/tables", "n_resamples=50", *more,
    )  # fmt: skip


# -- tables of fabricated runs --------------------------------------------------------------------

ELSEWHERE = ("data.dir=/elsewhere", "trainer.device=cpu", "trainer.log_every=7")
FOLDERS = {  # folder -> its runs; their names say nothing of their settings
    "both": [
        ("entmax15-7", "softmax", 1, 1),
        ("x", "softmax", 2, 2),
        ("softmax-1", "entmax15", 1, 4),
        ("y", "entmax15", 2, 5),
    ],
    "one": [("a", "softmax", 1, 1)],
    # of other settings and seeds, and without their effect
    "others": [
        ("a", "softmax", 1, 1, *ELSEWHERE, "trainer.max_updates=10005"),
        ("b", "softmax", 2, 1, "model.dropout=0.3"),
        ("c", "sparsemax", 1, 1),
        ("d", "softmax", 9, 1),
        ("e", "entmax15", 1, 1, "model.dropout=0.3", {"updates": 50, "stopped_early": True}),
        ("f", "entmax15", 2, 2, {"updates": 50, "stopped_early": True}),
    ],
    "unfinished": [
        ("a", "softmax", 1, None),
        ("failed", "softmax", 2, None),
        ("c", "entmax15", 1, 1, {"status": "interrupted"}),
        ("d", "entmax15", 2, 1, "trainer.max_updates=5"),
    ],
    # one of two runs with one seed is used: of the recipe's length, of more updates, the first
    "duplicates": [
        (f"{name}{seed}", "softmax", seed, n_wrong, {"updates": updates})
        for seed, both in enumerate([(10, 20), (20, 10), (15, 20), (10, 10)], 1)
        for name, n_wrong, updates in zip("ab", (3, 1), (n * 1000 for n in both), strict=True)
    ],
}
COMMANDS = {  # golden file -> arguments of `table`
    "both": "study=tiny runs=[both]",
    "baseline": "study=tiny runs=[both] baseline=entmax15",
    "row": "study=tiny runs=[one] rows=[entmax15]",
    "others": "study=tiny runs=[others]",
    "others_changed": 'study=tiny runs=[others] seeds=[1] overrides=["model.dropout=0.3"]',
    "unfinished": "study=tiny runs=[unfinished]",
    "unfinished_changed": 'study=tiny runs=[unfinished] overrides=["trainer.max_updates=5"]',
    "duplicates": "study=tiny runs=[duplicates] seeds=[1,2,3,4]",
    "no_study": "runs=[both]",
    "of_a_sweep": "runs=[sweep-1]",
    "of_one_run": "runs=[both/x]",
}


@pytest.fixture
def fabricated(runs, tmp_path):
    """The runs of `FOLDERS`, a sweep of two of them, and the study."""
    for folder, of_folder in FOLDERS.items():
        for name, attention, seed, n_wrong, *more in of_folder:
            changes = more.pop() if more and isinstance(more[-1], dict) else {}
            runs(f"{folder}/{name}", attention, seed, n_wrong, *more, **changes)
    error = {"error": "DataError", "message": "no\ntext"}
    Path("unfinished/failed/error.json").write_text(json.dumps(error))
    Path("sweep-1").mkdir()
    for number, name in enumerate(("x", "y")):
        job = {"overrides": [f"attention={name}"], "run": f"both/{name}"}
        Path(f"sweep-1/{number}.json").write_text(json.dumps(job))
    Path("sweep-1/notes.json").write_text("of somebody else")
    write_study(tmp_path)


@pytest.mark.usefixtures("fabricated")
def test_tables_of_fabricated_runs(headwise, tmp_path):
    for name, arguments in COMMANDS.items():
        shared = ("--config-dir", "configs", f"output=tables/{name}", "n_resamples=50")
        result = headwise.ok("table", *arguments.split(), *shared)
        files = sorted(Path("tables", name).iterdir())
        texts = {path.name: path.read_text(encoding="utf-8") for path in files}
        assert next(text for file, text in texts.items() if file.endswith(".md")) in result.out
        shown = "".join(f"==> {file} <==\n{text}\n" for file, text in texts.items())
        assert_golden(f"table/{name}.txt", stable(shown))


@pytest.mark.usefixtures("fabricated")
def test_means_and_differences_are_those_of_the_results(headwise, tmp_path):
    table(headwise, tmp_path, "both")
    scores = {
        name: read_json(Path("both", name, "results.json"))["scores"]["test"]["bleu_tokenised"]
        for name, *_ in FOLDERS["both"]
    }
    one, two, three, four = (entry["score"] for entry in scores.values())
    (difference,) = csv_rows(tmp_path, "-differences")
    expected = (three + four) / 2 - (one + two) / 2
    assert float(difference["difference"]) == pytest.approx(expected, abs=1e-9)
    assert expected < 0 < float(difference["p_value"]) <= 1
    assert f"| {(one + two) / 2:.2f} ± " in Path("tables/tiny.md").read_text(encoding="utf-8")


def test_archives_give_the_tables_of_the_folders(headwise, runs, tmp_path):
    for seed in (1, 2):
        runs(f"runs/a{seed}", "softmax", seed, seed)
        runs(f"runs/b{seed}", "entmax15", seed, 1 + seed)
    runs("runs/c", "softmax", 3, 1)
    path, archive = tmp_path / "runs", tmp_path / "archive"
    sweep = "table", f"runs=[{path}]", f"output={tmp_path / 'sweep'}", "n_resamples=50"
    both = "compare", f"run={path / 'a1'}", f"other={path / 'b1'}"

    def texts():
        of_study = table(headwise, tmp_path, path, "seeds=[1,2]")
        return of_study.out, headwise.ok(*sweep).out, headwise.ok(*both).out

    from_folders = texts()
    headwise.ok("runs", f"runs=[{path}]", f"export={archive}")
    path.rename(tmp_path / "elsewhere")
    archive.rename(path)
    assert texts() == from_folders
    assert all("BLEU" in text for text in from_folders)
    page = headwise("page", f"run={path / 'a1'}")
    assert_rejected(page, 1, "in an archive of records, without weights")


KNOWN, OLD = "a" * 16, None  # hashes of the items; of version 0.1.0
PAIRS = [  # hash of the other run's items, its settings, exit code, words of the note
    (KNOWN, (), 0, ""),
    (OLD, (), 0, "the scored text of runs of 0.1.0 is not known"),
    ("b" * 16, (), 1, "the items of test differ (by their hash: another text"),
    (OLD, ("data.dir=elsewhere",), 1, "the scored text of test is not known, and the data differs"),
]


def test_only_equal_items_are_paired(headwise, runs):
    first = runs("first", "softmax", 1, 2, content=KNOWN)
    for number, (content, settings, code, note) in enumerate(PAIRS):
        other = runs(f"other{number}", "softmax", 1, 2, *settings, content=content)
        result = headwise("compare", f"run={first}", f"other={other}", "n_resamples=20")
        rows = [line.split(" | ")[3:6] for line in result.out.splitlines() if "BLEU" in line]
        assert [cell == "–" for _, *cells in rows for cell in cells] == [bool(code)] * 4
        assert {row[0] for row in rows} == {"0.00"}, "the scores are shown"
        assert note in result.out
        assert ("\n- " in result.out) == bool(note)
        if code:
            assert_rejected(result, code, "can be paired")
    unfinished = headwise("compare", f"run={first}", f"other={runs('new', 'softmax', 1, None)}")
    assert_rejected(unfinished, 1, "is interrupted; both runs must be finished")


def write_classifier(folder, labels):
    """A finished classifier of two classes, right on every example; split -> classes."""
    with composer() as make:
        config = make(["data=labelled", "data.labels=[no,yes]", "tokenizer=byte", "tracker=none"])
    run = RunFolder(folder)
    folder.mkdir()
    task = task_of(typed(config))
    resolve(task)
    run.describe(saved_settings(task.config), [])
    for split, classes in labels.items():
        true = np.eye(2)[classes]
        ones = np.ones((len(classes), 1))
        # loss, measure, 1, right, right among five, probability; by class right, true, predicted
        items = np.hstack([np.repeat(ones, 6, 1), true, true, true])
        run.write_sums(split, task.metrics()[0].unit, items)
    scores = {split: {"accuracy": {"score": 100.0}} for split in labels}
    Results(scores=scores, seed=1, updates=1).write(folder / "results.json")
    return folder


def test_classifiers_are_compared_on_the_same_labels(headwise, tmp_path, monkeypatch):
    """Of version 0.1.0, without hashes: other labels, another number of them, and the same."""
    monkeypatch.chdir(tmp_path)
    both = [{"test": [0, 1], "more": [0, 1], "same": [0, 1, 1]}]
    both += [{"test": [1, 0], "more": [0, 1, 1], "same": [0, 1, 1]}]
    one, other = (write_classifier(Path(name), of) for name, of in zip("ab", both, strict=True))
    result = headwise.ok("compare", f"run={one}", f"other={other}", "n_resamples=20")
    assert_golden("table/classifiers.md", result.out)


def test_broken_and_missing_runs_are_refused(headwise, runs, tmp_path):
    change_config(runs("runs/a", "softmax", 1, 1), trainer__an_old_key=2)
    key = "trainer.an_old_key is not known"
    assert_rejected(table(headwise, tmp_path, "runs"), 1, "runs/a/config.yaml", key)
    assert_rejected(table(headwise, tmp_path, "none"), 1, "none: folder not found")
    assert_rejected(table(headwise, tmp_path, "runs", "baseline=entmax"), 2, "softmax", "entmax15")


def test_figures_are_written_beside_the_run_or_to_the_output(headwise, runs, tmp_path):
    heads = {"update": 0, "alpha": {"cross": [[1.5]]}}
    folder = runs("runs/a", "softmax", 1, 1)
    (folder / "heads.jsonl").write_text(json.dumps(heads) + "\n")
    headwise.ok("figures", f"run={folder}")
    headwise.ok("figures", f"runs=[{folder.parent}/*]", "output=drawn")
    assert {path.parent for path in tmp_path.rglob("alpha*.svg")} == {
        folder / "figures",
        tmp_path / "drawn",
    }


# -- commands of missing runs ---------------------------------------------------------------------

TRAINED = (*SMALL, "data.test=[test_a]")


@pytest.fixture(scope="module")
def softmax_trained(tmp_path_factory):
    """Outputs with one run, of softmax and seed 1."""
    folder = tmp_path_factory.mktemp("trained")
    train_small(folder, "attention=softmax", "seed=1")
    return folder


def column(*overrides, **more):
    return {"label": "Mine", "test": "test_a", "overrides": [*TRAINED, *overrides], **more}


def write_real_study(folder, **changes):
    write_study(folder, **{"columns": {"mine": column()}, "seeds": [1], **changes})


def test_listed_command_fills_a_cell(headwise, softmax_trained, tmp_path):
    write_real_study(tmp_path)
    result = table(headwise, tmp_path, softmax_trained / "outputs")
    (command,) = re.findall(r"`(headwise train .*)`", result.out)
    headwise.ok(*shlex.split(command)[1:])
    result = table(headwise, tmp_path, softmax_trained / "outputs")
    assert "## Missing" not in result.out
    assert len(csv_rows(tmp_path, metric="bleu_tokenised")) == 2


def test_launch_trains_missing_runs_once_and_continues_after_a_failure(
    headwise, softmax_trained, tmp_path
):
    text, outputs = softmax_trained / "text", tmp_path / "outputs"
    rows = {
        "softmax": {"overrides": ["attention=softmax", "data.dir=/nowhere"]},
        "entmax15": {"overrides": ["attention=entmax15", f"data.dir={text}"]},
    }
    shutil.copytree(softmax_trained / "outputs", outputs)
    # two columns score one run
    names = ("mine", "again")
    columns = {name: column(f"paths.outputs={outputs}") | {"label": name} for name in names}
    write_real_study(tmp_path, rows=rows, columns=columns, seeds=[1, 2])
    result = table(headwise, tmp_path, outputs, "launch=true")
    assert_rejected(result, 1, "1 of the launched commands failed", "attention=softmax")
    for name in names:
        trained = csv_rows(tmp_path, row="entmax15", metric="bleu", column=name)
        assert {row["seed"] for row in trained} == {"1", "2"}
    assert "- softmax × mine, seed 2: `" in result.out
    assert len(re.findall(r"^\[\d/\d\] headwise train", result.out, re.MULTILINE)) == 2


def test_runs_start_from_the_runs_of_another_column(
    headwise, softmax_trained, tmp_path, monkeypatch
):
    jobs, outputs = Runs(tmp_path / "jobs"), tmp_path / "outputs"

    def run(command, **_):  # python -c MAIN train …, in a process with the libraries imported
        return Mock(returncode=jobs.wait(jobs.start(command[4:])).code)

    monkeypatch.setattr("headwise.commands.table.subprocess", Mock(run=run))
    shared = [f"paths.outputs={outputs}", f"data.dir={softmax_trained / 'text'}"]
    shared += ["attention=softmax", "trainer.max_updates=2", "trainer.validate_every=2"]
    columns = {
        "tuned": column(*shared, "optimizer.eps=1e-6", init="first"),
        "first": column(*shared),
    }
    rows = {"softmax": {"overrides": []}}
    write_study(tmp_path, columns=columns, rows=rows, seeds=[1, 2])
    result = table(headwise, tmp_path, outputs, "launch=true")
    assert result.code == 0
    assert "## Missing" not in result.out
    folders = {
        name: {
            row["seed"]: Path(row["run"])
            for row in csv_rows(tmp_path, row="softmax", column=name, metric="bleu")
        }
        for name in columns
    }
    for seed, folder in folders["tuned"].items():
        origin = Record(folder).saved["init_from"]
        assert Path(origin) == folders["first"][seed]


def test_heads_are_analysed_and_shown_without_weights(headwise, softmax_trained, tmp_path):
    write_real_study(tmp_path)
    records = tmp_path / "records"
    shutil.copytree(softmax_trained / "outputs", records)
    analysed = table(headwise, tmp_path, records, "heads=true")
    assert analysed.code == 0
    assert "density, mean, cross-attention" in analysed.out
    for checkpoints in records.rglob("checkpoints"):
        shutil.rmtree(checkpoints)
    heads = analysed.out[analysed.out.index("## Heads, Mine") :]
    assert heads in table(headwise, tmp_path, records, "heads=true").out
    for analysis in records.rglob("analysis"):
        shutil.rmtree(analysis)
    result = table(headwise, tmp_path, records, "heads=true")
    assert result.code == 0
    assert " without weights, such as " in result.out
    assert "## Heads" not in result.out

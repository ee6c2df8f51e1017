"""`headwise runs`: the table of runs, from small files alone."""

import csv
import fcntl
import io
import json
import re
import runpy
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import assert_rejected, read_json, without_hashes
from guide import ROOT
from headwise.commands.runs import runs
from headwise.config.commands import RunsConfig
from headwise.errors import ConfigError
from headwise.files import is_locked, write_json
from headwise.runs.archive import export_records, find_records
from headwise.runs.folder import RunFolder
from headwise.runs.listing import choice_of
from headwise.runs.record import Record, read_yaml
from headwise.runs.results import Results, Summary

SUMMARY = Summary("translation", "bleu", ["data=a", "seed=1"], max_updates=100)


def write_run(folder, summary=SUMMARY, finished=False):
    run = RunFolder(folder)
    run.make()
    (folder / "config.yaml").touch()
    if finished:
        results = Results({"test": {"bleu": {"score": 20.0 + float(summary.overrides[1][5:])}}})
        results.write(run.results)
        summary = summary.with_results(results)
    summary.write(folder)
    return run


@pytest.fixture
def printed(capsys, tmp_path):
    """Options -> the listing of the runs in the test's folder."""

    def text(**options):
        runs(RunsConfig(runs=[str(tmp_path)], **options))
        return capsys.readouterr().out

    return text


@pytest.fixture
def listed(printed):
    """Options -> the rows of runs in the test's folder, by the name of the folder."""

    def rows(**options):
        return {Path(row["run"]).name: row for row in json.loads(printed(format="json", **options))}

    return rows


def test_finished_run_is_listed_with_its_scores(headwise, run, tmp_path, listed):
    row = listed()["moved"]
    scores = read_json(run / "results.json")["scores"]
    assert row["status"] == "finished"
    assert row["test_a/bleu"] == scores["test_a"]["bleu"]["score"]
    assert list(listed(where="`model.d_model` > 0 and `data.name` != 'x'")) == ["moved"]
    assert row["test_a/chrf"] == scores["test_a"]["chrf"]["score"]
    assert (row["update"], row["max_updates"], row["task"]) == (2, 2, "translation")
    lines = headwise.ok("runs", f"runs=[{tmp_path}]").out.splitlines()
    assert lines[0].split()[:6] == ["status", "update", "left", "task", "valid/bleu", "test_a/bleu"]
    assert lines[-1] == "1 run: 1 finished"
    assert 0 < read_json(run / "summary.json")["started"] < time.time()
    (run / "summary.json").unlink()  # written by an earlier version, or pruned
    assert listed()["moved"] == row
    shutil.copytree(run, tmp_path / "other")
    settings = tmp_path / "other" / "config.yaml"
    settings.write_text(settings.read_text().replace("alpha_init: normal", "alpha_init: 1.5"))
    typed = tmp_path / "other" / "overrides.yaml"  # the first typed neither
    typed.write_text("[attention=softmax, trainer.log_every=9]")
    assert list(listed(where="attention == 'alpha_entmax' and loss == 'cross_entropy'")) == [
        "moved"
    ]
    assert choice_of("positions", "ALiBi") is None  # the class of two choices
    assert list(listed(where="`trainer.log_every` > 0 and seed > 0")) == ["moved", "other"]
    by_numbers_and_texts = {"sort": "-attention.alpha_init"}
    assert list(listed(**by_numbers_and_texts)) == ["moved", "other"]
    write_run(tmp_path / "broken")  # without settings: its seed is an override, a text
    assert "broken" in listed(where="seed > 0")


def test_hashes_are_added_to_runs_of_0_1_0(run, tmp_path, capsys):
    """Those of a run and of its archive are as written today; data that changed get none."""
    add_hashes = runpy.run_path(str(ROOT / "scripts" / "hash_records.py"))["main"]
    path, archive, data = run / "results.json", tmp_path / "records", read_json(run / "data.json")
    results = without_hashes(path)
    old = read_json(path)
    export_records([Record(run)], archive)
    for changed in ("train.en", "test_a.en"):
        other = shutil.copytree(read_yaml(run / "config.yaml")["data"]["dir"], tmp_path / changed)
        first, *lines = (other / changed).read_text().splitlines()
        words = reversed(first.split())  # as many tokens
        (other / changed).write_text("\n".join([" ".join(words), *lines]))
        add_hashes([str(run), str(archive), f"data.dir={other}"])
    reasons = re.findall(": (.*): 1 run", capsys.readouterr().out)
    assert reasons[::2] == ["another text of the training", "other references in test_a"]
    assert read_json(path) == old
    add_hashes([str(run), str(archive)])
    (archived,) = find_records([str(archive)], Record)
    assert read_json(path) == archived.part("results") == results
    later = {"computed_later": ["content", "items"]}
    assert read_json(run / "data.json") == archived.part("data") == data | later


def test_last_of_several_overrides_is_listed(tmp_path, listed):
    for name, overrides in {"a": ["+seed=1", "seed=3", "seed=2"], "b": ["seed=1"]}.items():
        write_run(tmp_path / name, replace(SUMMARY, overrides=overrides))
    assert {name: row["seed"] for name, row in listed(where="seed < 3").items()} == {
        "a": "2",
        "b": "1",
    }


def test_unfinished_runs(tmp_path, listed, printed):
    now = time.time()
    run = write_run(tmp_path / "a", replace(SUMMARY, update=20, started=now - 60))
    lines = [{"update": 40, "valid/bleu": 7.5}, {"update": 50, "train/loss": 2.0}]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"upd')
    with run.claimed():
        row = listed()["a"]
        assert (row["status"], row["update"], row["valid/bleu"]) == ("running", 50, 7.5)
        assert 90 <= row["seconds_left"] <= 100  # 30 updates in 60 s, 50 more
    run.write_json("checkpoints/last.json", {"update": 40})
    row = listed()["a"]
    assert (row["status"], row["update"], row["logged"]) == ("interrupted", 40, 50)
    assert "40/100 (logged 50)" in printed()
    assert "seconds_left" not in row
    run.write_json("error.json", {"error": "DataError", "message": "why"})
    assert listed()["a"].items() >= {"status": "failed", "update": 40}.items()


def test_finished_run_that_is_lengthened(tmp_path, listed):
    run = write_run(tmp_path / "a", finished=True)
    assert listed()["a"]["status"] == "finished"
    replace(SUMMARY, max_updates=200, update=100).write(run.path)
    assert listed()["a"]["status"] == "interrupted"
    assert listed()["a"]["max_updates"] == 200


def test_broken_files_are_rows(tmp_path, listed):
    write_run(tmp_path / "whole")
    for name, text in (("cut", '{"task": "tra'), ("foreign", '{"scores": 3}'), ("empty", "{}")):
        write_run(tmp_path / name)
        (tmp_path / name / "summary.json").write_text(text)
    states = {name: row["status"] for name, row in listed().items()}
    assert states == dict.fromkeys(("cut", "foreign", "empty"), "broken") | {"whole": "interrupted"}


def test_run_with_a_path_for_a_split_is_a_row(run, listed):
    write_json(run / "results.json", {"scores": {"../x": {}}})
    assert set(listed(where="status == 'finished'")) == {"moved"}
    (run / "summary.json").unlink()
    assert "split must be a plain name" in listed()["moved"]["reason"]


def test_columns_selection_and_order(tmp_path, listed, printed):
    for seed in (9, 10, 2):
        overrides = ["data=a", f"seed={seed}"]
        write_run(tmp_path / f"s{seed}", replace(SUMMARY, overrides=overrides), finished=seed != 2)
    assert all("data" not in row and "seed" in row for row in listed().values())
    assert list(listed(sort="seed")) == ["s2", "s9", "s10"]
    assert list(listed(sort="-test/bleu")) == ["s10", "s9", "s2"], "without a value: last"
    assert list(listed(where="status == 'finished' and seed < 10")) == ["s9"]
    assert list(listed(where="`test/bleu` < 30 or seed == 10")) == ["s10", "s9"]
    assert set(listed(where="status != 'finished' and update >= 0")) == {"s2"}
    assert listed(where="status == 'failed'") == {}
    table = printed(format="csv", sort="seed")
    assert [row["test/bleu"] for row in csv.DictReader(io.StringIO(table))] == ["", "29.0", "30.0"]


def test_control_characters_are_not_printed(tmp_path, printed):
    run = write_run(tmp_path / "a")
    run.write_json("error.json", {"error": "E", "message": "a\x1b[2Jb\nc", "overrides": []})
    lines = printed().splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("E: a[2Jb c")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "yaml"}, "format must be one of csv, json, table"),
        ({"sort": "tset/bleu"}, "Did you mean test/bleu?"),
        ({"where": "`tset/bleu` > 1"}, "Did you mean test/bleu?"),
        ({"where": "status = 'failed'"}, "Type where='status == \"failed\"'"),
        ({"where": "update=1 and test/bleu==true"}, "'update == 1 and `test/bleu` == True'"),
        ({"where": 'run.eq("a=b") and task=x'}, """'run.eq("a=b") and task == "x"'"""),
        ({"where": "status=failed or nothing=1"}, "columns: status, "),
        (
            {"where": "status"},
            "columns: status, task, metric, update, max_updates, test/bleu, run",
        ),
        ({"where": "update < many"}, "name 'many' is not defined"),
        ({"where": "update < @pd.NA"}, "where=update < @pd.NA: "),
        ({"where": "update < @config.sort"}, "where=update < @config.sort: "),
    ],
)
def test_wrong_options(tmp_path, printed, options, message):
    write_run(tmp_path / "a", finished=True)
    with pytest.raises(ConfigError, match=re.escape(message)):
        printed(**options)


def test_queries_are_as_typed(headwise, tmp_path):
    write_run(tmp_path / "a", finished=True)
    runs = f"runs=[{tmp_path}]"
    failed = headwise.ok("runs", runs, 'where=status == "failed" and update < 3')
    assert failed.out == "status  update  left  task  run\n0 runs\n"
    for where in ("where=update in [0, 100]", 'where="update in [0, 100]"'):
        assert headwise.ok("runs", runs, where).out.endswith("1 run: 1 finished\n")
    assert_rejected(headwise("runs", f"runs=[{tmp_path}/b]"), 1, "folder not found")
    none = headwise("runs", runs, 'where=status == "finishd"', f"export={tmp_path}/records")
    assert_rejected(none, 1, "no run to export, so nothing is written")
    assert_rejected(headwise("runs", runs, "export=/proc/x"), 1, "/proc/x: No such file")
    written = headwise.ok("runs", runs, f"export={tmp_path}/records").out
    assert written.endswith(f"\nwritten to {tmp_path}/records: 1 run\n")


def test_listing_does_not_reject_a_start(tmp_path):
    """`is_locked` holds the lock for an instant, in which a training may start."""
    run = write_run(tmp_path / "a")
    with open(run.path / ".lock", "rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        threading.Timer(0.06, lambda: fcntl.flock(handle, fcntl.LOCK_UN)).start()
        with run.claimed():
            assert is_locked(run.path / ".lock")
            time.sleep(0.1)
    assert not is_locked(run.path / ".lock")
    assert not is_locked(tmp_path / "missing")

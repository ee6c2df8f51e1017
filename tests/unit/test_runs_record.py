"""Records of runs: the same from a run folder and from an archive."""

import json
import lzma
import shutil
from unittest.mock import Mock

import numpy as np
import pytest

import headwise
from command_line import composer
from fabricated_runs import RECIPE, translations, write_run
from headwise.commands.analyze import analyze_folders
from headwise.config.commands import AnalyzeConfig
from headwise.errors import RunError
from headwise.files import write_json
from headwise.runs.archive import existing_record, export_records, find_records
from headwise.runs.folder import ARCHIVE, RunFolder, find_folders
from headwise.runs.listing import status
from headwise.runs.record import PARTS, SUMS, Record
from headwise.runs.results import Summary

HASHES = {"text": "1" * 64, "vocabulary": "v", "init_weights": "w"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two finished runs and an unfinished one, in a folder."""
    above = tmp_path_factory.mktemp("runs")
    with composer() as make:
        for name, wrong in (("a", 1), ("b", 3), ("c", None)):
            lines = None if wrong is None else translations(wrong)
            write_run(above / name, make, [*RECIPE, f"seed={wrong or 9}"], lines)
    (above / "a" / "analysis").mkdir()
    (above / "a" / "analysis" / "heads.csv").write_text("site,layer\n", encoding="utf-8")
    (above / "a" / "pruned.json").write_text('{"origin": "x"}', encoding="utf-8")
    (above / "b" / "log.txt").write_text("not part of a record", encoding="utf-8")
    swept = {"trainer.max_updates": 4, "model.recompute": True}
    write_json(above / "b" / "data.json", {**HASHES, "swept": swept})
    RunFolder(above / "b").write_sums("test", "loss", np.array([[0.1, 3], [1 / 3, 4]]))
    return above


@pytest.fixture(scope="module")
def archive(folders, tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "study"
    export_records(find_records([str(folders)], Record), path)
    return path


def test_archived_records_are_equal_to_the_folders(folders, archive):
    for run in find_records([str(archive)], Record):
        folder = Record(folders / run.folder.name)
        for name in PARTS:
            assert run.part(name) == folder.part(name)
        assert run.settings == folder.settings
        assert run.config == folder.config
        assert run.results == folder.results
        assert run.names("analysis/*") == folder.names("analysis/*")
        assert run.json("pruned.json") == folder.json("pruned.json")
        sums = dict(run.all_sums())
        assert sums.keys() == dict(folder.all_sums()).keys()
        for name, items in folder.all_sums():
            assert sums[name].dtype == np.float64
            assert np.array_equal(sums[name], items)
        assert run.sums("test", "nothing") is None


def test_texts_of_the_corpus_and_logs_are_not_exported(archive):
    (run,) = find_records([str(archive / "b")], Record)
    assert run.names("*") == ["hypotheses/test.ref.sha256", "hypotheses/test.txt"]


def test_the_same_records_give_the_same_bytes(folders, archive, tmp_path):
    for source in (folders, archive):
        export_records(find_records([str(source)], Record), tmp_path / source.name)
        written, expected = (
            {path.name: path.read_bytes() for path in folder.iterdir()}
            for folder in (tmp_path / source.name, archive)
        )
        assert written == expected, "no temporary file is left"
        assert len(written) == 2


def test_exact_numbers_are_stored_in_half_the_space(archive):
    arrays = np.load(archive / SUMS)
    assert arrays["b/test.translation"].dtype == np.float32  # counts
    assert arrays["b/test.loss"].dtype == np.float64


def test_runs_are_chosen_by_name(folders, archive, tmp_path):
    def names(*patterns):
        return [run.folder.name for run in find_records(patterns, Record)]

    assert names(str(archive)) == names(str(archive.parent)) == ["a", "b", "c"]
    assert names(str(archive / "[bc]"), str(archive / "b")) == ["b", "c"]
    assert names(str(folders / "a"), str(archive / "b")) == ["a", "b"]
    (link := tmp_path / "link").symlink_to(archive)
    assert names(str(link / "b"), f"{archive}/", str(link), str(archive / "b")) == ["b", "a", "c"]
    with pytest.raises(RunError, match=r"study/bb: no such run .* Did you mean .*study/b\?"):
        names(str(archive / "bb"))
    assert existing_record(str(archive / "b"), Record).folder == archive / "b"
    assert existing_record(str(folders / "b"), Record).folder == folders / "b"
    with pytest.raises(RunError, match=r"compare=.* holds no run"):
        existing_record(str(folders / "x"), Record, "compare")


def archive_of_0_1_0(folder, lines):
    """An archive with these lines and the statistics of one run."""
    folder.mkdir()
    text = "".join(f"{json.dumps({'format': 1, **line})}\n" for line in lines)
    (folder / ARCHIVE).write_bytes(lzma.compress(text.encode()))
    np.savez(folder / SUMS, **{"a/test.loss": np.ones((2, 3))})
    return folder


def test_an_archive_is_replaced_only_on_demand_and_at_once(folders, tmp_path, monkeypatch):
    def names():
        runs = find_records([str(path)], Record)
        return {run.folder.name: [name for name, _ in run.all_sums()] for run in runs}

    def refused(chosen, reason):
        with pytest.raises(RunError, match=reason):
            export_records(chosen, path)

    path, runs = tmp_path / "study", find_records([str(folders)], Record)
    refused([], "no run to export, so nothing is written")
    refused([*runs, *runs[:1]], "several runs are called a")
    archive_of_0_1_0(path, [{"run": "a"}])
    refused(runs, "study is an archive already: overwrite=true")
    with monkeypatch.context() as patches:
        patches.setattr(lzma, "open", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            export_records(runs, path, overwrite=True)
    assert names() == {"a": ["test.loss"]}, "still both files of the old archive"
    for chosen in (runs, runs[1:2]):
        export_records(chosen, path, overwrite=True)
        assert list(names()) == [run.folder.name for run in chosen]
        assert names()["b"] == ["test.loss", "test.translation"]
        assert len(list(path.iterdir())) == 2


def test_a_folder_of_runs_is_no_archive(folders, archive, tmp_path):
    above = shutil.copytree(folders, tmp_path / "runs")
    for path in (above, above / "a", tmp_path):
        with pytest.raises(RunError, match="has runs in it"):
            export_records([Record(folders / "b")], path)
    for place in (above, above / "c"):  # 0.1.0 wrote archives there
        shutil.copytree(archive, place, dirs_exist_ok=True)
    shutil.rmtree(above / "b")
    (above / "a").rename(above / "new")
    for pattern in (above, above / "*"):
        assert find_folders([str(pattern)]) == [above / "c", above / "new"]
        runs = find_records([str(pattern), str(above / "new")], Record)
        assert sorted(run.folder.name for run in runs) == ["a", "b", "c", "new"]
        # what is read of folders anew, and of archives at once
        assert [r.folder.name for r in runs if r.part("data") is not r.part("data")] == ["c", "new"]
    assert existing_record(str(above / "new"), Record).part("metrics")
    with pytest.raises(RunError, match="in an archive"):
        find_folders([str(above / "b")])
    with pytest.raises(RunError, match=r"run=.* matches 4 runs: name one"):
        existing_record(str(above / "*"), Record)


def test_archived_runs_keep_their_states_and_results(folders, tmp_path):
    """Also the results of each evaluation."""
    states = "failed", "interrupted", "pruned", "running"
    for state in states:
        run = RunFolder(shutil.copytree(folders / "c", tmp_path / "runs" / state))
        run.make()
        Summary("own", "bleu", [state], 100, update=20).write(run.path)
        run.metrics.write_text('{"update": 40, "valid/bleu": 7.5}\n{"update": 50, "x": 2}\n')
        run.write_json("scaled.json", {"scores": {}})
    write_json(tmp_path / "runs" / "failed" / "error.json", {"error": "E", "message": "m"})
    write_json(tmp_path / "runs" / "pruned" / "pruned.json", {"origin": "x"})
    with RunFolder(tmp_path / "runs" / "running").claimed():
        runs = find_records([str(tmp_path / "runs"), str(folders / "b")], Record)
        listed = [status(run) for run in runs]
        export_records(runs, tmp_path / "study")
    listed[3].pop("seconds_left")
    archived = find_records([str(tmp_path / "study")], Record)
    assert [status(run) for run in archived] == listed
    assert [row["status"] for row in listed] == [*states, "finished"]
    assert (listed[1]["task"], listed[1]["valid/bleu"]) == ("own", 7.5)
    assert [run.updates for run in archived] == [50, 50, 50, 50, 10_000]
    assert all(run.json("scaled.json") == {"scores": {}} for run in archived[:4])


def test_tasks_of_old_archives_have_their_names(tmp_path):
    targets = {
        "SequenceTask": "sequence", "headwise.tasks.stream.masked_lm.MaskedLM": "masked_lm",
        "MaskedLM": "masked_lm", "Translation": "translation", "mine.Majority": "majority",
    }  # fmt: skip
    rest = {"overrides": [], "metrics": [{"update": 2, "valid/loss": 0.5}]}
    trainer = {"monitor": "loss", "max_updates": 3}
    configs = ({"task": {"_target_": target}, "trainer": trainer} for target in targets)
    lines = [{**rest, "run": str(n), "config": config} for n, config in enumerate(configs)]
    archive_of_0_1_0(tmp_path / "study", lines)
    rows = [status(run) for run in find_records([str(tmp_path / "study")], Record)]
    assert [row["task"] for row in rows] == list(targets.values())
    assert {(row["update"], row["valid/loss"]) for row in rows} == {(2, 0.5)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"?" * 40, "is broken: LZMAError"),
        (lzma.compress(b'{"format": 1, "run": "a"}')[:-8], "is broken: EOFError"),
        (lzma.compress(b"{"), "is broken: JSONDecodeError"),
        (lzma.compress(b"[]"), "is broken: TypeError"),
        (lzma.compress(b'{"run": "a"}'), "is broken: KeyError"),
        (lzma.compress(b'{"format": "x", "run": "a"}'), "has format 'x', written by a newer"),
        (lzma.compress(b'{"format": 3, "run": "a"}'), "has format 3, written by a newer version"),
    ],
)
def test_broken_archives_are_rejected(tmp_path, content, message):
    (tmp_path / ARCHIVE).write_bytes(content)
    with pytest.raises(RunError, match=message):
        find_records([str(tmp_path)], Record)


def test_settings_of_an_archive_are_checked(tmp_path):
    archive_of_0_1_0(tmp_path / "study", [{"run": "a", "config": {"seed": "${oc.env:HOME}"}}])
    (run,) = find_records([str(tmp_path)], Record)
    with pytest.raises(RunError, match=r"a/config\.yaml is not a resolved configuration"):
        _ = run.settings


def test_commands_that_need_weights_reject_archives(archive):
    for path in (archive, archive / "a"):
        with pytest.raises(RunError, match=f"run={path} is in an archive of records"):
            headwise.load(path)
    for chosen in (archive, archive.parent, archive / "a"):
        with pytest.raises(RunError, match="is in an archive of records, without weights"):
            analyze_folders(AnalyzeConfig(runs=[str(chosen)]))


def test_frame_has_a_row_a_run(folders, archive):
    frames = [headwise.records(path) for path in (folders, archive)]
    assert frames[0].drop(columns="run").equals(frames[1].drop(columns="run"))
    assert list(frames[1].run) == [str(archive / name) for name in "abc"]
    assert list(frames[0].seed) == [1, 3, 9]
    assert set(frames[0]["attention._target_"]) == {"AlphaEntmax"}
    assert frames[0]["test/bleu"].notna().tolist() == [True, True, False]
    assert "test/search" not in frames[0]
    for name in frames[0]:
        groups = frames[0].groupby(name, dropna=False)  # every value has a hash
        assert groups.ngroups == frames[0][name].nunique(dropna=False), name
    with pytest.raises(RunError, match=r"^runs/of/mine: "):
        headwise.records("runs/of/mine")
    # what tells recipes of equal settings apart
    row = frames[0].iloc[1]
    assert {key: row[key] for key in HASHES} == HASHES
    assert (row["trainer.max_updates"], row["model.recompute"]) == (4, True)

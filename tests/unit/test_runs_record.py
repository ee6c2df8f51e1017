"""Records of runs: the same from a run folder and from an archive."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise
from command_line import composer
from fabricated_runs import RECIPE, translations, write_run
from headwise.commands.analyze import analyze_folders
from headwise.config.commands import AnalyzeConfig
from headwise.errors import RunError
from headwise.runs.folder import ARCHIVE, RunFolder
from headwise.runs.listing import status
from headwise.runs.record import (
    PARTS,
    SUMS,
    Record,
    existing_record,
    export_records,
    find_records,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    RunFolder(above / "b").write_sums("test", "loss", np.array([[0.1, 3], [1 / 3, 4]]))
    return above


@pytest.fixture(scope="module")
def archive(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results") / "study"
    export_records(find_records([str(folders)], Record), path)
    return path


def test_archived_records_are_equal_to_the_folders(folders: Path, archive: Path) -> None:
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


def test_texts_of_the_corpus_and_logs_are_not_exported(archive: Path) -> None:
    (run,) = find_records([str(archive / "b")], Record)
    assert run.names("*") == ["hypotheses/test.ref.sha256", "hypotheses/test.txt"]


def test_the_same_records_give_the_same_bytes(folders: Path, archive: Path, tmp_path: Path) -> None:
    for source in (folders, archive):
        export_records(find_records([str(source)], Record), tmp_path / source.name)
        for name in (ARCHIVE, SUMS):
            assert (tmp_path / source.name / name).read_bytes() == (archive / name).read_bytes()
    names = {path.name for path in (tmp_path / "study").iterdir()}
    assert names == {ARCHIVE, SUMS}, "no temporary file is left"


def test_exact_numbers_are_stored_in_half_the_space(archive: Path) -> None:
    arrays = np.load(archive / SUMS)
    assert arrays["b/test.translation"].dtype == np.float32  # counts
    assert arrays["b/test.loss"].dtype == np.float64


def test_runs_are_chosen_by_name(folders: Path, archive: Path) -> None:
    def names(*patterns: str) -> list[str]:
        return [run.folder.name for run in find_records(patterns, Record)]

    assert names(str(archive)) == names(str(archive.parent)) == ["a", "b", "c"]
    assert names(str(archive / "[bc]"), str(archive / "b")) == ["b", "c"]
    assert names(str(folders / "a"), str(archive / "b")) == ["a", "b"]
    with pytest.raises(RunError, match=r"study/bb: no such run .* Did you mean .*study/b\?"):
        names(str(archive / "bb"))
    assert existing_record(str(archive / "b"), Record).folder == archive / "b"
    assert existing_record(str(folders / "b"), Record).folder == folders / "b"
    with pytest.raises(RunError, match=r"compare=.* holds no run"):
        existing_record(str(folders / "x"), Record, "compare")


def test_listing_is_that_of_the_folders(folders: Path, archive: Path) -> None:
    listed = [
        [status(run) for run in find_records([str(path)], Record)] for path in (folders, archive)
    ]
    assert listed[0] == listed[1]
    assert [row["status"] for row in listed[0]] == ["finished", "finished", "interrupted"]


def test_runs_of_one_name_are_not_exported(folders: Path, tmp_path: Path) -> None:
    runs = [Record(folders / "a"), Record(folders / "b"), Record(folders / "a")]
    with pytest.raises(RunError, match="several runs are called a"):
        export_records(runs, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"?" * 40, "is broken: LZMAError"),
        (lzma.compress(b'{"format": 1, "run": "a"}')[:-8], "is broken: EOFError"),
        (lzma.compress(b"{"), "is broken: JSONDecodeError"),
        (lzma.compress(b"[]"), "is broken: TypeError"),
        (lzma.compress(b'{"run": "a"}'), "is broken: KeyError"),
        (lzma.compress(b'{"format": 2, "run": "a"}'), "has format 2, expected 1"),
    ],
)
def test_broken_archives_are_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / ARCHIVE).write_bytes(content)
    with pytest.raises(RunError, match=message):
        find_records([str(tmp_path)], Record)


def test_settings_of_an_archive_are_checked(tmp_path: Path) -> None:
    line = {"format": 1, "run": "a", "config": {"seed": "${oc.env:HOME}"}}
    (tmp_path / ARCHIVE).write_bytes(lzma.compress(json.dumps(line).encode()))
    (run,) = find_records([str(tmp_path)], Record)
    with pytest.raises(RunError, match=r"a/config\.yaml is not a resolved configuration"):
        _ = run.settings


def test_commands_that_need_weights_reject_archives(archive: Path) -> None:
    for path in (archive, archive / "a"):
        with pytest.raises(RunError, match=f"run={path} is in an archive of records"):
            headwise.load(path)
    for chosen in (archive, archive.parent, archive / "a"):
        with pytest.raises(RunError, match="is in an archive of records, without weights"):
            analyze_folders(AnalyzeConfig(runs=[str(chosen)]))


def test_frame_has_a_row_a_run(folders: Path, archive: Path) -> None:
    frames: list[Any] = [headwise.records(path) for path in (folders, archive)]
    assert frames[0].drop(columns="run").equals(frames[1].drop(columns="run"))
    assert list(frames[1].run) == [str(archive / name) for name in "abc"]
    assert list(frames[0].seed) == [1, 3, 9]
    assert set(frames[0]["attention._target_"]) == {"AlphaEntmax"}
    assert frames[0]["test/bleu"].notna().tolist() == [True, True, False]

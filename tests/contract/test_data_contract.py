"""Contract of every kind of data: what is read, and its cache."""

import builtins
import multiprocessing
import os
import shutil
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest

from data_kinds import BPE, KINDS, SPLITS
from headwise.data.cache import make_once
from headwise.errors import DataError
from small_blocks import small_blocks, small_pools

__all__ = ["small_blocks", "small_pools"]  # fixtures


def kinds(chosen=lambda kind: True):
    return pytest.mark.parametrize("kind", list(filter(chosen, KINDS)), ids=lambda kind: kind.name)


every_kind, kinds_of_files = kinds(), kinds(lambda kind: kind.has_files)


def contents(folder):
    """The files of prepared data; the manifest, which has paths' hashes and counts, apart."""
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"
    }


def edit(folder, kind, split):
    """Change the first value of a split: its files keep their times."""
    before = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    content = kind.content(split)
    changed = [*content[1:2], *content[1:]]
    if isinstance(content, bytes):
        changed = bytes([content[0] ^ 1]) + content[1:]
    shutil.rmtree(folder)
    kind.fill(folder, **{split: changed})
    for path, status in before.items():
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return changed


def status(folder):
    files = (path for path in folder.rglob("*") if path.name != "hashes.json")
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


@every_kind
def test_what_is_read_is_what_was_written(tmp_path, kind):
    data = kind.prepared(kind.fill(tmp_path / "data"), tmp_path)
    for split in SPLITS:
        assert kind.read(data, split) == kind.content(split), split


@every_kind
def test_second_preparation_changes_no_file(tmp_path, kind):
    first = kind.prepared(kind.fill(tmp_path / "data"), tmp_path)
    before = status(tmp_path / "cache")
    second = kind.prepared(tmp_path / "data", tmp_path)
    assert status(tmp_path / "cache") == before
    assert (second.fingerprint, second.report) == (first.fingerprint, first.report)
    (folder,) = (tmp_path / "cache" / "encoded").glob("[!.]*[!k]")  # no partial folder
    assert folder == second.folder


@kinds_of_files
def test_a_copy_is_the_same_data_and_an_edit_is_other_data(tmp_path, kind):
    """Also an edit that keeps the times of files."""
    folder = kind.fill(tmp_path / "data")
    first = kind.prepared(folder, tmp_path)
    kind.fill(tmp_path / "copy")
    copy = kind.prepared(tmp_path / "copy", tmp_path)
    assert (copy.fingerprint, copy.folder) == (first.fingerprint, first.folder)
    for split in SPLITS:
        changed = edit(folder, kind, split)
        data = kind.prepared(folder, tmp_path)
        assert kind.read(data, split) == changed
        # a run can be scored on another test set
        assert (data.fingerprint == first.fingerprint) == (split == "test")
        shutil.rmtree(folder)
        kind.fill(folder)


@every_kind
def test_other_settings_make_other_data(tmp_path, kind):
    kind.fill(tmp_path / "data")
    others = [kind.prepared(tmp_path / "data", tmp_path, **other) for other in ({}, *kind.others)]
    assert len({data.fingerprint for data in others}) == len(others)


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        pytest.param(kind, name, id=f"{kind.name} {name}")
        for kind in KINDS
        for name in kind.packages
    ],
)
def test_another_version_of_a_converter_makes_other_data(tmp_path, monkeypatch, kind, package):
    first, found = kind.prepared(kind.fill(tmp_path / "data"), tmp_path), metadata.distributions
    other = lambda name: [Mock(version="9")] if name == package else found(name=name)  # noqa: E731
    texts = {*(tmp_path / "cache").glob("corpora/*/train-cleaned-*")}
    monkeypatch.setattr(metadata, "distributions", other)
    assert kind.prepared(tmp_path / "data", tmp_path).fingerprint != first.fingerprint
    assert not texts or texts < {*(tmp_path / "cache").glob("corpora/*/train-cleaned-*")}


@every_kind
def test_damaged_or_incomplete_data_are_made_again(tmp_path, kind):
    first = kind.prepared(kind.fill(tmp_path / "data"), tmp_path)
    before = contents(first.folder)
    for name in [*before, "manifest.json"]:
        path = first.folder / name
        path.write_bytes(path.read_bytes()[:-1] if name != "train.starts" else b"")
        assert contents(kind.prepared(tmp_path / "data", tmp_path).folder) == before, name
    path.unlink()
    partial = first.folder.with_name(f"{first.folder.name}.partial")  # of a killed process
    partial.mkdir()
    (partial / "other").touch()
    assert contents(kind.prepared(tmp_path / "data", tmp_path).folder) == before
    assert not partial.exists()


@every_kind
def test_an_interruption_leaves_no_files(tmp_path, monkeypatch, kind):
    """At each file that is written in turn."""
    errors = KeyboardInterrupt(), DataError("line 3"), OSError(28, "full")
    whole = contents(kind.prepared(kind.fill(tmp_path / "data"), tmp_path / "whole").folder)
    opened, place, real = [], 0, builtins.open

    def failing(path, mode="r", *args, **options):
        if "w" in mode and "encoded" in Path(str(path)).parts:
            opened.append(path)
            if len(opened) > place:
                raise error
        return real(path, mode, *args, **options)

    for place in range(0, len(whole), 2):
        opened.clear()
        error = errors[place // 2 % 3]
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "open", failing)
            with pytest.raises(type(error)):
                kind.prepared(tmp_path / "data", tmp_path)
        left = [path for path in (tmp_path / "cache" / "encoded").iterdir() if path.is_dir()]
        assert left == [], place
    assert contents(kind.prepared(tmp_path / "data", tmp_path).folder) == whole


@pytest.mark.usefixtures("small_blocks", "small_pools")
@kinds(lambda kind: kind.processes)
def test_number_of_processes_does_not_change_the_files(tmp_path, kind):
    kind.fill(tmp_path / "data")
    changes = {"documents": "line"} if kind.choice == "text" else {}
    one, two = (
        kind.prepared(tmp_path / "data", tmp_path / str(n), BPE, {"n_workers": n}, **changes)
        for n in (1, 2)
    )
    assert contents(one.folder) == contents(two.folder)
    assert one.report == two.report


@kinds_of_files
def test_missing_and_empty_splits_are_named(tmp_path, kind):
    kind.fill(tmp_path / "data", train=kind.content("train")[:0])
    with pytest.raises(DataError, match=kind.empty) as refusal:
        kind.prepared(tmp_path / "data", tmp_path)
    assert "train" in str(refusal.value)
    for path in (tmp_path / "data").glob("train*"):
        path.rename(tmp_path / path.name)
    with pytest.raises(DataError, match=kind.missing) as refusal:
        kind.prepared(tmp_path / "data", tmp_path)
    assert str(tmp_path / "data") in str(refusal.value)


def make_alone(folder, barrier):
    barrier.wait(timeout=60)

    def make(partial):
        with open(folder.parent / "log", "a", encoding="utf-8") as log:
            log.write("made\n")
        (partial / "file").touch()
        return {"n": 1}

    assert make_once(folder, make) == {"n": 1}


def test_concurrent_processes_make_data_once(tmp_path):
    context = multiprocessing.get_context("fork")
    arguments = tmp_path / "made", context.Barrier(3)
    processes = [context.Process(target=make_alone, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "log").read_text(encoding="utf-8") == "made\n"

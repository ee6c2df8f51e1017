"""Files are whole or not there, and have one writer at a time."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from headwise.errors import HeadwiseError, RunError
from headwise.files import locked, read_json, remove_partial, write_text
from headwise.runs.folder import RunFolder


def test_a_small_file_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    write_text(path, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HeadwiseError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


DEEP = "[" * 100_000
BOMB = "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 12)).replace("*a0", "0")


@pytest.mark.parametrize("text", ['{"status": "fini', "", "[1, 2]", "\x00\x00", DEEP])
def test_a_json_file_that_broke_off_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"results\.json is broken"):
        read_json(path, may_lack=True)


@pytest.mark.parametrize("text", [DEEP, BOMB, "a: [1", "a: \x00", "a: ${oc.env:KEY}", "[1]"])
def test_a_config_that_is_no_saved_one_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"config\.yaml is"):
        RunFolder(tmp_path).read_config()


def test_a_json_file_is_missed_unless_it_may_lack(tmp_path: Path) -> None:
    assert read_json(tmp_path / "data.json", may_lack=True) == {}
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "data.json")


def test_the_rest_of_a_killed_write_is_removed(tmp_path: Path) -> None:
    write_text(tmp_path / "last.pt", "whole")
    (tmp_path / ".last.pt.4711.tmp").write_bytes(b"half")
    remove_partial(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_one_at_a_time_is_in_a_locked_block(tmp_path: Path) -> None:
    inside: list[int] = []
    seen: list[int] = []

    def enter() -> None:
        for _ in range(5):
            with locked(tmp_path / ".lock"):
                inside.append(1)
                time.sleep(0.002)
                seen.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 20
    assert not list(tmp_path.iterdir())

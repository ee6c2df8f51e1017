"""Atomic writes, reading of JSON and configs, and file locks."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from headwise.commands.output import input_blocks
from headwise.data.cache import make_once
from headwise.data.tokenizer import BYTE_MODEL, Tokenizer
from headwise.errors import HeadwiseError, RunError
from headwise.files import (
    is_locked,
    is_stream,
    locked,
    matching_paths,
    read_json,
    remove_partial,
    replacing,
    write_text,
)
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.track.jsonl import JsonlWriter


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_text(path, "old")

    def raise_no_space(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", raise_no_space)
    with pytest.raises(HeadwiseError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]
    with pytest.raises(FileNotFoundError), replacing(path):
        (tmp_path / "other").read_text()  # no failure to write the path


DEEP = "[" * 100_000
BOMB = "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 12)).replace("*a0", "0")


@pytest.mark.parametrize("text", ['{"status": "fini', "", "[1, 2]", "\x00\x00", DEEP])
def test_broken_json_error_names_the_file(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"results\.json is broken"):
        read_json(path, missing_ok=True)


@pytest.mark.parametrize("text", [DEEP, BOMB, "a: [1", "a: \x00", "a: ${oc.env:KEY}", "[1]"])
def test_invalid_config_is_rejected(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"config\.yaml is"):
        _ = Record(tmp_path).saved


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a [v1]", ["a [v1]"]),
        ("a [v1]/*", ["a [v1]/x", "a [v1]/y"]),
        ("*/x", ["a [v1]/x", "b/x"]),
        ("a [v2]", ["a v"]),
        ("n" * 256, []),
    ],
)
def test_existing_path_is_no_pattern(pattern, names, tmp_path):
    for name in ("a [v1]/x", "a [v1]/y", "b/x", "a v"):
        (tmp_path / name).mkdir(parents=True)
    assert matching_paths(tmp_path / pattern) == [tmp_path / name for name in names]


def test_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert (is_stream(pipe), is_stream(tmp_path), is_stream("/dev/stdin")) == (True, False, True)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        write_text(pipe, "text")
        assert reader.read() == b"text"
    assert is_stream(pipe)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_missing_json_raises_unless_it_may_lack(tmp_path):
    assert read_json(tmp_path / "data.json", missing_ok=True) == {}
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "data.json")


def test_partial_files_are_removed(tmp_path):
    write_text(tmp_path / "last.pt", "whole")
    (tmp_path / ".last.pt.4711.tmp").write_bytes(b"half")
    remove_partial(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_lock_admits_one_thread_at_a_time(tmp_path):
    inside = []
    n_inside = []

    def enter():
        for _ in range(5):
            with locked(tmp_path / ".lock"):
                inside.append(1)
                time.sleep(0.002)
                n_inside.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert n_inside == [1] * 20
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EIO])
def test_file_system_without_locks_is_one_warning(tmp_path, monkeypatch, caplog, number):
    reason = os.strerror(number)
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, reason)))
    run = RunFolder(tmp_path)
    run.make()
    with run.claimed(), run.claimed(wait=True), locked(tmp_path / "cache.lock"):
        assert is_locked(tmp_path / ".lock") is None
    assert [record.getMessage() for record in caplog.records] == [
        f"no locks in {tmp_path} ({reason}): use it from one process at a time"
    ]


STREAMS = r"""
import logging, subprocess, sys
from headwise.files import guard_streams
guard_streams()
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
with open(sys.argv[1], "w", encoding="utf-8") as result:
    assert result.fileno() > 2
    assert sys.stdin.read() == ""
    for _ in range(2):
        print("α of größe \udcff" * 9000, flush=True)
        logging.info("日本")
        print("α", file=sys.stderr)
    subprocess.run([sys.executable, "-c", "import os; os.write(1, b'.'); os.write(2, b'.')"])
    result.write("done")
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("streams", "environment"),
    [
        ("</dev/null 2>&-", {}),
        ("<&- >&- 2>&-", {}),
        ("</dev/null | head -c 1", {}),
        ("</dev/null 2>&1 | :", {}),
        ("</dev/null", ASCII),
        ("</dev/null", {"PYTHONIOENCODING": "latin-1"}),
    ],
)
def test_streams_end_no_work(streams, environment, tmp_path):
    """Closed streams (cron), closed pipes, terminals without the characters."""
    program, result = tmp_path / "program.py", tmp_path / "result"
    program.write_text(STREAMS, encoding="utf-8")
    process = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} {program} {result} {streams}"],
        env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert result.read_text() == "done"
    assert b"Error" not in process.stderr


PARTIAL = {f".x.{os.getpid()}.tmp"}


def make(folder):
    return {"bytes": (folder / "ids").write_bytes(b"1234")}


@pytest.mark.parametrize(
    ("write", "files"),
    [
        (lambda folder: write_text(folder / "x", "text"), PARTIAL),
        (lambda folder: Tokenizer(BYTE_MODEL).save(folder / "x"), PARTIAL),
        (lambda folder: make_once(folder / "x", make), {"ids", "manifest.json", "x.partial"}),
    ],
)
def test_what_has_its_name_survives_a_loss_of_power(write, files, tmp_path, monkeypatch):
    done = []
    name_of = lambda number: Path(os.readlink(f"/proc/self/fd/{number}")).name  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda number: done.append(name_of(number)))
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("="), os.rename(*paths)))
    write(tmp_path)
    assert set(done[:-2]) == files
    assert done[-2:] == ["=", tmp_path.name]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EPERM, errno.EIO])
def test_folders_that_cannot_be_flushed_are_left(number, tmp_path, monkeypatch):
    of_folder = OSError(number, os.strerror(number))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=[None, of_folder]))
    with pytest.raises(HeadwiseError) if number == errno.EIO else nullcontext():
        write_text(tmp_path / "x", "text")
    assert (tmp_path / "x").read_text() == "text"


def test_file_system_without_fsync_is_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EINVAL, "unknown to it")))
    write_text(tmp_path / "x", "text")
    JsonlWriter(tmp_path / "y").sync()
    (message,) = caplog.messages
    assert "no fsync here (unknown to it)" in message


def test_input_is_never_all_in_memory(tmp_path):
    (tmp_path / "in").write_text("a line of text\n" * 30_000)
    tracemalloc.start()
    assert sum(map(len, input_blocks(str(tmp_path / "in"), 100))) == 30_000
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()

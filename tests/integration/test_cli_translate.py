"""`headwise translate`: files, pipes, a terminal, alternatives, given translations."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import headwise as package
from command_line import CommandLine, assert_rejected, read_json
from headwise.tasks.translation_run import TranslationRun

ROOT = Path(__file__).parents[2]
SOURCES = ["Hund sieht Haus", "", "Katze findet Baum"]


@pytest.fixture
def run(trained: Path) -> Path:
    """The run itself, in which nothing here writes."""
    return trained


@pytest.fixture(scope="module")
def expected(trained: Path) -> list[str]:
    return [translation.text for translation in package.load(trained).translate(SOURCES)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "text.de"
    path.write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    return path


def test_stdout_holds_only_translations(
    headwise: CommandLine, run: Path, source: Path, expected: list[str]
) -> None:
    ended = headwise("translate", f"run={run}", f"input={source}")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == expected
    assert expected[1] == ""
    output = source.with_name("text.en")
    ended = headwise("translate", f"run={run}", f"input={source}", f"output={output}")
    assert (ended.code, ended.out) == (0, "")
    assert output.read_text(encoding="utf-8").splitlines() == expected
    assert sorted(path.name for path in source.parent.iterdir()) == ["text.de", "text.en"]


def test_an_output_that_cannot_be_finished_stays_as_it_was(
    headwise: CommandLine,
    run: Path,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "text.en"
    output.write_text("precious\n", encoding="utf-8")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ended = headwise("translate", f"run={run}", f"input={source}", f"output={output}")
    assert_rejected(ended, 1, "No space left on device")
    assert output.read_text(encoding="utf-8") == "precious\n"


def test_a_portion_is_written_before_the_next_is_translated(
    headwise: CommandLine,
    run: Path,
    source: Path,
    tmp_path: Path,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe, seen = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    translate = TranslationRun.translate

    def look_first(*arguments: Any) -> Any:
        with suppress(BlockingIOError):  # nothing is there
            seen.append(os.read(reader, 10_000).decode())
        return translate(*arguments)

    monkeypatch.setattr(TranslationRun, "translate", look_first)
    try:
        given = (f"run={run}", f"input={source}", f"output={pipe}", "buffer_size=1")
        headwise.ok("translate", *given)
    finally:
        os.close(reader)
    assert seen == [f"{line}\n" for line in expected[:2]]


def test_alternatives_are_numbered_by_line(headwise: CommandLine, run: Path, source: Path) -> None:
    ended = headwise("translate", f"run={run}", f"input={source}", "decode.n_best=2")
    rows = [line.split("\t") for line in ended.out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert float(rows[0][1]) >= float(rows[1][1])
    assert rows[2][2] == ""


def test_buffer_sizes(headwise: CommandLine, run: Path, source: Path, expected: list[str]) -> None:
    given = [f"run={run}", f"input={source}", "decode.n_best=2"]
    whole, portions = (
        [line.split("\t") for line in headwise("translate", *given, *some).out.splitlines()]
        for some in ((), ("buffer_size=2",))
    )
    assert [(row[0], row[2]) for row in portions] == [(row[0], row[2]) for row in whole]
    # other sentences beside it: another order of summation, by which the last digit may round
    scores = [[float(row[1]) for row in rows] for rows in (portions, whole)]
    assert scores[0] == pytest.approx(scores[1], abs=1.5e-4)
    ended = headwise("translate", *given[:2], "buffer_size=1")
    assert ended.out.splitlines() == expected


def test_lines_of_a_pipe_are_counted_over_its_portions(
    headwise: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.model.transformer.Transformer.max_source", 15)
    text = "Hund\nKatze\n" + "Hund sieht Haus " * 9 + "\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    ended = headwise("translate", f"run={run}", "buffer_size=2")
    assert (ended.code, len(ended.out.splitlines())) == (1, 2)
    assert "source line 3 has" in ended.err


def test_a_file_is_looked_through_before_its_first_portion(
    headwise: CommandLine, run: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.model.transformer.Transformer.max_source", 15)
    translated: list[object] = []
    monkeypatch.setattr(TranslationRun, "translate", translated.append)
    source.write_text("Hund\nKatze\n" + "Hund sieht Haus " * 9 + "\n", encoding="utf-8")
    ended = headwise("translate", f"run={run}", f"input={source}", "buffer_size=1")
    assert (ended.code, ended.out, translated) == (1, "", [])
    assert "source line 3 has" in ended.err


def test_nothing_is_translated_to_nothing(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "empty.de", tmp_path / "empty.en"
    source.touch()
    ended = headwise("translate", f"run={run}", f"input={source}", f"output={output}")
    assert (ended.code, ended.err, output.read_text(encoding="utf-8")) == (0, "", "")
    ended = headwise("translate", f"run={run}", f"input={source}", f"reference={source}")
    assert (ended.code, ended.out, ended.err) == (0, "", "")


@pytest.mark.parametrize("key", ["input", "reference"])
def test_a_text_that_is_read_is_not_replaced(
    key: str, headwise: CommandLine, run: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = source.with_name("own.txt")
    own.write_bytes(source.read_bytes())
    monkeypatch.chdir(source.parent)
    given = {"run": run, "input": source, key: own, "output": own.name}
    ended = headwise("translate", *(f"{name}={value}" for name, value in given.items()))
    assert_rejected(ended, 1, f"would overwrite {key}={own}")
    assert own.read_bytes() == source.read_bytes()


def test_a_link_stays(
    headwise: CommandLine, run: Path, source: Path, tmp_path: Path, expected: list[str]
) -> None:
    link, target = tmp_path / "link.en", tmp_path / "target.en"
    link.symlink_to(target)
    headwise.ok("translate", f"run={run}", f"input={source}", f"output={link}")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8").splitlines() == expected


def test_an_unfinished_run(
    headwise: CommandLine, run: Path, source: Path, expected: list[str], tmp_path: Path
) -> None:
    unfinished = shutil.copytree(run, tmp_path / "unfinished")
    (unfinished / "results.json").unlink()
    ended = headwise("translate", f"run={unfinished}", f"input={source}")
    assert ended.out.splitlines() == expected
    assert "unfinished is not finished (saved at update" in ended.err
    longer = read_json(run / "results.json")
    longer["updates"] -= 1  # and then the run was lengthened
    (unfinished / "results.json").write_text(json.dumps(longer), encoding="utf-8")
    ended = headwise("translate", f"run={unfinished}", f"input={source}")
    assert "unfinished is not finished (saved at update" in ended.err
    (unfinished / "results.json").write_text("{", encoding="utf-8")
    ended = headwise("translate", f"run={unfinished}", f"input={source}")
    assert (ended.code, ended.out.splitlines()) == (0, expected)
    assert "results.json is broken" in ended.err


def test_given_translations_are_scored(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    sources, targets = ["Hund sieht Haus", "Katze findet Baum"], ["dog sees house", "a"]
    for name, lines in (("in.de", sources), ("in.en", targets)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    arguments = [f"run={run}", f"input={tmp_path}/in.de", f"reference={tmp_path}/in.en"]
    ended = headwise.ok("translate", *arguments)
    wanted = package.load(run).score(sources, targets)
    assert ended.out.splitlines() == [f"{s.log_prob:.4f}\t{s.n_tokens}" for s in wanted]


def test_standard_input_is_utf8_whatever_the_terminal(
    headwise: CommandLine, run: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"{line}\n" for line in SOURCES).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="latin-1"))
    assert headwise("translate", f"run={run}").out.splitlines() == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    assert_rejected(headwise("translate", f"run={run}"), 1, "stdin, line 1: not UTF-8")


def test_a_line_that_cannot_be_answered_ends_nothing(
    run: Path,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from headwise.commands.translate import _interactive

    typed = iter([b"caf\xe9", b"Hund " * 99, SOURCES[0].encode()])

    def type_next(prompt: str) -> str:
        try:
            return next(typed).decode()
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", type_next)
    loaded = package.load(run, n_best=2)
    alternatives = loaded.translate(SOURCES[:1])[0].n_best
    monkeypatch.setattr(type(loaded.model), "max_source", 50)
    _interactive(loaded)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"{text}\t({score:.3f})" for text, score in alternatives]
    assert alternatives[0][0] == expected[0]
    assert "headwise: not UTF-8" in shown.err
    assert "headwise: source line 1 has" in shown.err


def start(run: Path, *arguments: str, **streams: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "scripts/translate.py", f"run={run}", *arguments]
    return subprocess.Popen(command, cwd=ROOT, **streams)  # type: ignore[call-overload,no-any-return]


def test_a_reader_that_leaves_is_no_error(run: Path, tmp_path: Path) -> None:
    source = tmp_path / "long.de"
    source.write_text("Hund sieht Haus\n" * 3000, encoding="utf-8")
    left, right = os.pipe()
    os.close(left)  # nobody reads
    process = start(run, f"input={source}", stdout=right, stderr=subprocess.PIPE)
    os.close(right)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 128 + 13
    assert told == b""


def test_nothing_more_is_translated_once_the_reader_has_left(run: Path) -> None:
    left, right = os.pipe()
    os.close(left)
    process = start(run, stdin=subprocess.PIPE, stdout=right, stderr=subprocess.PIPE)
    os.close(right)
    assert process.wait(timeout=60) == 128 + 13  # while its input goes on
    assert process.communicate()[1] == b""


def test_at_a_terminal_each_line_is_answered(run: Path, expected: list[str]) -> None:
    ours, theirs = pty.openpty()
    process = start(run, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, b"Hund sieht Haus\n\n\x04")
    told = b""
    try:
        while chunk := os.read(ours, 1000):
            told += chunk
    except OSError:
        pass  # Linux says so where others say end of file
    os.close(ours)
    assert process.wait(timeout=120) == 0
    shown = told.decode()
    assert "Ctrl-D ends" in shown
    assert f"{expected[0]}\t(" in shown
    assert "Traceback" not in shown

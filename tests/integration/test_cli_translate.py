"""`headwise translate`: files, pipes, a terminal, n-best lists, scores of translations."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

import headwise as package
from command_line import assert_rejected, read_json
from headwise.model.transformer import Transformer
from headwise.tasks.translation.run import TranslationRun

ROOT = Path(__file__).parents[2]
SOURCES = ["Hund sieht Haus", "", "Katze findet Baum"]


@pytest.fixture
def run(trained):
    """The trained run itself: no test here writes in it."""
    return trained


@pytest.fixture(scope="module")
def expected(trained):
    return [translation.text for translation in package.load(trained).translate(SOURCES)]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "text.de"
    path.write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    return path


def test_stdout_has_only_translations(headwise, run, source, expected):
    result = headwise("translate", f"run={run}", f"input={source}")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == expected
    assert expected[1] == ""
    output = source.with_name("text.en")
    result = headwise("translate", f"run={run}", f"input={source}", f"output={output}")
    assert (result.code, result.out) == (0, "")
    assert output.read_text(encoding="utf-8").splitlines() == expected
    assert sorted(path.name for path in source.parent.iterdir()) == ["text.de", "text.en"]


def pipe_of(text):
    """A path like that of <(command), which can be read once."""
    reader, writer = os.pipe()
    with open(writer, "wb") as stream:
        stream.write(text)
    return f"/dev/fd/{reader}"


def stdin_of(text, encoding="utf-8"):
    return open(pipe_of(text), encoding=encoding)


def test_pipes_are_read_and_written(headwise, run, expected, tmp_path, monkeypatch):
    text = "".join(f"{line}\n" for line in SOURCES).encode()
    monkeypatch.chdir(tmp_path)
    result = headwise.ok("translate", f"run={run}", f"input={pipe_of(text)}", "output=-")
    assert result.out.splitlines() == expected
    monkeypatch.setattr(sys, "stdin", stdin_of(text))
    reader, writer = os.pipe()
    headwise.ok("translate", f"run={run}", "input=-", f"output=/dev/fd/{writer}")
    os.close(writer)
    with open(reader, encoding="utf-8") as stream:
        assert stream.read().splitlines() == expected
    settings = [f"run={run}", f"input={pipe_of(b'Haus')}", f"reference={pipe_of(b'house')}"]
    assert len(headwise.ok("translate", *settings).out.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_buffer_size_changes_no_translation(headwise, run, source, expected):
    arguments = [f"run={run}", f"input={source}", "decode.n_best=2"]
    one_buffer, small_buffers = (
        [line.split("\t") for line in headwise("translate", *arguments, *more).out.splitlines()]
        for more in ((), ("buffer_size=2",))
    )
    assert [(row[0], row[2]) for row in small_buffers] == [(row[0], row[2]) for row in one_buffer]
    assert [row[0] for row in one_buffer] == ["1", "1", "2", "3", "3"]
    # other batches change the order of summation and so the rounding of the last digit
    scores = [[float(row[1]) for row in rows] for rows in (small_buffers, one_buffer)]
    assert scores[0] == pytest.approx(scores[1], abs=1.5e-4)
    result = headwise("translate", *arguments[:2], "buffer_size=1")
    assert result.out.splitlines() == expected


@pytest.fixture
def limited(monkeypatch):
    """A model for 15 source tokens, as with learned positions."""
    monkeypatch.setattr(Transformer, "max_source", 15)


def test_line_numbers_of_a_pipe_continue_over_buffers(headwise, run, limited, monkeypatch):
    text = b"Hund\nKatze\n" + b"Hund sieht Haus " * 9 + b"\n"
    monkeypatch.setattr(sys, "stdin", stdin_of(text))
    result = headwise("translate", f"run={run}", "buffer_size=2")
    assert (result.code, len(result.out.splitlines())) == (1, 2)
    assert "source line 3 has" in result.err


def test_whole_file_is_checked_before_translating(headwise, run, source, limited):
    source.write_text("Hund\nKatze\n" + "Hund sieht Haus " * 9 + "\n", encoding="utf-8")
    result = headwise("translate", f"run={run}", f"input={source}", "buffer_size=1")
    assert_rejected(result, 1, "source line 3 has")
    assert result.out == ""


def test_empty_input_gives_empty_output(headwise, run, tmp_path):
    source, output = tmp_path / "empty.de", tmp_path / "empty.en"
    source.touch()
    result = headwise("translate", f"run={run}", f"input={source}", f"output={output}")
    assert (result.code, result.err, output.read_text(encoding="utf-8")) == (0, "", "")
    result = headwise("translate", f"run={run}", f"input={source}", f"reference={source}")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_symlinked_output_stays_a_link(headwise, run, source, tmp_path, expected):
    link, target = tmp_path / "link.en", tmp_path / "target.en"
    link.symlink_to(target)
    headwise.ok("translate", f"run={run}", f"input={source}", f"output={link}")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8").splitlines() == expected


def test_unfinished_run_translates_with_a_warning(headwise, run, source, expected, tmp_path):
    unfinished = shutil.copytree(run, tmp_path / "unfinished")
    (unfinished / "results.json").unlink()
    result = headwise("translate", f"run={unfinished}", f"input={source}")
    assert result.out.splitlines() == expected
    assert "unfinished is not finished (saved at update" in result.err
    results = read_json(run / "results.json")
    results["updates"] -= 1  # as if the run was extended afterwards
    (unfinished / "results.json").write_text(json.dumps(results), encoding="utf-8")
    result = headwise("translate", f"run={unfinished}", f"input={source}")
    assert "unfinished is not finished (saved at update" in result.err
    (unfinished / "results.json").write_text("{", encoding="utf-8")
    result = headwise("translate", f"run={unfinished}", f"input={source}")
    assert (result.code, result.out.splitlines()) == (0, expected)
    assert "results.json is broken" in result.err


def test_reference_translations_are_scored(headwise, run, tmp_path):
    sources, targets = ["Hund sieht Haus", "Katze findet Baum"], ["dog sees house", "a"]
    for name, lines in (("in.de", sources), ("in.en", targets)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    arguments = [f"run={run}", f"input={tmp_path}/in.de", f"reference={tmp_path}/in.en"]
    result = headwise.ok("translate", *arguments)
    expected_scores = package.load(run).score(sources, targets)
    assert result.out.splitlines() == [f"{s.log_prob:.4f}\t{s.n_tokens}" for s in expected_scores]


def test_stdin_is_utf8_for_any_locale(headwise, run, expected, monkeypatch):
    text = "".join(f"{line}\n" for line in SOURCES).encode()
    monkeypatch.setattr(sys, "stdin", stdin_of(text, "latin-1"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)  # typed, but the output is a file
    assert headwise("translate", f"run={run}").out.splitlines() == expected
    monkeypatch.setattr(sys, "stdin", stdin_of(b"caf\xe9\n"))
    assert_rejected(headwise("translate", f"run={run}"), 1, "stdin, line 1: not UTF-8")


def test_interactive_mode_continues_after_errors(headwise, run, limited, monkeypatch):
    lines = [b"caf\xe9", b"Hund " * 99, b"Hund"]
    typed = Mock(side_effect=[*(lambda line=line: line.decode() for line in lines), EOFError])
    monkeypatch.setattr("builtins.input", lambda _: typed()())
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    result = headwise.ok("translate", f"run={run}", "decode.n_best=2")
    alternatives = package.load(run, n_best=2).translate(["Hund"])[0].n_best
    assert result.out.splitlines() == [f"{text}\t({score:.3f})" for text, score in alternatives]
    assert "headwise: 'utf-8' codec can't decode" in result.err
    assert "headwise: source line 1 has" in result.err


def start(run, *arguments, **streams):
    command = [sys.executable, "scripts/translate.py", f"run={run}", *arguments]
    return subprocess.Popen(command, cwd=ROOT, **streams)


@pytest.mark.parametrize("piece", ["\n", "Hund\n", "\ufeffHund sieht Häuser\n\nHa"])
def test_lines_of_a_pipe_are_translated_before_more_arrive(headwise, run, piece, monkeypatch):
    """All complete lines that are there at once in one batch."""
    translate = Mock(side_effect=package.load(run).translate)
    monkeypatch.setattr(TranslationRun, "translate", translate)
    (source, to_source), (output, to_output) = os.pipe(), os.pipe()
    n_lines, has_rest = piece.count("\n"), not piece.endswith("\n")

    def feed():
        with open(output, "rb", 0) as answers, open(to_source, "wb", 0) as stream:
            for _ in range(2):
                stream.write(piece.encode())
                for _ in range(n_lines):
                    assert select.select([answers], [], [], 20)[0]
                    answers.readline()
            stream.close()
            return len(answers.readlines())

    with ThreadPoolExecutor() as pool:
        n_last = pool.submit(feed)
        paths = f"input=/dev/fd/{source}", f"output=/dev/fd/{to_output}"
        headwise.ok("translate", f"run={run}", *paths)
        os.close(to_output)
        assert n_last.result() == has_rest
    os.close(source)
    sizes = [len(call.args[0]) for call in translate.call_args_list]
    assert sizes == [n_lines, n_lines, *[1] * has_rest]


@pytest.mark.slow
def test_closed_output_pipe_is_no_error(run, tmp_path):
    source = tmp_path / "long.de"
    source.write_text("Hund sieht Haus\n" * 3000, encoding="utf-8")
    read_end, write_end = os.pipe()
    os.close(read_end)  # no reader
    process = start(run, f"input={source}", stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + 13
    assert errors == b""


def test_translations_before_an_error_are_kept(headwise, run, expected, tmp_path):
    """And before a kill: they are on the disk before the next line is read."""
    partial = tmp_path / f"out.{os.getpid()}.tmp"
    reader, writer = os.pipe()

    def feed():
        with open(writer, "wb", 0) as stream:
            stream.write(f"{SOURCES[0]}\n".encode())
            deadline = time.monotonic() + 60
            while not (partial.exists() and partial.read_text(encoding="utf-8")):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            stream.write(b"caf\xe9\n")
            return partial.read_text(encoding="utf-8")

    with ThreadPoolExecutor() as pool:
        written = pool.submit(feed)
        paths = f"input=/dev/fd/{reader}", f"output={tmp_path / 'out'}"
        result = headwise("translate", f"run={run}", *paths)
    assert written.result() == f"{expected[0]}\n"
    os.close(reader)
    kept = f"what was written before is in {partial}\n"
    assert (result.code, result.err.startswith(f"{kept}headwise: ")) == (1, True)
    assert "line 2: not UTF-8" in result.err
    assert list(tmp_path.iterdir()) == [partial]

"""`headwise translate run=FOLDER`: translate a file, stdin or typed lines."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from headwise.config.schema import TranslateConfig
from headwise.data.corpora.text import decoded_lines
from headwise.errors import DataError, HeadwiseError, require
from headwise.files import BROKEN_PIPE, check_output, write_text
from headwise.tasks.loading import load_selected, translating
from headwise.tasks.texts import read_lines
from headwise.tasks.translation_run import TranslationRun

PROMPT = "> "
STDOUT = 1


def translate(config: TranslateConfig) -> None:
    """Translate a file or stdin in blocks of `buffer_size` lines; interactive at a terminal."""
    _check_paths(config)
    run = translating(load_selected(config.run, config))
    sources: Iterable[str]
    if config.input is not None:
        sources = read_lines(Path(config.input), may_be_empty=True)
        if config.reference is None and run.model.max_source is not None:
            run.translator.check_sources(list(map(run.normaliser.source, sources)))
    elif config.reference is None and config.output is None and sys.stdin.isatty():
        _interactive(run)
        return
    else:
        sources = decoded_lines(sys.stdin.buffer, "stdin", may_be_empty=True)
    if config.reference is not None:
        blocks = iter([_score_lines(run, list(sources), read_lines(Path(config.reference), True))])
    else:
        progress = config.progress and sys.stderr.isatty()
        blocks = _translated_blocks(run, iter(sources), config.buffer_size, progress)
    if config.output is None:
        sys.stdout.flush()
        with _exit_on_closed_pipe():
            _write(sys.stdout.buffer, blocks)
    else:
        _write_output(Path(config.output), blocks)


def _write(stream: IO[bytes], blocks: Iterable[list[str]]) -> None:
    """Write and flush each block of lines as UTF-8, independent of the terminal's encoding."""
    for lines in blocks:
        stream.write("".join(f"{line}\n" for line in lines).encode())
        stream.flush()


@contextmanager
def _exit_on_closed_pipe() -> Iterator[None]:
    """Exit as `cat` does if standard output is a pipe and its reader closes it."""
    done = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(STDOUT, 0)  # errors are always reported
        while not done.is_set():
            if poll.poll(200):
                os._exit(BROKEN_PIPE)

    if not stat.S_ISFIFO(os.fstat(STDOUT).st_mode):
        yield
        return
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _write_output(path: Path, blocks: Iterable[list[str]]) -> None:
    """Write a file atomically; write to a device or a pipe directly."""
    if path.exists() and not path.is_file():
        with open(path, "wb") as stream:
            _write(stream, blocks)
    else:
        text = "".join(f"{line}\n" for lines in blocks for line in lines)
        write_text(path.resolve(), text)


def _check_paths(config: TranslateConfig) -> None:
    """Raise `DataError` for unreadable or unwritable files, before anything is loaded."""
    require(config.buffer_size >= 1, "buffer_size", "at least 1", config.buffer_size)
    for key in ("input", "reference"):
        path = getattr(config, key)
        if path is None:
            continue
        if not Path(path).is_file():
            raise DataError(f"{key}={path} not found")
        if config.output is not None and Path(config.output).resolve() == Path(path).resolve():
            raise DataError(f"output={config.output} would overwrite {key}={path}")
    if config.output is not None:
        check_output(config.output)


def _translated_blocks(
    run: TranslationRun, sources: Iterator[str], buffer_size: int, progress: bool
) -> Iterator[list[str]]:
    """Yield blocks: one line per sentence, or n-best lines `number<TAB>score<TAB>text`."""
    first = 1
    while block := list(islice(sources, buffer_size)):
        translations = run.translate(block, progress, first)
        if run.translator.config.n_best == 1:
            yield [translation.text for translation in translations]
        else:
            yield [
                f"{number}\t{score:.4f}\t{text}"
                for number, translation in enumerate(translations, start=first)
                for text, score in translation.n_best
            ]
        first += len(block)


def _score_lines(run: TranslationRun, sources: list[str], references: list[str]) -> list[str]:
    if len(sources) != len(references):
        raise DataError(
            f"the input has {len(sources)} lines and reference= {len(references)}; they must "
            "be aligned"
        )
    scores = run.score(sources, references)
    return [f"{score.log_prob:.4f}\t{score.n_tokens}" for score in scores]


def _interactive(run: TranslationRun) -> None:
    """Translate each typed line; print errors and continue."""
    print("one sentence per line; Ctrl-D quits", file=sys.stderr)
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            print(file=sys.stderr)
            return
        except UnicodeDecodeError as error:
            print(f"headwise: not UTF-8 ({error})", file=sys.stderr)
            continue
        try:
            translation = run.translate([line])[0]
        except HeadwiseError as error:
            print(f"headwise: {error}", file=sys.stderr)
            continue
        for text, score in translation.n_best:
            print(f"{text}\t({score:.3f})")

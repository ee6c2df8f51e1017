"""`headwise translate run=FOLDER`: translate a file, stdin or typed lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from headwise.commands.output import check_paths, input_blocks, write_blocks
from headwise.config.commands import TranslateConfig
from headwise.data.sources.lines import read_lines, stream_lines
from headwise.errors import HeadwiseError
from headwise.files import STDIN, STDOUT, is_stream
from headwise.tasks.load import load_selected
from headwise.tasks.translation.run import TranslationRun

PROMPT = "> "


def translate(config: TranslateConfig) -> None:
    """Translate a file, or what a pipe has, up to `buffer_size` lines at once; or typed lines."""
    paths = {"input": config.input, "reference": config.reference}
    check_paths(config.output, paths)
    run: TranslationRun = load_selected(config.run, config, "translate")
    is_typed = config.input in (None, STDIN) and config.output in (None, STDOUT)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()  # a file has translations alone
    if is_typed and config.reference is None and is_terminal:
        _interactive(run)
        return
    sources = input_blocks(config.input, config.buffer_size)
    if config.reference is not None:
        lines = list(chain.from_iterable(sources))
        scores = run.score(lines, read_lines(Path(config.reference), True))
        blocks = iter([[f"{score.log_prob:.4f}\t{score.n_tokens}" for score in scores]])
    else:
        path = Path(config.input or STDIN)
        if run.model.max_source is not None and not is_stream(path):  # fail before translating
            for number, line in enumerate(stream_lines(path, may_be_empty=True), 1):
                run.translator.check_sources([run.normaliser.source(line)], number)
        blocks = _translated_blocks(run, sources, config.progress)
    write_blocks(config.output, blocks)


def _translated_blocks(
    run: TranslationRun, sources: Iterator[list[str]], progress: bool
) -> Iterator[list[str]]:
    """Yield blocks: one line per sentence, or n-best lines `number<TAB>score<TAB>text`."""
    first = 1
    for block in sources:
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


def _interactive(run: TranslationRun) -> None:
    """Translate each typed line; print errors and continue."""
    print("one sentence per line; Ctrl-D quits", file=sys.stderr)
    while True:
        try:
            translation = run.translate([input(PROMPT)])[0]
        except EOFError:
            print(file=sys.stderr)
            return
        except (UnicodeDecodeError, HeadwiseError) as error:
            print(f"headwise: {error}", file=sys.stderr)
            continue
        for text, score in translation.n_best:
            print(f"{text}\t({score:.3f})")

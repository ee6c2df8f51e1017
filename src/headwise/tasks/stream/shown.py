"""What is shown of a stream: windows of text, images, or windows of other values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headwise.config.data import ImageDataConfig
from headwise.data.lossless import content_ids, ids_text, lossless, text_ids
from headwise.data.sources.lines import read_lines
from headwise.data.tokenizer import BOS, TOKENIZER, Tokenizer
from headwise.errors import DataError
from headwise.tasks.shown import Candidates, Item, Picture, Read, Shown, given
from headwise.tasks.stream.stream import TokenStream
from headwise.tasks.stream.windows import EvaluationWindows, Ints
from headwise.tasks.task import Source, TrainedRun

MAX_TOKENS = 512  # shown of a text, whose tokens are rows and columns of a table
MAX_SAMPLES = 4096  # shown of a sequence of values


def shown_windows(run: TrainedRun, source: Source, read: Read) -> Candidates:
    """Windows of text, without characters that a window boundary splits; or given texts.

    Args:
        run: of a task on text.
        source: see `Task.shown`; the lines of a file are one text.
        read: of texts, each at most one window.
    """
    if isinstance(source, Sequence):
        return given(source, read, "windows")
    window, tokenizer = run.config.data.window, Tokenizer.load(run.folder.path / TOKENIZER)
    if isinstance(source, Path):
        ids = text_ids("".join(f"{line}\n" for line in read_lines(source)), tokenizer)
    else:
        ids = run.data([source.split]).stream(source.split).ids

    def item(number: int) -> Item:
        text = ids_text(ids[number * window : (number + 1) * window], tokenizer)
        return Item(number + 1, text, {"text": text})

    return Candidates(-(-len(ids) // window), item, read, "windows")


def first_window(run: TrainedRun, item: Item, tokenizer: Tokenizer) -> Ints:
    """The tokens of a text, of at most one window and `MAX_TOKENS`."""
    if not item.input or not isinstance(item.input, str):
        raise DataError(f"text {item.number} is empty: there is no attention to show")
    return text_ids(item.input, tokenizer)[: min(run.config.data.window, MAX_TOKENS)]


def shown_values(run: TrainedRun, source: Source) -> Candidates:
    """Images, or windows of other values.

    Raises:
        DataError: a file, or an input that is no values of the data.
    """
    data, tokenizer = run.config.data, Tokenizer.load(run.folder.path / TOKENIZER)
    is_image = isinstance(data, ImageDataConfig)
    unit, size = ("image", math.prod(data.shape)) if is_image else ("window", data.window)

    def read(items: Iterable[Item]) -> Iterator[Shown]:
        for number, values, _ in items:
            if not isinstance(values, bytes) or (is_image and len(values) != size):
                raise DataError(f"item {number} has no values of data={data.name} to show")
            shape = tuple(data.shape) if is_image else (min(len(values), MAX_SAMPLES),)
            values = values[: math.prod(shape)]
            ids = content_ids(values[: data.window], tokenizer)
            (batch,) = EvaluationWindows(TokenStream(ids), BOS, data.window, data.window)
            yield Shown(batch, picture=Picture(shape, values, shape, n_start=1))

    if isinstance(source, Path):
        raise DataError(f"sentences= is text, but this run is on data={data.name}")
    if isinstance(source, Sequence):
        return given(source, read, f"{unit}s")
    title, ids = f"{unit} of {source.split}", run.data([source.split]).stream(source.split).ids

    def item(number: int) -> Item:
        of_item = ids[number * size : (number + 1) * size].tolist()
        return Item(number + 1, lossless(tokenizer).decode(of_item), {unit: title})

    return Candidates(-(-len(ids) // size), item, read, f"{unit}s")

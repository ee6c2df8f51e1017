"""Windows of the data of a density model to show, and the attention of the model on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headwise.analysis.kinds import NEAR, Places
from headwise.config.data import ImageDataConfig
from headwise.config.schema import Config
from headwise.data.lossless import content_ids, ids_text, lossless, text_ids
from headwise.data.tokenizer import BOS, COLUMN, TOKENIZER, Tokenizer
from headwise.errors import DataError
from headwise.model.build import parts_of
from headwise.model.family import Model
from headwise.tasks.reading import MAX_WEIGHTS, Axes, Candidates, Item, Reading, View, selected
from headwise.tasks.stream.stream import TokenStream, starts_document
from headwise.tasks.stream.windows import EvaluationWindows, Ints
from headwise.tasks.task import TrainedRun

SITE = "decoder_self"
MAX_TOKENS = 512  # shown of a text, whose tokens are rows and columns of a table
MAX_SAMPLES = 4096  # shown of a sequence of values
COLOURS = "red", "green", "blue"


def places_of(config: Config, model: Model) -> Places | None:
    """Places of the values that are predicted; None: windows do not start at rows of images.

    Rows of a sequence are strides of its pattern.
    """
    data = config.data
    if isinstance(data, ImageDataConfig):
        row, channels = math.prod(data.shape[1:]), data.shape[2]
        is_whole = data.window % row == 0
        return Places(data.window, row, channels, 1, math.prod(data.shape)) if is_whole else None
    patterns = [getattr(attention, "pattern", None) for _, _, attention in model.attentions()]
    strides = [getattr(pattern, "stride", 0) for pattern in patterns]
    row = max([*strides, getattr(parts_of(config).positions, "width", 0)])
    return Places(data.window, row if row > 2 * NEAR else None, 0, 1)


def text_windows(ids: Ints, window: int, tokenizer: Tokenizer) -> Candidates:
    """Windows of text, without characters that a window boundary splits."""

    def item(number: int) -> Item:
        text = ids_text(ids[number * window : (number + 1) * window], tokenizer)
        return Item(number + 1, {"text": text})

    return Candidates(-(-len(ids) // window), item, "windows")


def value_candidates(ids: Ints, data: Any, tokenizer: Tokenizer, split: str) -> Candidates:
    """Images, or windows of other values."""
    is_image = isinstance(data, ImageDataConfig)
    unit, size = ("image", math.prod(data.shape)) if is_image else ("window", data.window)

    def item(number: int) -> Item:
        of_item = ids[number * size : (number + 1) * size].tolist()
        return Item(number + 1, {unit: f"{unit} of {split}"}, lossless(tokenizer).decode(of_item))

    return Candidates(-(-len(ids) // size), item, f"{unit}s")


def given_texts(run: TrainedRun, texts: Sequence[Any]) -> Iterator[Reading]:
    """Texts, each truncated to one window, and to `MAX_TOKENS`."""
    data = run.config.data
    corpus = run.task.open(run.task.cache)
    for tokenizer, ids in encoded_texts(run, texts):
        starts = [n for n in range(len(ids)) if starts_document(ids.tolist(), n, corpus, tokenizer)]
        stream = TokenStream(ids, None, np.array(starts), data.document_mask)
        (batch,) = EvaluationWindows(stream, BOS, len(ids), len(ids))
        names = tokenizer.labels(batch.columns[COLUMN].ids_BN[0].tolist())
        yield Reading(batch, {SITE: Axes(names, names, ids_text(ids, tokenizer))})


def encoded_texts(run: TrainedRun, texts: Sequence[Any]) -> Iterator[tuple[Tokenizer, Ints]]:
    """The run's tokenizer and the tokens of each text, of at most one window."""
    tokenizer = Tokenizer.load(run.folder.path / TOKENIZER)
    window = min(run.config.data.window, MAX_TOKENS)
    for number, text in enumerate(texts, 1):
        if not text or not isinstance(text, str):
            raise DataError(f"text {number} is empty: there is no attention to show")
        yield tokenizer, text_ids(text, tokenizer)[:window]


def given_values(run: TrainedRun, items: Sequence[Any]) -> Iterator[Reading]:
    """The values of images or windows, for queries spread over them."""
    data = run.config.data
    tokenizer = Tokenizer.load(run.folder.path / TOKENIZER)
    n_heads = sum(attention.place.n_heads for _, _, attention in run.model.attentions())
    for index, values in enumerate(items):
        is_image = isinstance(data, ImageDataConfig)
        if not isinstance(values, bytes) or (is_image and len(values) != math.prod(data.shape)):
            raise DataError(f"item {index + 1} has no values of data={data.name} to show")
        shape = tuple(data.shape) if is_image else (min(len(values), MAX_SAMPLES),)
        values = values[: math.prod(shape)]
        ids = content_ids(values[: data.window], tokenizer)
        n_queries = MAX_WEIGHTS // max(1, len(items) * n_heads * math.prod(shape[:2]))
        view = View(shape, values, selected(shape, n_queries, len(ids)), 1)
        (batch,) = EvaluationWindows(TokenStream(ids), BOS, data.window, data.window)
        names = [value_name(shape, query) for query in view.queries]
        yield Reading(batch, {SITE: Axes(names, [], "", view=view)}, queries=view.queries)


def value_name(shape: Sequence[int], value: int) -> str:
    """Name of a value, counted from 1."""
    if len(shape) == 1:
        return f"sample {value + 1}"
    row, column, channel = np.unravel_index(value, tuple(shape))
    colour = f", {COLOURS[channel]}" if shape[2] == len(COLOURS) else ""
    return f"row {row + 1}, column {column + 1}{colour}"

"""Items to analyse or to show, and the attention weights of a model on them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from headwise.analysis.kinds import Places
from headwise.analysis.observe import Observation
from headwise.analysis.survey import ColumnText
from headwise.data.batch import Batch, Column
from headwise.data.images import grid_of
from headwise.errors import DataError, RunError
from headwise.metrics.metric import Measured
from headwise.model.family import Model

MAX_WEIGHTS = 2**23  # of all heads and windows on a page with pictures; determines the queries
T = TypeVar("T")


@dataclass(frozen=True)
class Item:
    """A sentence, a window of text, or an image or other values.

    Attributes:
        number: of the item in its file, from 1.
        texts: name -> text; the first is the model's input, the others are shown next to it.
        values: the model's input if it is not text, one byte each; then the text is a title.
    """

    number: int
    texts: Mapping[str, str]
    values: bytes | None = None

    @property
    def text(self) -> str:
        """The first text."""
        return next(iter(self.texts.values()))

    @property
    def input(self) -> str | bytes:
        """The model's input."""
        return self.text if self.values is None else self.values


@dataclass(frozen=True)
class Items:
    """Items chosen from a text.

    Attributes:
        origin: name of the set or file.
        unit: what the items are, in the plural.
        chosen: in the order of their numbers.
        n_all: number of items to choose from.
        note: how they were chosen; empty: evenly spaced, or the first ones.
    """

    origin: str
    unit: str
    chosen: Sequence[Item]
    n_all: int
    note: str = ""


class Candidates(NamedTuple):
    """Items to choose from.

    Attributes:
        n: their number.
        item: number, from 0 -> the item.
        unit: what they are, in the plural.
        preferred: numbers of which up to a quarter of the chosen ones are taken.
        note: says so.
    """

    n: int
    item: Callable[[int], Item]
    unit: str
    preferred: Sequence[int] = ()
    note: str = ""


@dataclass(frozen=True)
class Spelling:
    """How the values of a column are written.

    Attributes:
        language: language code; empty: words are not measured.
        name: of an id; empty if it has none.
        number: of a value that is no id, equal for equal values.
        places: of its positions, for kinds of heads; None: unknown.
    """

    language: str = ""
    name: Callable[[int], str] = str
    number: Callable[[Any], int] = int
    places: Places | None = None


@dataclass(frozen=True)
class View:
    """Values that are drawn, with the weights of some queries over them.

    Attributes:
        shape: rows, columns and channels of an image; (samples,) of a sequence.
        values: all values, one byte each.
        queries: numbers of the values at the queries; negative: at no value, as CLS tokens.
        n_start: number of keys before the first value.
        patch: rows and columns of values at each other key.
    """

    shape: Sequence[int]
    values: bytes
    queries: Sequence[int]
    n_start: int = 0
    patch: int = 1

    @property
    def grid(self) -> Sequence[int]:
        """The shape of the keys: rows and columns of patches."""
        if self.patch == 1:
            return self.shape
        return (*grid_of(self.shape, self.patch), 1)


@dataclass(frozen=True)
class Axes:
    """Labels of the attention weights of a site.

    Attributes:
        queries: a name for each row of the weights.
        keys: a name for each column of the weights.
        text: the input as one text.
        note: a remark to show with it.
        view: drawn instead of the names of the keys.
        relevant: number of the key that each query needs, -1: none is known; empty: for no query.
    """

    queries: Sequence[str]
    keys: Sequence[str]
    text: str
    note: str = ""
    view: View | None = None
    relevant: Sequence[int] = ()


@dataclass(frozen=True)
class Reading:
    """A text, or other values, that a model reads, and its attention on them.

    Attributes:
        batch: the input alone.
        axes: of the attention, by name of the site.
        texts: name -> text that the model generated.
        queries: numbers of the queries to observe; None: all.
        with_cls: CLS tokens are the first queries and keys.
        observations: weights of every attention that has them; empty before they are observed.
    """

    batch: Batch
    axes: Mapping[str, Axes]
    texts: Mapping[str, str] = field(default_factory=dict)
    queries: Sequence[int] | None = None
    with_cls: bool = False
    observations: Sequence[Observation] = ()


@dataclass(frozen=True)
class Inspected:
    """Items of a split (sentences, windows) for the analysis of heads.

    Attributes:
        split: its name.
        batches: all items; their `rows` are indices into the texts.
        texts: of each column of the batches.
        n: number of items.
        measure: returns the metrics of a validation on these items with the current model.
        n_left_out: number of items that are too long.
        unit: what the items are, in the plural.
        places: column -> the places of its values, for kinds of heads; None: unknown.
    """

    split: str
    batches: Sequence[Batch]
    texts: Mapping[str, ColumnText]
    n: int
    measure: Callable[[], Sequence[Measured]]
    n_left_out: int = 0
    unit: str = "sentences"
    places: Mapping[str, Places | None] = field(default_factory=dict)

    def digest(self) -> str:
        """Hash of the ids."""
        ids = {name: [list(map(int, row)) for row in t.ids] for name, t in self.texts.items()}
        return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]


def spaced(items: Sequence[T], max_items: int) -> list[T]:
    """At max_items `max_items` items, evenly spaced, starting with the first."""
    n = min(max_items, len(items))
    return [items[i * len(items) // n] for i in range(n)]


def rows_of(batches: Sequence[Batch], column: str) -> list[list[Any]]:
    """The values of a column for each item of batches, in the order of their `rows`."""
    items = {
        row: ids
        for b in batches
        for row, ids in zip(b.rows, b.columns[column].items(), strict=True)
    }
    return [items[row] for row in sorted(items)]


def given_ids(model: Model, inputs: Sequence[Any]) -> Iterator[Reading]:
    """Texts of ids, with spaces between them, for a model that reads one column."""
    if len(model.columns) != 1:
        raise RunError("inputs of a model with several columns cannot be read from text")
    (name,), none = model.columns, torch.zeros(0, dtype=torch.long)
    for number, text in enumerate(inputs, 1):
        try:
            ids = [int(token) for token in text.split()]
        except ValueError as error:
            raise DataError(f"item {number} must be numbers, got {text!r}") from error
        column = Column(torch.tensor([ids]), torch.tensor([len(ids)]))
        labels = list(map(str, ids))
        axes = {site.name: Axes(labels, labels, text) for site in model.sites}
        yield Reading(Batch({name: column}, none, none, [0], 0), axes)


def selected(shape: Sequence[int], n_queries: int, n_values: int) -> list[int]:
    """Numbers of at most `n_queries` values, or channels of a pixel, evenly spread.

    Args:
        shape: rows, columns and channels of an image; (samples,) of a sequence.
        n_queries: at least one value, or one pixel, is selected.
        n_values: only the first ones are selected, of an image only those in whole rows, if any.
    """
    if len(shape) == 1:
        n = max(1, min(n_queries, n_values))
        return [(i + 1) * n_values // n - 1 for i in range(n)]
    _, n_columns, channels = shape
    sizes = n_values // (n_columns * channels), min(n_columns, n_values // channels)
    side = max(1, math.isqrt(n_queries // channels))
    counts = [max(1, min(side, size)) for size in sizes]
    rows_R, columns_C = (
        (2 * np.arange(n) + 1) * size // (2 * n) for n, size in zip(counts, sizes, strict=True)
    )
    places = np.ix_(rows_R, columns_C, np.arange(shape[2]))
    values_N = np.arange(math.prod(shape)).reshape(shape)[places].flatten()
    return [int(value) for value in values_N if value < n_values]

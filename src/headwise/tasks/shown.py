"""What a page, a figure or an analysis shows of an item: a model's input, and names for it.

`Task.shown` makes it of the items of a split, of the lines of a file, or of given inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from headwise.analysis.observe import Observation
from headwise.attention.place import Site
from headwise.data.batch import Batch, Column
from headwise.data.sources.lines import read_lines
from headwise.errors import DataError

MAX_QUERIES = 64  # of a long row that are observed
COLOURS = "red", "green", "blue"
T = TypeVar("T")


@dataclass(frozen=True)
class Picture:
    """Values that are drawn, an image or a sequence of samples, with weights over them.

    Attributes:
        shape: rows, columns and channels of an image; (samples,) of a sequence.
        values: all values, one byte each.
        grid: shape of the keys: `shape`, or rows and columns of patches, and 1.
        n_start: number of keys before the first value.
    """

    shape: Sequence[int]
    values: bytes
    grid: Sequence[int]
    n_start: int

    @property
    def patch(self) -> int:
        """Rows and columns of values at each key."""
        return self.shape[0] // self.grid[0]

    def place(self, number: int) -> tuple[int, int, int]:
        """Row, column and channel of the first value at a key; a sequence has one row."""
        _, columns, channels = self.grid if len(self.grid) > 1 else (1, *self.grid, 1)
        row, column = divmod(number // channels, columns)
        return row * self.patch, column * self.patch, number % channels

    def value(self, number: int) -> int:
        """Number of the value in the middle of those at a key."""
        if len(self.shape) == 1:
            return number
        (row, column, channel), middle = self.place(number), self.patch // 2
        return ((row + middle) * self.shape[1] + column + middle) * self.shape[2] + channel

    def name(self, number: int) -> str:
        """Name of the first value at a key, counted from 1."""
        row, column, channel = self.place(number)
        if len(self.shape) == 1:
            return f"sample {column + 1}"
        colour = f", {COLOURS[channel]}" if self.grid[2] == len(COLOURS) else ""
        return f"row {row + 1}, column {column + 1}{colour}"


class Axes(NamedTuple):
    """Labels of the attention weights of a site.

    Attributes:
        queries: a name for each row of the weights.
        keys: a name for each column of the weights; of a picture, for those before its values.
        text: the input as one text.
        note: a remark to show with it.
    """

    queries: Sequence[str]
    keys: Sequence[str]
    text: str
    note: str


@dataclass(frozen=True)
class Shown:
    """An item as a model reads it, alone.

    Attributes:
        batch: the input; the positions of its last column predict.
        labels: column -> a name for each position, and its input as one text; not of a picture.
        picture: drawn instead of the names of the keys.
        outputs: name -> text that the model generated.
        predicted: names of what each position predicts, which label the queries of cross-attention.
        note: a remark on the last column.
        n_cls: number of CLS tokens, which are the first queries and keys.
        queries: numbers of the queries to observe; None: all.
        relevant: position -> number of the key in the first column that its prediction needs.
        observations: weights of every attention that has them; empty before they are observed.
    """

    batch: Batch
    labels: Mapping[str, tuple[Sequence[str], str]] = field(default_factory=dict)
    picture: Picture | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    predicted: Sequence[str] = ()
    note: str = ""
    n_cls: int = 0
    queries: Sequence[int] | None = None
    relevant: Mapping[int, int] = field(default_factory=dict)
    observations: Sequence[Observation] = ()

    @property
    def last(self) -> str:
        """The last column of the batch."""
        return [*self.batch.columns][-1]

    @property
    def places(self) -> list[int]:
        """The values of the picture at the observed queries; negative: a CLS token."""
        assert self.picture is not None
        of_cls = (-number * len(self.picture.values) for number in range(1, self.n_cls + 1))
        return [*of_cls, *map(self.picture.value, self._keys)]

    @property
    def _keys(self) -> list[int]:
        """The observed queries that are no CLS tokens, as numbers of keys of the picture."""
        return [query - self.n_cls for query in (self.queries or ())[self.n_cls :]]

    def axes(self, site: Site) -> Axes:
        """The labels of the weights of a site."""
        cls = [f"CLS token {number}" for number in range(1, self.n_cls + 1)]
        note = self.note if site.queries == self.last else ""
        if self.picture is not None:
            return Axes([*cls, *map(self.picture.name, self._keys)], cls, "", note)
        keys, of_keys = self.labels[site.keys]
        queries, of_queries = self.labels[site.queries]
        if self.predicted and site.queries != site.keys:
            queries = self.predicted
        names = [*cls, *queries]
        if self.queries is not None:
            names = [names[number] for number in self.queries if number < len(names)]
        text = " → ".join(dict.fromkeys((of_keys, of_queries)))
        return Axes(names, [*cls, *keys], text, note)


class Item(NamedTuple):
    """A sentence, a window of text, or an image or other values.

    Attributes:
        number: of the item in its split or file, from 1.
        input: of the model: a text, or values of one byte each.
        texts: name -> text; the first is the input or a title, the others are shown next to it.
    """

    number: int
    input: str | bytes
    texts: Mapping[str, str]

    @property
    def title(self) -> str:
        """The first text."""
        return next(iter(self.texts.values()))


Read = Callable[[Iterable[Item]], Iterator[Shown]]  # what is shown of each item


class Candidates(NamedTuple):
    """Items to choose from, and what is shown of those that are chosen.

    Attributes:
        n: their number.
        item: number, from 0 -> the item.
        read: items -> what is shown of each.
        unit: what they are, in the plural.
        preferred: numbers of which up to a quarter of the chosen ones are taken.
        note: says so.
    """

    n: int
    item: Callable[[int], Item]
    read: Read
    unit: str
    preferred: Sequence[int] = ()
    note: str = ""

    def first(self, n: int) -> Iterator[Shown]:
        """What is shown of at most `n` items."""
        return self.read(map(self.item, range(min(n, self.n))))


def given(source: Path | Sequence[Any], read: Read, unit: str) -> Candidates:
    """Inputs of a user, or the lines of a file that are not empty."""
    if isinstance(source, Path):
        lines = enumerate(read_lines(source), 1)
        items = [Item(number, line, {"text": line}) for number, line in lines if line.strip()]
    else:
        items = [Item(number, value, {}) for number, value in enumerate(source, 1)]
    return Candidates(len(items), items.__getitem__, read, unit)


def shown_ids(column: str, items: Iterable[Item]) -> Iterator[Shown]:
    """Texts of ids, with spaces between them, for a model that reads one column.

    Raises:
        DataError: a text is not of numbers.
    """
    none = torch.zeros(0, dtype=torch.long)
    for number, text, _ in items:
        try:
            ids = [int(token) for token in text.split()]
        except ValueError as error:
            raise DataError(f"item {number} must be numbers, got {text!r}") from error
        read = Column(torch.tensor([ids]), torch.tensor([len(ids)]))
        labels = {column: (list(map(str, ids)), str(text))}
        yield Shown(Batch({column: read}, none, none, [0], 0), labels)


def spaced(items: Sequence[T], max_items: int) -> list[T]:
    """At most `max_items` items, evenly spaced, starting with the first."""
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

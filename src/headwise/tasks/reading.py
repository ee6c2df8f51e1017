"""Texts to show a run on, and the attention weights of its model on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headwise.analysis.observe import Observation

T = TypeVar("T")


@dataclass(frozen=True)
class Item:
    """A sentence or a window of text.

    Attributes:
        number: of the item in its file, from 1.
        texts: name -> text; the first is the model's input, the others are shown beside it.
    """

    number: int
    texts: Mapping[str, str]

    @property
    def text(self) -> str:
        """The model's input."""
        return next(iter(self.texts.values()))


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


@dataclass(frozen=True)
class Axes:
    """Labels of the attention weights of a site.

    Attributes:
        queries: a name for each row of the weights.
        keys: a name for each column of the weights.
        text: the input as one text.
        note: a remark to show with it.
    """

    queries: Sequence[str]
    keys: Sequence[str]
    text: str
    note: str = ""


@dataclass(frozen=True)
class Reading:
    """The attention of a model on one text.

    Attributes:
        axes: by name of the site.
        seen: weights of every attention that has them, a batch of one.
        texts: name -> text that the model generated.
    """

    axes: Mapping[str, Axes]
    seen: Sequence[Observation]
    texts: Mapping[str, str] = field(default_factory=dict)


def spaced(items: Sequence[T], most: int) -> list[T]:
    """At most `most` items, evenly spaced, starting with the first."""
    n = min(most, len(items))
    return [items[place * len(items) // n] for place in range(n)]

"""Texts to show, and the attention weights of a model on them."""

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
        texts: name -> text; the first is the model's input, the others are shown next to it.
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
        observations: weights of every attention that has them, a batch of one.
        texts: name -> text that the model generated.
    """

    axes: Mapping[str, Axes]
    observations: Sequence[Observation]
    texts: Mapping[str, str] = field(default_factory=dict)


def spaced(items: Sequence[T], max_items: int) -> list[T]:
    """At max_items `max_items` items, evenly spaced, starting with the first."""
    n = min(max_items, len(items))
    return [items[i * len(items) // n] for i in range(n)]

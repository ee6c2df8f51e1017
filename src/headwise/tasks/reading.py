"""What a run can be shown on, and what its model makes of it while its heads are observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headwise.analysis.observe import Observation

T = TypeVar("T")


@dataclass(frozen=True)
class Item:
    """A piece of text: a sentence, a window.

    Attributes:
        number: of the item in its file, from 1.
        texts: name -> text; the first is what a model reads, others are shown beside it.
    """

    number: int
    texts: Mapping[str, str]

    @property
    def text(self) -> str:
        """What a model reads."""
        return next(iter(self.texts.values()))


@dataclass(frozen=True)
class Items:
    """Items that were chosen from a text.

    Attributes:
        origin: name of the set or file.
        unit: what the items are, in the plural.
        chosen: in the order of their numbers.
        n_all: how many there were to choose from.
        note: how they were chosen; empty: evenly spaced, or the first ones.
    """

    origin: str
    unit: str
    chosen: Sequence[Item]
    n_all: int
    note: str = ""


@dataclass(frozen=True)
class Axes:
    """What a site reads.

    Attributes:
        queries, keys: a name for each row and each column of its weights.
        text: the same as one text.
        note: what else is to be said of it.
    """

    queries: Sequence[str]
    keys: Sequence[str]
    text: str
    note: str = ""


@dataclass(frozen=True)
class Reading:
    """A text as a model went through it.

    Attributes:
        axes: of each site, by its name.
        seen: every attention that has weights, a batch of one.
        texts: name -> text that the model wrote.
    """

    axes: Mapping[str, Axes]
    seen: Sequence[Observation]
    texts: Mapping[str, str] = field(default_factory=dict)


def spaced(items: Sequence[T], most: int) -> list[T]:
    """At most so many, evenly spaced, from the first on."""
    n = min(most, len(items))
    return [items[place * len(items) // n] for place in range(n)]

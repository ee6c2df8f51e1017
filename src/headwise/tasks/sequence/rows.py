"""Rows of synthetic sequences, each a pure function of random numbers and a length.

A subclass of `Rows` and a yaml in `conf/data/` make a task of your own (docs/lengths.md).

Axes: N places of a source, T places of a target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from headwise.errors import require

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """A source and its target.

    Attributes:
        source_N: ids that are read.
        target_T: ids that are predicted: after the source, or at its places (`Rows.in_place`).
        scored_T: True where a prediction counts.
        relevant_T: place of the source on which the prediction depends; -1: none, or several.
    """

    source_N: Ints
    target_T: Ints
    scored_T: npt.NDArray[np.bool_]
    relevant_T: Ints


class Rows(ABC):
    """Base class of synthetic tasks; the arguments of a subclass are the keys below `data.rows`.

    Attributes:
        in_place: whether targets are predicted at the places of the source; else after it.
        n_ids: number of ids of sources and targets together.
    """

    in_place: ClassVar[bool] = False
    n_ids: int

    @abstractmethod
    def row(self, rng: np.random.Generator, length: int) -> Row:
        """Return a row whose source has this length, as nearly as the task allows."""


def whole(source_N: Ints, target_T: Ints, relevant_T: Ints) -> Row:
    """Return a row of which all is scored."""
    return Row(source_N, target_T, np.ones(len(target_T), np.bool_), relevant_T)


class Copy(Rows):
    """Repeat the source.

    Args:
        symbols: number of different ids, drawn evenly.
    """

    def __init__(self, symbols: int = 32) -> None:
        require(symbols >= 2, "symbols", "at least 2", symbols)
        self.n_ids = symbols

    def order(self, source_N: Ints) -> Ints:
        """Return the places of the source in the order of the target."""
        return np.arange(len(source_N))

    def row(self, rng: np.random.Generator, length: int) -> Row:
        source_N = rng.integers(self.n_ids, size=length)
        order = self.order(source_N)
        return whole(source_N, source_N[order], order)


class Reverse(Copy):
    """Repeat the source from its end."""

    def order(self, source_N: Ints) -> Ints:
        return np.arange(len(source_N))[::-1].copy()


class Sort(Copy):
    """Repeat the source in ascending order."""

    def order(self, source_N: Ints) -> Ints:
        return np.argsort(source_N, kind="stable")


class NBack(Rows):
    """At every place, the id so many places before.

    Args:
        symbols: number of different ids.
        back: number of places; the first ones are not scored.
    """

    in_place = True

    def __init__(self, symbols: int = 16, back: int = 2) -> None:
        require(symbols >= 2, "symbols", "at least 2", symbols)
        require(back >= 1, "back", "at least 1", back)
        self.n_ids, self.back = symbols, back

    def row(self, rng: np.random.Generator, length: int) -> Row:
        source_N = rng.integers(self.n_ids, size=length)
        before_N = np.arange(length) - self.back
        return Row(source_N, source_N[before_N.clip(0)], before_N >= 0, before_N.clip(-1))


class LocalCount(Rows):
    """At every place, how often its id stood directly before.

    Args:
        symbols: number of different ids.
        longest: length of the longest run of one id; runs have 2 ids or more.
    """

    in_place = True

    def __init__(self, symbols: int = 16, longest: int = 16) -> None:
        require(symbols >= 2, "symbols", "at least 2", symbols)
        require(longest >= 2, "longest", "at least 2", longest)
        self.symbols, self.longest, self.n_ids = symbols, longest, symbols + longest

    def row(self, rng: np.random.Generator, length: int) -> Row:
        lengths = rng.integers(2, self.longest + 1, size=length // 2 + 1)
        # a step of 1 or more in the circle of ids: neighbouring runs differ
        ids = rng.integers(1, self.symbols, size=len(lengths)).cumsum() % self.symbols
        starts = np.repeat(lengths.cumsum() - lengths, lengths)[:length]
        target_N = self.symbols + np.arange(length) - starts
        return whole(np.repeat(ids, lengths)[:length], target_N, np.full(length, -1))


class FlipFlop(Rows):
    """Pairs of a command and a bit (Liu et al. 2023): at a read, the bit of the last write.

    Ids are the bits 0 and 1, write 2, ignore 3 and read 4. The first command writes, the last
    reads. With rare writes, the last one is far away.

    Args:
        write, read: probabilities of the commands; all others ignore.
    """

    in_place = True
    n_ids = 5

    def __init__(self, write: float = 0.1, read: float = 0.1) -> None:
        require(0 < write < 1, "write", "between 0 and 1", write)
        require(0 < read <= 1 - write, "read", f"above 0, at most {1 - write}", read)
        self.write, self.read = write, read

    def row(self, rng: np.random.Generator, length: int) -> Row:
        n = max(2, length // 2)
        draws = rng.random(n)
        commands = np.where(draws < self.write, 2, np.where(draws < self.write + self.read, 4, 3))
        commands[0], commands[-1] = 2, 4
        bits = rng.integers(2, size=n)
        last_write = np.maximum.accumulate(np.where(commands == 2, np.arange(n), 0))
        is_read, truth = commands == 4, bits[last_write]
        source_N = np.stack([commands, np.where(is_read, truth, bits)], 1).ravel()
        scored, nothing = np.zeros((n, 2), np.bool_), np.full(n, -1)
        scored[:, 0] = is_read
        relevant = np.where(is_read, 2 * last_write + 1, -1)
        return Row(
            source_N,
            np.repeat(truth, 2),
            scored.ravel(),
            np.stack([relevant, nothing], 1).ravel(),
        )


class Parity(Rows):
    """At every place, whether the ones so far are even (0) or odd (1) in number."""

    in_place = True
    n_ids = 2

    def row(self, rng: np.random.Generator, length: int) -> Row:
        source_N = rng.integers(2, size=length)
        return whole(source_N, source_N.cumsum() % 2, np.full(length, -1))


class Recall(Rows):
    """Associative recall: keys with values, then some of the keys again, each with its value.

    Pairs take half of the places, the rest are spaces. Each asked key stands once; the other pairs
    repeat the other keys, so that longer rows have more distractors but no more ids. The asked keys
    follow, each before its value, which alone is scored.

    Args:
        keys: number of keys.
        values: number of values.
        asked: number of keys that are asked for.
    """

    def __init__(self, keys: int = 32, values: int = 16, asked: int = 8) -> None:
        require(values >= 2, "values", "at least 2", values)
        require(1 <= asked < keys, "asked", f"at least 1 and below keys={keys}", asked)
        self.keys, self.values, self.asked = keys, values, asked
        self.n_ids = keys + values + 2
        self.space, self.query = keys + values, keys + values + 1

    def row(self, rng: np.random.Generator, length: int) -> Row:
        n_pairs = max(self.asked, length // 4)
        length = max(length, 2 * n_pairs)
        order = rng.permutation(self.keys)
        others = order[self.asked :][
            rng.integers(self.keys - self.asked, size=n_pairs - self.asked)
        ]
        slots = rng.permutation(n_pairs)
        keys = np.empty(n_pairs, np.int64)
        keys[slots] = np.concatenate([order[: self.asked], others])
        values = self.keys + rng.integers(self.values, size=n_pairs)
        free = np.sort(rng.integers(length - 2 * n_pairs + 1, size=n_pairs))
        starts = free + 2 * np.arange(n_pairs)
        source_N = np.full(length, self.space)
        source_N[starts], source_N[starts + 1] = keys, values
        asked = slots[: self.asked]
        none = np.full(self.asked, -1)
        queries = np.full(self.asked, self.query)
        target = np.stack([queries, keys[asked], values[asked]], 1)
        relevant = np.stack([none, none, starts[asked] + 1], 1)
        return Row(source_N, target.ravel(), relevant.ravel() >= 0, relevant.ravel())

"""A tokenizer whose words are numbers, for tests of translation."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any


class NumberWords:
    """Words equal their ids; interface of `headwise.data.tokenizer.Tokenizer`."""

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [[int(word) for word in sentence.split()] for sentence in sentences]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(map(str, line)) for line in ids]


PAIR: Any = SimpleNamespace(source=NumberWords(), target=NumberWords())

"""The rules of the built-in corpus as `rules.yaml` has them, weights spread out for drawing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "rules.yaml").read_text(encoding="utf-8"))


def weighted(shares: Mapping[str, int]) -> list[str]:
    """Every key as often as its weight says, to be drawn from evenly."""
    return [key for key, weight in shares.items() for _ in range(weight)]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a sentence says of a clause; rules.yaml explains the keys."""

    frames: Sequence[str]
    tenses: Sequence[str]  # or "same"
    subject: str = "any"
    object: str = "any"
    relative: str = ""
    wh: Sequence[str] = ()
    time: float = 0.3
    manner: float = 0.12
    place: float = 0.25
    negation: float = 0.12
    front: float = 0.0

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Rule:
        """The rule of a mapping of rules.yaml."""
        row = {"frames": RULES["frames"], "tenses": RULES["tenses"], **row}
        values: dict[str, Any] = {
            key: weighted(value) if isinstance(value, dict) else value for key, value in row.items()
        }
        return cls(**values)


class Sentence:
    """A sentence: the rules of its clauses, and the pieces of its layout in each language.

    Pieces are text, name of a clause, order, text, ..., text.
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.rules = {name: Rule.of(row[name]) for name in "ab" if name in row}
        self.de, self.en = (re.split(r"\{(\w)\.(\w+)\}", row[key]) for key in ("de", "en"))


SENTENCES = [sentence for row in RULES["sentences"] for sentence in [Sentence(row)] * row["weight"]]

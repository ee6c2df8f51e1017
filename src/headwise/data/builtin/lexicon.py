"""Words of the built-in corpus, read from the tables beside this file."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import NamedTuple

from headwise.data.builtin.rules import FOLDER, RULES


class Noun(NamedTuple):
    """A row of nouns.tsv, or a compound.

    `kind` is p person, a animal, e food, k food that is cooked, w drink, t thing, o thing that
    opens, h other furniture or part of a house, d document, c clothes, v vehicle, l place. A mass
    noun has no plural. `where` holds the prepositions of a place, "an/at". `modifier` is the first
    part of a compound, and `gender` German.
    """

    kind: str
    de: str
    gender: str
    de_plural: str
    de_oblique: str  # singular outside of the nominative
    en: str
    en_plural: str
    where: str
    modifier: str = ""


class Verb(NamedTuple):
    """A row of verbs.tsv; `frame` may name several, parted by slashes.

    `subjects` and `objects` are kinds of nouns; `adverbials` the ones that may go with it: m a
    manner, p a place. `en` holds a preposition that stays with the verb, `en_particle` what
    follows the object.
    """

    frame: str
    particle: str
    infinitive: str
    ich: str
    du: str
    er: str
    participle: str
    perfect: str
    en: str
    en_third: str
    en_past: str
    en_particle: str
    subjects: str
    objects: str
    adverbials: str


class Adjective(NamedTuple):
    """A row of adjectives.tsv; `kinds` are the nouns it goes with."""

    de: str
    stem: str
    en: str
    kinds: str


def _rows(name: str) -> list[list[str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


def _compound(modifier: str, en: str, head: Noun) -> Noun:
    return head._replace(
        de=modifier + head.de.lower(),
        de_plural=modifier + head.de_plural.lower(),
        de_oblique=modifier + head.de_oblique.lower(),
        en=f"{en} {head.en}",
        en_plural=f"{en} {head.en_plural}",
        modifier=modifier,
    )


def _by_kind(nouns: Iterable[Noun]) -> dict[str, list[Noun]]:
    groups: dict[str, list[Noun]] = {}
    for noun in nouns:
        groups.setdefault(noun.kind, []).append(noun)
    return groups


NOUNS = [Noun(*row) for row in _rows("nouns.tsv")]
_HEADS = {noun.de: noun for noun in NOUNS}
COMPOUNDS = [
    _compound(modifier, en, _HEADS[head])
    for group in RULES["compounds"]
    for modifier, en in group["modifiers"].items()
    for head in group["heads"]
]
VERBS = [Verb(*row) for row in _rows("verbs.tsv")]
ADJECTIVES = [Adjective(*row) for row in _rows("adjectives.tsv")]
SIMPLE_OF, COMPOUNDS_OF = _by_kind(NOUNS), _by_kind(COMPOUNDS)
KINDS = tuple(SIMPLE_OF)

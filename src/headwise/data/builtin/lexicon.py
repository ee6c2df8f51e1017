"""The rules and words of the built-in corpus, read from the files in this folder.

A word is a row of its table by column. `kind` of a noun is p person, a animal, e food, k food that
is cooked, w drink, t thing, o thing that opens, h other furniture or part of a house, d document,
c clothes, v vehicle, l place; of a name, a capital letter. `kinds` of an adjective are those of the
nouns it may describe; `subject`, `object` and `dative` of a verb those of its arguments (one twice
is drawn twice as often), `adverbials` the optional parts of its clause.

- Nouns: `pronoun` is a key of the rules' pronouns and gives the gender, `oblique` the singular
  of the other cases, `where` a key of the rules' prepositions. Names and mass nouns have no
  plural. A compound has its first part as `modifier`.
- Verbs: several `frames` are separated by slashes. `ich`, `du`, `er`, `wir` lack the particle,
  `infinitive`, `zu`, `participle` have it. `en` includes a preposition that stays with the
  verb; `en_particle` precedes an object that is a noun and follows one that is a pronoun.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "rules.yaml").read_text(encoding="utf-8"))

Word = dict[str, str]
FORMS = ("de", "oblique", "plural", "dative_plural")  # of a noun, in German


def _rows(name: str) -> list[Word]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def _compound(modifier: str, en: str, head: Word) -> Word:
    german = {form: modifier + head[form].lower() for form in FORMS}
    english = {form: f"{en} {head[form]}" for form in ("en", "en_plural")}
    return {**head, **german, **english, "modifier": modifier}


def _by_kind(nouns: list[Word]) -> dict[str, list[Word]]:
    kinds = {noun["kind"] for noun in nouns}
    return {kind: [noun for noun in nouns if noun["kind"] == kind] for kind in kinds}


NOUNS, VERBS, ADJECTIVES = (_rows(f"{name}.tsv") for name in ("nouns", "verbs", "adjectives"))
_HEADS = {noun["de"]: noun for noun in NOUNS}
COMPOUNDS = [
    _compound(modifier, en, _HEADS[head])
    for group in RULES["compounds"]
    for modifier, en in group["modifiers"].items()
    for head in group["heads"]
]
SIMPLE_OF, COMPOUNDS_OF = _by_kind(NOUNS), _by_kind(COMPOUNDS)

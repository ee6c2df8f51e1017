"""Agreement and word order of the built-in corpus: phrases in all cases, verbs, clauses.

The rules and words are in the files of this folder.
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
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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


class Pronoun(NamedTuple):
    """A row of the rules' pronouns."""

    person: int  # column of the forms of a verb: ich, du, er, sie (plural)
    gender: int  # column of a declension: masculine, feminine, neuter, plural
    de: Sequence[str]  # nominative, accusative, dative
    en: Sequence[str]  # likewise: he, him, him
    own: Sequence[str]  # stem of the German possessive, the English one


class Phrase(NamedTuple):
    """A noun phrase, pronoun or question word in all cases."""

    de: Sequence[str]  # nominative, accusative, dative
    en: Sequence[str]  # likewise: he, him, him
    pronoun: Pronoun  # that replaces it
    kind: str = "p"  # as of nouns
    noun: str = ""  # "" of a pronoun
    form: str = "pronoun"  # or definite, indefinite: determines its position

    @classmethod
    def from_pronoun(cls, pronoun: Pronoun, kind: str = "p") -> Phrase:
        """The phrase of a pronoun that replaces a noun of `kind`."""
        return cls(pronoun.de, pronoun.en, pronoun, kind)


PRONOUNS = {name: Pronoun(**row) for name, row in RULES["pronouns"].items()}


def noun_phrase(
    noun: Word,
    determiner: Sequence[str],
    plural: bool,
    adjective: Word | None = None,
    form: str = "definite",
) -> Phrase:
    """Determiner (declension, stem, English), adjective and noun, declined."""
    declension, stem, en_article = determiner
    pronoun = PRONOUNS["sie/they" if plural else noun["pronoun"]]
    columns = ("plural", "plural", "dative_plural") if plural else ("de", "oblique", "oblique")
    de = []
    for case, column in enumerate(columns):
        article = stem + RULES["declensions"][declension][case][pronoun.gender]
        ending = RULES["adjective_endings"][declension][case][pronoun.gender]
        described = adjective["stem"] + ending if adjective else ""
        de.append(_joined([article, described, noun[column]]))
    described = adjective["en"] if adjective else ""
    en = _joined([en_article, described, noun["en_plural" if plural else "en"]])
    return Phrase(de, [en] * 3, pronoun, noun["kind"].lower(), noun["de"], form)


def relative_pronoun(head: Phrase) -> Phrase:
    """The relative pronoun that refers to `head`."""
    de = [forms[head.pronoun.gender] for forms in RULES["declensions"]["relative"]]
    return head._replace(de=de, en=["who" if head.kind == "p" else "which"] * 3)


def verb_parts(verb: Word, tense: str, person: int, negated: bool) -> dict[str, str]:
    """The forms of a verb by the part of a German and an English clause that they fill."""
    rows = RULES["tenses"]
    parts = {"zu": verb["zu"], "en_particle": verb["en_particle"]}
    for part, forms in (rows.get(f"{tense} {verb['perfect']}") or rows[tense]).items():
        form = forms if isinstance(forms, str) else forms[person]
        parts[part] = " ".join(verb.get(word, word) for word in form.split())
    between = " " if parts["end"] and tense != "present" else ""
    parts["closing"] = parts["end"] + between + parts["finite"]
    if negated:
        parts |= {"nicht": "nicht", "not": "not"}
    if negated or "verb" not in parts:
        parts |= {"auxiliary": parts["do"], "verb": parts["base"]}
    return parts


@dataclass(slots=True)
class Clause:
    """The parts of a clause in both languages, its tense and its phrases."""

    tense: str
    phrases: Mapping[str, Phrase]  # by role
    de: dict[str, str]
    en: dict[str, str]

    def add(self, part: str, de: str, en: str) -> None:
        """Set a part in both languages."""
        self.de[part], self.en[part] = de, en

    def spelled(self, language: str, order: str) -> str:
        """The parts of the clause in one of the orders of the rules."""
        parts = self.de if language == "de" else self.en
        if order == "main" and "front" in parts:
            order = "fronted"
        return _joined(parts.get(part, "") for part in _order(language, order))


def spelled(layout: str, language: str, clauses: Mapping[str, Clause]) -> str:
    """A sentence: its layout with the clauses in place of `{clause.order}`."""
    text = re.sub(
        r"\{(\w)\.(\w+)\}", lambda slot: clauses[slot[1]].spelled(language, slot[2]), f" {layout}"
    )
    for separate, joined in RULES["spelling"].items():
        text = text.replace(separate, joined)
    return text[1].upper() + text[2:]


@cache
def _order(language: str, name: str) -> list[str]:
    """The parts of an order of the rules; nested orders are expanded."""
    orders = RULES["orders"][language]
    if name not in orders:
        return [name]
    return [part for inner in orders[name].split() for part in _order(language, inner)]


def _joined(words: Iterable[str]) -> str:
    return " ".join(filter(None, words))

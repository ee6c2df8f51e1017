"""Clauses of the built-in corpus: forms of the verb, and the order of the parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from headwise.data.builtin.lexicon import Verb
from headwise.data.builtin.phrases import Phrase
from headwise.data.builtin.rules import RULES

Parts = dict[str, str]


def _laid_out(orders: Mapping[str, str]) -> dict[str, list[str]]:
    """The parts of every order, with MIDDLE and REST put in their places."""
    return {
        name: " ".join(orders.get(part, part) for part in order.split()).split()
        for name, order in orders.items()
    }


_ORDERS = {language: _laid_out(orders) for language, orders in RULES["orders"].items()}


class Gap(NamedTuple):
    """What a clause lacks because a wh-word or relative pronoun in front of it stands for it."""

    role: str  # subject, accusative, dative, place, time, reason; "" if nothing is missing
    de: str = ""
    en: str = ""
    frames: Sequence[str] = ()
    kinds: str = ""  # of nouns, one of which the verb must take
    phrase: Phrase | None = None  # the noun phrase that the word takes up, or is part of


@dataclass(slots=True)
class Clause:
    """The parts of a clause in both languages, and what they were made of."""

    subject: Phrase
    verb: Verb | None  # None: to be
    tense: str
    negated: bool
    gap: Gap
    object: Phrase | None = None
    de: Parts = field(default_factory=dict)
    en: Parts = field(default_factory=dict)

    def add(self, part: str, de: str, en: str, en_part: str = "") -> None:
        """Put a part in place, in English under another name where there is one."""
        self.de[part], self.en[en_part or part] = de, en

    def add_front(self, part: str) -> None:
        """Move an adverbial to the front, in both languages."""
        en_part = "often" if part == "time" and "often" in self.en else part
        self.add("front", self.de.pop(part), self.en.pop(en_part))

    def spelled(self, language: str, order: str) -> str:
        """The parts of the clause in one of the orders of the rules."""
        parts = self.de if language == "de" else self.en
        if order == "main" and "front" in parts:
            order = "fronted"
        return " ".join(filter(None, map(parts.get, _ORDERS[language][order])))


@cache
def verb_parts(verb: Verb, tense: str, person: int, negated: bool) -> tuple[Parts, Parts]:
    """The parts of the verb: German perfect and English simple past, modal verbs, do-support."""
    infinitive = verb.particle + verb.infinitive
    to = f"{verb.particle}zu{verb.infinitive}" if verb.particle else f"zu {infinitive}"
    do, base, auxiliary = "does" if person == 2 else "do", verb.en, ""
    statement = verb.en_third if person == 2 else verb.en
    if tense == "present":
        finite, end = (verb.ich, verb.du, verb.er, verb.infinitive)[person], verb.particle
    elif tense == "past":
        finite, end = RULES["auxiliaries"][verb.perfect][person], verb.participle
        do, statement = "did", verb.en_past
    else:
        modal = RULES["modals"][tense]
        finite, end, en = modal["de"][person], infinitive, modal["en"]
        if modal.get("do"):
            base, statement = f"{en[0]} {base}", f"{en[person == 2]} {base}"
        else:
            do, auxiliary, statement = en[0], en[0], base
    closing = end + finite if tense == "present" else f"{end} {finite}"
    german = {"finite": finite, "end": end, "closing": closing, "to_infinitive": to}
    english = {"do": do, "base": base, "to": "to", "particle": verb.en_particle}
    if negated:
        return german | {"nicht": "nicht"}, english | {"auxiliary": do, "verb": base, "not": "not"}
    return german, english | {"auxiliary": auxiliary, "verb": statement}


@cache
def be_parts(tense: str, person: int, negated: bool) -> tuple[Parts, Parts]:
    """The parts of to be."""
    de, en = (forms[person] for forms in RULES["be"][tense])
    german, english = {"finite": de, "closing": de}, {"auxiliary": en, "do": en}
    return (german | {"nicht": "nicht"}, english | {"not": "not"}) if negated else (german, english)


def spelled(pieces: Sequence[str], language: str, clauses: Mapping[str, Clause]) -> str:
    """The sentence, with a capital letter; a relative clause at its end has no second comma."""
    text = pieces[0]
    for name, order, between in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        text += clauses[name].spelled(language, order) + between
    text = text.replace(",.", ".").replace(" can not ", " cannot ")
    return text[0].upper() + text[1:]

"""Noun phrases and pronouns of the built-in corpus, spelled in German and in English."""

from __future__ import annotations

from typing import NamedTuple

from headwise.data.builtin.lexicon import Adjective, Noun
from headwise.data.builtin.rules import RULES

_GENDERS = "mfnp"


def _endings(table: str) -> dict[tuple[str, str, str], str]:
    return {
        (declension, case, gender): ending
        for declension, cases in RULES[table].items()
        for case, endings in cases.items()
        for gender, ending in zip(_GENDERS, endings, strict=True)
    }


_ARTICLES, _ENDINGS = _endings("declensions"), _endings("adjective_endings")
_GERMAN, _ENGLISH = RULES["pronouns"]["de"], RULES["pronouns"]["en"]
_CASES = {"nom": 0, "acc": 1, "dat": 2}

Determiner = tuple[str, str, str]  # declension, stem, English


class Phrase(NamedTuple):
    """A noun phrase or pronoun in its case.

    `person` is ich, du, er, wir (= sie); `gender` German and `referent` English (m, f, n, and p for
    plural); `noun` its noun, "" of a pronoun; `own` the stem of its possessive and the English one.
    """

    de: str
    en: str
    person: int
    gender: str
    referent: str
    own: tuple[str, str]
    kind: str = "p"
    noun: str = ""
    definite: bool = True
    name: bool = False


def _third(gender: str, referent: str, case: str) -> tuple[str, str, int, tuple[str, str]]:
    de, en = _GERMAN[gender], _ENGLISH[referent]
    person = 3 if gender == "p" else 2
    return de[_CASES[case]], en[min(_CASES[case], 1)], person, (de[3], en[2])


def pronoun(antecedent: Phrase, case: str) -> Phrase:
    """The pronoun that stands for a phrase; a pronoun stands for itself."""
    if not antecedent.noun:
        return antecedent
    gender, referent = antecedent.gender, antecedent.referent
    de, en, person, own = _third(gender, referent, case)
    return Phrase(de, en, person, gender, referent, own, antecedent.kind)


def _speaker(row: int, case: str) -> Phrase:
    de, en = RULES["speakers"][row]
    gender = "p" if row == 2 else "m"
    own = (de[3], en[2])
    return Phrase(de[_CASES[case]], en[min(_CASES[case], 1)], (0, 1, 3)[row], gender, gender, own)


def _named(gender: str) -> Phrase:
    de, en, person, own = _third(gender, gender, "nom")
    return Phrase(de, en, person, gender, gender, own)


SPEAKERS = {case: [_speaker(row, case) for row in range(3)] for case in _CASES}
SUBJECTS = SPEAKERS["nom"] + [_named(gender) for gender in "mfp"]  # pronouns without antecedent
WER = _named("m")._replace(de="wer", en="who")
NAMES = [
    _named(gender)._replace(de=name, en=name, noun=name, name=True)
    for gender, names in RULES["names"].items()
    for name in names
]


DETERMINERS: dict[str, dict[str, Determiner]] = {
    number: {name: (declension, stem, en) for name, (declension, stem, en) in rows.items()}
    for number, rows in RULES["determiners"].items()
}


def noun_phrase(
    noun: Noun, case: str, chosen: Determiner, plural: bool, adjective: Adjective | None
) -> Phrase:
    """Determiner, adjective and noun, declined."""
    declension, stem, en_determiner = chosen
    gender = "p" if plural else noun.gender
    word, en = noun.de if case == "nom" else noun.de_oblique, noun.en
    if plural:
        word, en = noun.de_plural, noun.en_plural
        if case == "dat" and word[-1] not in "ns":
            word += "n"
    if adjective is not None:
        word = f"{adjective.stem}{_ENDINGS[declension, case, gender]} {word}"
        en = f"{adjective.en} {en}"
    article = stem + _ARTICLES[declension, case, gender]
    if en_determiner == "a" and en[0] in "aeiou":
        en_determiner = "an"
    referent = "n"
    if noun.kind == "p":
        referent = "f" if noun.en == "girl" else noun.gender
    if plural:
        referent = "p"
    return Phrase(
        f"{article} {word}".lstrip(),
        f"{en_determiner} {en}".lstrip(),
        3 if plural else 2,
        gender,
        referent,
        (_GERMAN[gender][3], _ENGLISH[referent][2]),
        noun.kind,
        noun.de,
        definite=declension != "none" and stem not in ("ein", "kein"),
    )


def prepositional(preposition: str, phrase: Phrase) -> str:
    """German preposition and phrase, contracted where German contracts (im, ins, am, zum, zur)."""
    first, _, rest = phrase.de.partition(" ")
    contracted = RULES["contractions"].get(f"{preposition} {first}")
    return f"{contracted} {rest}" if contracted else f"{preposition} {phrase.de}"


def relative_pronoun(head: Phrase, case: str) -> tuple[str, str]:
    """The relative pronoun that takes up `head`, in German and in English."""
    de = _ARTICLES["der", case, head.gender]
    if case == "dat" and head.gender == "p":
        de = "denen"
    return de, "who" if head.kind == "p" else "which"

"""Nouns, verbs, adjectives and adverbials of the built-in German-English corpus, with their forms.

Read from the tables of `builtin_words` when the module is imported.
"""

from __future__ import annotations

from typing import NamedTuple

from headwise.data import builtin_words as words


class Noun(NamedTuple):
    """A noun in both languages.

    `gender` is German (m, f, n); `referent` chooses English he, she or it (m, f, n). `oblique`
    is the singular outside of the nominative (weak nouns add -n). A mass noun has no plural and
    no indefinite article. Places carry the prepositions for "where", German and English.
    """

    de: str
    gender: str
    de_plural: str
    en: str
    en_plural: str
    kind: str
    referent: str = "n"
    oblique: str = ""
    mass: bool = False
    preposition: tuple[str, str] = ("in", "in")
    parts: tuple[str, str] | None = None  # modifier and head of a compound


class Verb(NamedTuple):
    """A verb in both languages; `present` is ich, du, er, wir (= sie)."""

    de: str  # infinitive, with the particle
    present: tuple[str, str, str, str]  # without the particle
    particle: str
    participle: str
    to_infinitive: str
    with_sein: bool  # perfect with sein
    en: str
    en_third: str
    en_past: str
    en_preposition: str  # stays with the verb: looks for the key
    en_particle: str  # follows the object: throws the key away
    subjects: str  # kinds of nouns
    objects: str


class Adjective(NamedTuple):
    """An adjective; `stem` takes the endings, `kinds` are the nouns it goes with."""

    de: str
    stem: str
    en: str
    kinds: str


class Adverb(NamedTuple):
    """An adverbial in both languages; `group` says where and with which tense it stands."""

    de: str
    en: str
    group: str


def _entries(table: str) -> list[list[str]]:
    """The fields of every entry; the bar of a separable verb stands between letters."""
    rows = []
    for line in table.strip().splitlines():
        start = 0
        for i, letter in enumerate(line):
            if letter == "|" and " " in line[start:i]:
                rows.append(line[start:i])
                start = i + 1
        rows.append(line[start:])
    return [[word.replace("_", " ") for word in row.split()] for row in rows]


def plural_of(word: str) -> str:
    """The regular English plural, also the third person singular of a verb."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x", "o")) else "s")


def _nouns(table: str, kind: str) -> list[Noun]:
    nouns = []
    for row in _entries(table):
        de, _, oblique = row[0].partition(":")
        gender, de_plural, en = row[1:4]
        referent = ("f" if de == "Mädchen" else gender) if kind == "p" else "n"
        nouns.append(
            Noun(
                de,
                gender,
                de_plural,
                en,
                row[4] if len(row) > 4 else plural_of(en),
                kind,
                referent,
                oblique or de,
                de_plural == "-",
                (row[5], row[6]) if len(row) > 5 else ("in", "in"),
            )
        )
    return nouns


def _compounds(heads: dict[str, Noun]) -> list[Noun]:
    made = []
    for modifiers, names in words.COMPOUNDS:
        for modifier, en_modifier in _entries(modifiers):
            for head in (heads[name] for name in names.split()):
                made.append(
                    head._replace(
                        de=modifier + head.de.lower(),
                        de_plural=modifier + head.de_plural.lower(),
                        oblique=modifier + head.oblique.lower(),
                        en=f"{en_modifier} {head.en}",
                        en_plural=f"{en_modifier} {head.en_plural}",
                        parts=(modifier, head.de.lower()),
                    )
                )
    return made


def _present(infinitive: str, er_form: str) -> tuple[str, str, str, str]:
    """ich, du, er, wir from the infinitive and the er-form, which holds the vowel change."""
    if infinitive == "wissen":
        return ("weiß", "weißt", "weiß", "wissen")
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    same = stem.endswith(("s", "ß", "z"))  # du liest, er liest
    return (stem + "e", er_form if same else er_form[:-1] + "st", er_form, infinitive)


def _verbs(table: str) -> list[Verb]:
    verbs = []
    for entry, er_form, perfect, english, past, subjects, objects in _entries(table):
        particle, bar, infinitive = entry.rpartition("|")
        participle, _, sein = perfect.partition("+")
        base, _, particle_en = english.partition("++")
        base, _, preposition = base.partition("+")
        verbs.append(
            Verb(
                particle + infinitive,
                _present(infinitive, er_form),
                particle,
                participle,
                f"{particle}zu{infinitive}" if bar else f"zu {infinitive}",
                bool(sein),
                base,
                plural_of(base),
                past,
                preposition,
                particle_en,
                subjects,
                objects,
            )
        )
    return verbs


_SIMPLE = [
    noun
    for table, kind in (
        (words.PERSONS, "p"),
        (words.ANIMALS, "a"),
        (words.FOOD, "e"),
        (words.COOKED, "k"),
        (words.DRINKS, "w"),
        (words.THINGS, "t"),
        (words.OPENING, "o"),
        (words.HOUSE, "h"),
        (words.DOCUMENTS, "d"),
        (words.CLOTHES, "c"),
        (words.VEHICLES, "v"),
        (words.PLACES, "l"),
    )
    for noun in _nouns(table, kind)
]
SIMPLE_NOUNS: dict[str, list[Noun]] = {}  # by kind
for _noun in _SIMPLE:
    SIMPLE_NOUNS.setdefault(_noun.kind, []).append(_noun)
COMPOUND_NOUNS: dict[str, list[Noun]] = {}  # by kind
for _noun in _compounds({noun.de: noun for noun in _SIMPLE}):
    COMPOUND_NOUNS.setdefault(_noun.kind, []).append(_noun)
NAMES: list[Noun] = [
    Noun(name, gender, "", name, "", "p", gender, name)
    for names, gender in ((words.MEN, "m"), (words.WOMEN, "f"))
    for name in names.split()
]
VERBS: dict[str, list[Verb]] = {
    "transitive": _verbs(words.TRANSITIVE),
    "intransitive": _verbs(words.INTRANSITIVE),
    "leaving": _verbs(words.LEAVING),
    "motion": _verbs(words.MOTION),
    "dative": _verbs(words.DATIVE),
    "ditransitive": _verbs(words.DITRANSITIVE),
    "clausal": _verbs(words.CLAUSAL),  # `objects` holds their complementisers
    "control": _verbs(words.CONTROL),
}
ADJECTIVES: dict[str, list[Adjective]] = {}  # by kind of noun
for _row in _entries(words.ADJECTIVES):
    for _kind in _row[3]:
        ADJECTIVES.setdefault(_kind, []).append(Adjective(*_row))
TIMES = [Adverb(*row) for row in _entries(words.TIMES)]
MANNERS = [Adverb(row[0], row[1], "manner") for row in _entries(words.MANNERS)]
NUMBERS = [(row[0], row[1]) for row in _entries(words.NUMBERS)]
CITIES = [(row[0], row[1]) for row in _entries(words.CITIES)]

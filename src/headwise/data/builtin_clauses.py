"""Random phrases and clauses of the built-in corpus.

A `ClauseComposer` draws from a generator of random numbers and notes which words it combined:
subject noun and verb, adjective and noun, modifier and head of a compound. The corpus keeps some of
these combinations for the test set.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from headwise.data import builtin_grammar as grammar
from headwise.data.builtin_grammar import ACCUSATIVE, DATIVE, NOMINATIVE, Clause, Phrase
from headwise.data.builtin_lexicon import (
    ADJECTIVES,
    CITIES,
    COMPOUND_NOUNS,
    MANNERS,
    NAMES,
    NUMBERS,
    SIMPLE_NOUNS,
    TIMES,
    VERBS,
    Adjective,
    Adverb,
    Noun,
    Verb,
)
from headwise.data.builtin_words import MODALS

T = TypeVar("T")
Determiner = tuple[str, str, str]

DEFINITE: Determiner = ("der", "", "the")
_INDEFINITE: Determiner = ("ein", "ein", "a")
_EVERY: Determiner = ("dies", "jed", "every")
_BARE: Determiner = ("none", "", "")
SPEAKERS_OWN: tuple[Determiner, ...] = (
    ("ein", "mein", "my"),
    ("ein", "dein", "your"),
    ("ein", "unser", "our"),
)
# Verbs that neither a manner (slowly) nor, for some, a place goes with.
_STATIVE = {"lieben", "brauchen", "kennen", "verstehen", "vertrauen"}
MANNERLESS = _STATIVE | {"finden", "verlieren", "vergessen", "sehen", "hören"}
_PLACELESS = _STATIVE | {"jagen"}
_CLAUSE_TYPES = (
    ("transitive",) * 9
    + ("intransitive",) * 4
    + ("motion",) * 2
    + (
        "leaving",
        "dative",
        "dative",
        "ditransitive",
        "ditransitive",
        "copula",
    )
)
EVENT_TYPES = tuple(kind for kind in _CLAUSE_TYPES if kind != "copula")
_UNOWNED = {"Mann", "Frau"}  # with a possessive, husband and wife
# In an inner clause er, sie and es stand for a phrase of the same sentence only.
INNER_PRONOUNS = tuple(phrase for phrase in grammar.SPEAKERS if phrase.agreement in (0, 1, 3))
_MODES = ("present",) * 8 + ("past",) * 7 + ("gern",) + tuple(MODALS)
TENSES = ("present", "present", "past")
BY_SUBJECT = {
    (group, kind): [verb for verb in verbs if kind in verb.subjects]
    for group, verbs in VERBS.items()
    for kind in "pa"
}
BY_OBJECT: dict[str, list[Verb]] = {}
for _verb in VERBS["transitive"]:
    for _kind in _verb.objects:
        if "p" in _verb.subjects:
            BY_OBJECT.setdefault(_kind, []).append(_verb)
_TIME_GROUPS = {
    "present": ("any", "pres", "often", "rarely"),
    "past": ("any", "past", "often", "rarely"),
    "gern": ("pres",),
    "modal": ("any", "next"),
    "copula": ("often", "rarely"),
}
_TIMES = {mode: [t for t in TIMES if t.group in groups] for mode, groups in _TIME_GROUPS.items()}
ONLY_ANIMATE = [a for a in ADJECTIVES["p"] if set(a.kinds) <= set("pa")]
# Said of a pronoun, these could as well describe a person.
_EITHER = {"schön", "schmutzig", "wichtig", "interessant", "langweilig", "kalt", "warm", "süß"}
ONLY_THINGS = {
    kind: [a for a in ADJECTIVES[kind] if not set(a.kinds) & set("pa") and a.de not in _EITHER]
    for kind in SIMPLE_NOUNS
}


def unclear(head: Phrase, other: Phrase | None) -> bool:
    """Whether German leaves open which of two phrases is the subject: die Frau, die das Kind ..."""
    return (
        other is not None
        and head.kind in "pa"
        and other.kind in "pa"
        and head.gender != "m"
        and other.gender != "m"
        and other.agreement == head.agreement
    )


class ClauseComposer:
    """Draws phrases and clauses; `combinations` holds the word pairs since it was last emptied."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.random = rng.random
        self.combinations: list[str] = []
        self.used: set[str] = set()  # nouns of this sentence: none comes twice

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    # Phrases

    def _noun(self, kind: str) -> Noun:
        compounds = COMPOUND_NOUNS.get(kind)
        share = 0.12 if kind in "pl" else 0.4
        while True:
            if compounds and self.random() < share:
                noun = self._pick(compounds)
            else:
                noun = self._pick(SIMPLE_NOUNS[kind])
            if noun.de not in self.used:
                break
        self.used.add(noun.de)
        if noun.parts:
            self.combinations.append(f"compound {noun.parts[0]} {noun.parts[1]}")
        return noun

    def _adjective(self, noun: Noun, share: float = 0.3) -> Adjective | None:
        if self.random() >= share or noun.kind not in ADJECTIVES:
            return None
        adjective = self._pick(ADJECTIVES[noun.kind])
        self.combinations.append(f"adjective {adjective.de} {noun.de}")
        return adjective

    def _subject(
        self,
        kinds: str = "p",
        definite: bool = False,
        pronouns: tuple[Phrase, ...] = grammar.SPEAKERS,
    ) -> Phrase:
        """A subject; inner clauses take INNER_PRONOUNS, no head of a clause a pronoun or name."""
        chance = self.random()
        kind = "a" if kinds == "a" or ("a" in kinds and self.random() < 0.3) else "p"
        if kind == "p" and chance < 0.2 and pronouns:
            return self._pick(pronouns)
        if kind == "p" and chance < 0.3 and pronouns:
            return self._name(NOMINATIVE)
        noun = self._noun(kind)
        chance, plural = self.random(), self.random() < 0.2
        determiner: Determiner = DEFINITE
        if chance < 0.1 and noun.de not in _UNOWNED:
            determiner = self._pick(SPEAKERS_OWN)
        elif chance < 0.18:
            determiner = ("dies", "dies", "these" if plural else "this")
        elif chance < 0.27 and not definite:
            determiner = ("none", *self._pick(NUMBERS)) if plural else _INDEFINITE
        elif chance < 0.31 and not definite and not plural:
            determiner = _EVERY
        return grammar.noun_phrase(noun, NOMINATIVE, determiner, plural, self._adjective(noun, 0.2))

    def _name(self, case: int) -> Phrase:
        name = self._pick([name for name in NAMES if name.de not in self.used])
        self.used.add(name.de)
        return grammar.noun_phrase(name, case, _BARE)._replace(definite=True)

    def _object(self, kind: str, case: int, subject: Phrase, negated: bool = False) -> Phrase:
        noun = self._noun(kind)
        plural = not noun.mass and self.random() < 0.2
        chance = self.random()
        determiner: Determiner = DEFINITE
        if chance < 0.15 and noun.de not in _UNOWNED:
            stem, en = subject.own()
            determiner = ("ein", stem, en)
        elif chance < 0.2:
            determiner = ("dies", "dies", "these" if plural else "this")
        elif chance < 0.5:
            many = plural or noun.mass
            if negated:
                determiner = ("ein", "kein", "any" if many else "a")
            elif plural and self.random() < 0.5:
                determiner = ("none", *self._pick(NUMBERS))
            elif many:
                determiner = _BARE
            else:
                determiner = _INDEFINITE
        return grammar.noun_phrase(noun, case, determiner, plural, self._adjective(noun))

    def _accusative(self, verb: Verb, subject: Phrase, negated: bool = False) -> Phrase:
        kind = self._pick(verb.objects)
        if kind == "p" and subject.agreement in (2, 4) and self.random() < 0.12:
            return self._pick(grammar.SPEAKER_OBJECTS)[0]
        if kind == "p" and self.random() < 0.12:
            return self._name(ACCUSATIVE)
        return self._object(kind, ACCUSATIVE, subject, negated)

    def _dative(self, kinds: str, subject: Phrase) -> Phrase:
        if subject.agreement in (2, 4) and self.random() < 0.15:
            phrase, de = self._pick(grammar.SPEAKER_OBJECTS)
            return phrase._replace(de=de)
        noun = self._noun(self._pick(kinds))
        determiner: Determiner = DEFINITE
        if self.random() < 0.25 and noun.de not in _UNOWNED:
            stem, en = subject.own()
            determiner = ("ein", stem, en)
        plural = self.random() < 0.2
        return grammar.noun_phrase(noun, DATIVE, determiner, plural, self._adjective(noun, 0.2))

    def _place(self) -> tuple[str, str]:
        """Where: in dem Garten, at the station, in Berlin."""
        if self.random() < 0.15:
            city, en = self._pick(CITIES)
            return f"in {city}", f"in {en}"
        noun = self._noun("l")
        determiner = DEFINITE if self.random() < 0.85 else ("dies", "dies", "this")
        phrase = grammar.noun_phrase(noun, DATIVE, determiner, False, self._adjective(noun, 0.2))
        preposition, en = noun.preposition
        return grammar.prepositional(preposition, phrase), f"{en} {phrase.en}"

    def _direction(self, verb: Verb) -> tuple[str, str]:
        """Where to: in den Garten, to the station, nach Berlin."""
        if verb.de == "reisen" or self.random() < 0.2:
            city, en = self._pick(CITIES)
            return f"nach {city}", f"to {en}"
        noun = self._noun("l")
        inside = noun.preposition == ("in", "in")
        phrase = grammar.noun_phrase(
            noun, ACCUSATIVE if inside else DATIVE, DEFINITE, False, self._adjective(noun, 0.2)
        )
        de = grammar.prepositional("in" if inside else "zu", phrase)
        return de, f"{'into' if inside else 'to'} {phrase.en}"

    def _time(self, mode: str, share: float) -> Adverb | None:
        if self.random() >= share:
            return None
        return self._pick(_TIMES["modal" if mode in MODALS else mode])

    # Clauses

    def _clause(
        self,
        subject: Phrase | None = None,
        mode: str | None = None,
        types: tuple[str, ...] = _CLAUSE_TYPES,
        time: float = 0.3,
        place: float = 0.25,
        negation: float = 0.12,
        pronouns: tuple[Phrase, ...] = grammar.SPEAKERS,
    ) -> Clause:
        """A clause of one of `types`; the shares say how often the optional parts come."""
        kind = self._pick(types)
        if kind == "copula":
            subject = subject or self._subject("pa", True, pronouns)
            return self._animate_copula(subject, mode or self._pick(TENSES))
        mode = mode or self._pick(_MODES)
        negated = self.random() < negation and (subject is None or subject.definite)
        if subject is None:
            verb = self._pick(VERBS[kind])
            subject = self._subject(verb.subjects, negated, pronouns)
        else:
            if not BY_SUBJECT[kind, subject.kind]:
                kind = "transitive"  # animals give nothing to anybody
            verb = self._pick(BY_SUBJECT[kind, subject.kind])
        if subject.noun:
            self.combinations.append(f"subject {subject.noun} {verb.de}")
        third = subject.agreement == 2
        if mode == "past" and verb.en == verb.en_past and not third:
            mode = "present"  # they read: only he reads tells the tenses apart
        if mode == "gern" and (negated or verb.de in MANNERLESS):
            mode = "present"
        clause = Clause(subject, verb, mode, negated=negated)
        self._add_objects(clause, kind)
        clause.time = self._time(mode, time)
        if negated and clause.time is not None and clause.time.group in ("often", "rarely"):
            clause.time = None
        if (
            kind in ("transitive", "intransitive", "motion")
            and verb.de not in MANNERLESS
            and not (negated or mode == "gern")
            and self.random() < 0.12
        ):
            clause.manner = self._pick(MANNERS)
        if kind == "motion":
            clause.place = self._direction(verb)
        elif (
            kind in ("transitive", "intransitive")
            and verb.de not in _PLACELESS
            and self.random() < (place if kind == "transitive" else 2 * place)
        ):
            clause.place = self._place()
        return clause

    def _add_objects(self, clause: Clause, kind: str) -> None:
        verb, subject = clause.verb, clause.subject
        if kind == "transitive":
            clause.accusative = self._accusative(verb, subject, clause.negated)
        elif kind == "dative":
            clause.dative = self._dative(verb.objects, subject)
        elif kind == "ditransitive":
            clause.dative = self._dative("p", subject)
            clause.accusative = self._object(
                self._pick(verb.objects), ACCUSATIVE, subject, clause.negated
            )
        if clause.negated and clause.accusative is not None:
            clause.kein = not clause.accusative.definite

    def _animate_copula(self, subject: Phrase, mode: str) -> Clause:
        mode = "past" if mode == "past" else "present"
        return self._copula(subject, mode, ONLY_ANIMATE if subject.pronoun else None)

    def _copula(self, subject: Phrase, mode: str, adjectives: list[Adjective] | None) -> Clause:
        """`subject` is ..., with one adjective or two."""
        options = [
            adjective
            for adjective in adjectives or ADJECTIVES[subject.kind]
            if subject.kind in adjective.kinds
            and adjective.de not in subject.de  # no old man who is old
        ]
        chosen = [self._pick(options)]
        if self.random() < 0.2:
            second = self._pick(options)
            if second != chosen[0]:
                chosen.append(second)
        if subject.noun:
            self.combinations += [f"adjective {a.de} {subject.noun}" for a in chosen]
        return Clause(
            subject,
            grammar.BE,
            mode,
            predicate=(" und ".join(a.de for a in chosen), " and ".join(a.en for a in chosen)),
            time=self._time("copula", 0.12),
        )

    def _relative(self, head: Phrase) -> Phrase:
        """The phrase with a relative clause behind it."""
        who = "who" if head.kind == "p" else "which"
        mode = self._pick(TENSES)
        if head.kind == "l" and self.random() < 0.6:
            clause = self._clause(None, mode, ("intransitive",), 0.15, 0.0, pronouns=INNER_PRONOUNS)
            de, en = f"wo {clause.de_subordinate()}", f"where {clause.en_main()}"
        elif head.kind in "pa" and self.random() < 0.6:
            mark = len(self.combinations)
            clause = self._clause(head, mode, time=0.15, place=0.25)
            if unclear(head, clause.accusative):
                del self.combinations[mark:]
                clause = self._clause(head, mode, ("intransitive", "motion", "dative"), 0.1)
            de = f"{grammar.relative_pronoun(head, NOMINATIVE)} {clause.de_subordinate(False)}"
            en = f"{who} {clause.en_main(subject=False)}"
        else:
            clause = self._object_gap(head, mode)
            case = DATIVE if clause.verb in VERBS["dative"] else ACCUSATIVE
            de = f"{grammar.relative_pronoun(head, case)} {clause.de_subordinate()}"
            en = f"{who} {clause.en_main()}"
        return head._replace(de=f"{head.de}, {de},", en=f"{head.en} {en}")

    def _object_gap(self, head: Phrase, mode: str, dative: float = 0.2) -> Clause:
        """A clause whose object is `head`, left out."""
        verbs = BY_OBJECT[head.kind]
        if head.kind == "p" and self.random() < dative:
            verbs = VERBS["dative"]
        verb = self._pick(verbs)
        mark = len(self.combinations)
        subject = self._subject(pronouns=INNER_PRONOUNS)
        if unclear(head, subject):
            del self.combinations[mark:]
            subject = self._pick(INNER_PRONOUNS)
        if subject.noun:
            self.combinations.append(f"subject {subject.noun} {verb.de}")
        if verb.en == verb.en_past and subject.agreement != 2:
            mode = "present"
        return Clause(subject, verb, mode, time=self._time(mode, 0.1))

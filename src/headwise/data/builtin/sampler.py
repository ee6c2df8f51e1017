"""Draws sentence pairs from the rules and the lexicon of the built-in corpus.

A sentence of rules.yaml is a template of one or two clauses. A clause is drawn as its parts in both
languages (subject, finite verb, time, ...) and spelled in one of the orders of the rules. Both
sentences of a pair are spelled from one structure, so that each has one correct translation.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from headwise.data.builtin.grammar import (
    ADJECTIVES,
    COMPOUNDS,
    COMPOUNDS_OF,
    NOUNS,
    PRONOUNS,
    RULES,
    SIMPLE_OF,
    VERBS,
    Clause,
    Phrase,
    Word,
    noun_phrase,
    relative_pronoun,
    spelled,
    verb_parts,
)

T = TypeVar("T")
Rule = Mapping[str, Any]  # options of a clause; rules.yaml explains the keys

_SENTENCES = [row for row in RULES["sentences"] for _ in range(row["weight"])]
_SPEAKERS = [PRONOUNS[name] for name in RULES["speakers"]]
_ANIMATE = frozenset("pa")
_WHERE = {noun["de"]: noun["where"] for noun in NOUNS + COMPOUNDS}
_CASES = {"subject": 0, "object": 1, "dative": 2}


class _Discarded(Exception):
    """The sentence has two meanings or a noun twice, or no word fits a position."""


@cache
def _verbs(frame: str, fixed: tuple[tuple[str, str], ...]) -> list[Word]:
    """The verbs of a frame that accept the fixed (role, kind of noun) pairs."""
    return [
        verb
        for verb in VERBS
        if frame in verb["frames"].split("/")
        and all(kind in verb.get(role, verb["adverbials"]) for role, kind in fixed)
    ]


@cache
def _adjectives(kind: str, of_noun: bool) -> list[Word]:
    """Adjectives of a kind of noun; those of a pronoun fit either animate or inanimate nouns."""
    return [
        adjective
        for adjective in ADJECTIVES
        if kind in adjective["kinds"]
        and (of_noun or len({letter in "pa" for letter in adjective["kinds"]}) == 1)
    ]


class Sampler:
    """Draws sentence pairs, the same from a seed in every process.

    `combinations` lists those of the last pair: a subject noun with its verb, an adjective with its
    noun, or the modifier of a compound with its head. The corpus reserves some for the test set.
    `layout` is that of its English sentence in the rules.
    """

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)  # by the SHA-512 of the string
        self.combinations: list[str] = []
        self.layout = ""
        self._used: set[str] = set()  # nouns of this sentence; none is repeated

    def draw(self) -> tuple[str, str]:
        """One sentence pair (German, English)."""
        while True:
            self.combinations, self._used = [], set()
            sentence = self._pick(_SENTENCES)
            self.layout = sentence["en"]
            try:
                clauses = {"a": self._clause(sentence["a"])}
                if "b" in sentence:
                    clauses["b"] = self._clause(sentence["b"], first=clauses["a"])
            except _Discarded:
                continue
            return spelled(sentence["de"], "de", clauses), spelled(sentence["en"], "en", clauses)

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _pick(self, options: Sequence[T]) -> T:
        if not options:
            raise _Discarded
        return options[int(self.random.random() * len(options))]

    def _weighted(self, shares: Mapping[str, int]) -> str:
        return self.random.choices(list(shares), list(shares.values()))[0]

    # Clauses

    def _clause(
        self, rule: Rule, first: Clause | None = None, head: Phrase | None = None
    ) -> Clause:
        """A clause.

        Args:
            rule: its options in the template of the sentence.
            first: the previous clause, which sets its tense and may set phrases.
            head: the noun phrase that it describes as a relative clause.
        """
        rule = {**RULES["clause"], **rule}
        phrases: dict[str, Phrase] = {}  # by role; the fixed ones first
        if first:
            phrases = {role: _again(first, role, other) for role, other in rule["again"].items()}
        if rule["wh"]:
            rule |= RULES["wh"][self._weighted(rule["wh"])]
            phrases[rule["role"]] = self._wh(rule, head)
        frame = self._weighted(rule["frames"])
        verb = self._pick(_verbs(frame, tuple((role, p.kind) for role, p in phrases.items())))
        rule["negated"] = self._chance(rule["negation"])
        if "subject" not in phrases:
            phrases["subject"] = self._phrase("subject", verb["subject"], rule)
        subject = phrases["subject"]
        for role in ("dative", "object"):
            if verb[role] and role not in phrases:
                phrases[role] = self._phrase(role, verb[role], rule, subject)
        if rule["role"] in ("subject", "object") and "object" in phrases:
            _check_order(verb, subject, phrases["object"])

        tense = first.tense if first else self._weighted(rule["tenses"])
        parts = verb_parts(verb, tense, subject.pronoun.person, rule["negated"])
        clause = Clause(tense, phrases, parts, parts.copy())
        for role, phrase in phrases.items():
            part, case = f"{role}_{phrase.form}", _CASES.get(role, 0)
            clause.add("wh" if role == rule["role"] else part, phrase.de[case], phrase.en[case])
            if part == "object_indefinite":
                clause.de["nicht"] = ""  # the object has kein
        if frame == "be":
            adjective = self._adjective(subject.kind, subject.noun)
            clause.add("predicate", adjective["de"], adjective["en"])
        elif subject.noun:
            self.combinations.append(f"subject {subject.noun} {verb['infinitive']}")
        self._add_adverbials(clause, rule, verb)
        return clause

    def _wh(self, rule: Rule, head: Phrase | None) -> Phrase:
        """A question word, a noun phrase with `which` or `how many`, or a relative pronoun."""
        if "de" in rule:
            return Phrase(rule["de"], rule["en"], PRONOUNS["er/he"], self._pick(rule["kinds"]))
        return relative_pronoun(head) if head else self._phrase("wh", rule["kinds"], rule)

    def _add_adverbials(self, clause: Clause, rule: Rule, verb: Word) -> None:
        for part in verb["adverbials"].split():
            if part == rule["role"] or not self._chance(rule[part]):
                continue
            if part in ("place", "direction"):
                clause.add(part, *self._place(part, rule))
            elif part == "time" or not rule["negated"]:
                group = clause.de["adverbs"] if part == "time" else part  # adverbs of the tense
                clause.add(part, *self._pick(list(RULES["adverbs"][group].items())))
        movable = [part for part in ("time", "manner", "place") if part in clause.de]
        if movable and self._chance(rule["front"]):
            part = self._pick(movable)
            clause.add("front", clause.de.pop(part), clause.en.pop(part))

    def _place(self, part: str, rule: Rule) -> tuple[str, str]:
        """Where (in dem Garten, at the station, in Berlin) or where to (nach Berlin)."""
        phrase = self._phrase("place", "l", rule)
        de, case, en = RULES["prepositions"][_WHERE[phrase.noun]][part]
        return f"{de} {phrase.de[_CASES[case]]}", f"{en} {phrase.en[1]}"

    # Phrases

    def _phrase(self, role: str, kinds: str, rule: Rule, subject: Phrase | None = None) -> Phrase:
        """A pronoun, a name or a noun phrase of one of the kinds.

        Args:
            role: `subject`, `object`, `dative`, `place` or `wh`; determines the choices.
            kinds: letters as of nouns.
            rule: of the clause.
            subject: of the clause, if this phrase is not the subject.
        """
        kind, choices = self._pick(kinds), RULES["choices"]
        described = self._chance(rule.get(f"relative_{role}", 0))
        choice = self._weighted(
            choices["described"] if described else choices.get(f"{role} {kind}", choices[role])
        )
        if choice == "pronoun":
            if subject and subject.pronoun in _SPEAKERS:
                raise _Discarded
            names = RULES["speakers"] if subject else rule["pronouns"]
            return Phrase.from_pronoun(PRONOUNS[self._pick(names)])
        noun = self._noun(kind.upper() if choice == "name" else kind)
        plural = noun["plural"] != "" and self._chance(0.2)
        number = "plural" if plural else "singular" if noun["plural"] else "mass"
        form = "indefinite" if choice == "a" else "definite"
        if choice == "own" and noun["de"] not in RULES["unowned"]:
            owner = subject.pronoun if subject else self._pick(_SPEAKERS)
            determiner: Sequence[str] = ("ein", *owner.own)
        else:
            denied = choice == "a" and subject and rule["negated"]
            determiner = self._pick(RULES["determiners"][number]["kein" if denied else choice])
        adjective = self._adjective(noun["kind"], noun["de"]) if self._chance(0.25) else None
        phrase = noun_phrase(noun, determiner, plural, adjective, form)
        return self._with_relative_clause(phrase) if described else phrase

    def _noun(self, kind: str) -> Word:
        """A noun that is new in the sentence, simple or a compound."""
        compound = kind in COMPOUNDS_OF and self._chance(0.2)
        noun = self._pick((COMPOUNDS_OF if compound else SIMPLE_OF)[kind])
        if noun["de"] in self._used:
            raise _Discarded
        self._used.add(noun["de"])
        if modifier := noun.get("modifier"):
            self.combinations.append(f"compound {modifier} {noun['de'].removeprefix(modifier)}")
        return noun

    def _adjective(self, kind: str, noun: str) -> Word:
        adjective = self._pick(_adjectives(kind, noun != ""))
        if noun:
            self.combinations.append(f"adjective {adjective['de']} {noun}")
        return adjective

    def _with_relative_clause(self, head: Phrase) -> Phrase:
        words = RULES["relatives"].get(head.kind) or RULES["relatives"]["thing"]
        clause = self._clause({**RULES["relative"], "wh": words}, head=head)
        de, en = clause.spelled("de", "verb_final"), clause.spelled("en", "main")
        return head._replace(
            de=[f"{form}, {de}," for form in head.de], en=[f"{form} {en}" for form in head.en]
        )


def _again(first: Clause, role: str, other: str) -> Phrase:
    """The pronoun for the phrase of the previous clause with the role `other`."""
    phrase, subject = first.phrases[other], first.phrases["subject"]
    # A pronoun for an animate object could also refer to the subject: er ist müde.
    alike = phrase.pronoun.de == subject.pronoun.de
    if role == "subject" != other and phrase.kind in _ANIMATE and alike:
        raise _Discarded
    return Phrase.from_pronoun(phrase.pronoun, phrase.kind)


def _check_order(verb: Word, subject: Phrase, thing: Phrase) -> None:
    """Discard a clause whose subject is ambiguous: die Frau, die das Mädchen sieht."""
    alike = all(phrase.de[0] == phrase.de[1] for phrase in (subject, thing))
    number = subject.pronoun.person == thing.pronoun.person
    exchangeable = subject.kind in verb["object"] and thing.kind in verb["subject"]
    if alike and number and exchangeable:
        raise _Discarded

"""Draws sentence pairs from the rules and the lexicon of the built-in corpus.

A sentence of rules.yaml lays out one or two clauses. A clause is drawn as its parts in both
languages (subject, finite verb, time, ...), and spelled by naming them in one of the orders of the
rules. Every pair is one structure spelled twice, so that a sentence has one right translation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

from headwise.data.builtin import phrases
from headwise.data.builtin.clauses import Clause, Gap, be_parts, spelled, verb_parts
from headwise.data.builtin.lexicon import (
    ADJECTIVES,
    COMPOUNDS_OF,
    KINDS,
    SIMPLE_OF,
    VERBS,
    Adjective,
    Noun,
    Verb,
)
from headwise.data.builtin.phrases import Phrase
from headwise.data.builtin.rules import RULES, SENTENCES, Rule, weighted

T = TypeVar("T")

_ANIMATE = frozenset("pa")
_THINGS = "ooohhhtdcvlek"  # kinds of what is described
_CHOICE = {role: weighted(shares) for role, shares in RULES["determiner_choice"].items()}
_RELATIVES = {kind: weighted(roles) for kind, roles in RULES["relatives"].items()}
_TIMES = {
    tense: [(group, de, en) for group in groups for de, en in RULES["times"][group].items()]
    for tense, groups in RULES["times_of"].items()
}
_MANNERS, _CITIES, _NUMBERS = (
    list(RULES[name].items()) for name in ("manners", "cities", "numbers")
)
_ADJECTIVES = {kind: [a for a in ADJECTIVES if kind in a.kinds] for kind in KINDS}
_SAID_OF_PRONOUNS = {  # adjectives that tell a person or animal from a thing
    kind: [a for a in options if _ANIMATE.issuperset(a.kinds) or _ANIMATE.isdisjoint(a.kinds)]
    for kind, options in _ADJECTIVES.items()
}
_SIMPLE = ("present", "past")


@cache
def _verbs(frame: str, subject: str, objects: str, particles: bool) -> list[Verb]:
    """The verbs of a frame that take the kind of subject and one of the kinds of objects."""
    return [
        verb
        for verb in VERBS
        if frame in verb.frame.split("/")
        and subject in verb.subjects
        and (not objects or set(objects) & set(verb.objects))
        and (particles or not verb.en_particle)
    ]


_WH = {
    word: Gap(row["gap"], word, row["en"], weighted(row["frames"]), row.get("kinds", ""))
    for word, row in RULES["wh"].items()
}
_RELATIVE = Rule.of(RULES["relative"])
_WHOLE = Gap("")
_EVENTS = weighted(RULES["events"])


class Sampler:
    """Draws pairs whose combinations of words are accepted.

    A combination is a subject noun with its verb, an adjective with its noun, or the modifier of a
    compound with its head; `combinations` holds those of the last pair. The corpus keeps some of
    them for the test set.
    """

    def __init__(self, seed: str, accept: Callable[[list[str]], bool] = lambda _: True) -> None:
        # A string seeds the generator by its SHA-512, the same in every process.
        self.random = random.Random(seed).random
        self.accept = accept
        self.combinations: list[str] = []
        self._used: set[str] = set()  # nouns of this sentence: none comes twice
        self._clear = True  # whether this sentence can be understood in one way only

    def draw(self) -> tuple[str, str]:
        """One sentence pair (German, English)."""
        while True:
            self.combinations, self._used, self._clear = [], set(), True
            sentence = self._pick(SENTENCES)
            clauses: dict[str, Clause] = {}
            for name, rule in sentence.rules.items():
                clauses[name] = self._clause(rule, clauses.get("a"))
            if self._clear and self.accept(self.combinations):
                return spelled(sentence.de, "de", clauses), spelled(sentence.en, "en", clauses)

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    # Phrases

    def _noun(self, kind: str) -> Noun:
        compounds = COMPOUNDS_OF.get(kind)
        share = (0.12 if kind in "pl" else 0.4) if compounds else 0.0
        noun = None
        while noun is None or noun.de in self._used:
            noun = self._pick(COMPOUNDS_OF[kind] if self.random() < share else SIMPLE_OF[kind])
        self._used.add(noun.de)
        if noun.modifier:
            self.combinations.append(f"compound {noun.modifier} {noun.de[len(noun.modifier) :]}")
        return noun

    def _adjective(self, noun: Noun) -> Adjective | None:
        if self.random() >= 0.25 or not _ADJECTIVES[noun.kind]:
            return None
        adjective = self._pick(_ADJECTIVES[noun.kind])
        self.combinations.append(f"adjective {adjective.de} {noun.de}")
        return adjective

    def _phrase(
        self, noun: Noun, case: str, role: str, owner: Phrase | None = None, negated: bool = False
    ) -> Phrase:
        """A noun phrase; `role` is a key of determiner_choice, `owner` the possessor of `own`."""
        countable = bool(noun.de_plural)
        plural = countable and role != "place" and self.random() < 0.2
        name = self._pick(_CHOICE[role])
        if name == "own" and noun.de not in RULES["unowned"]:
            own = (owner or self._pick(phrases.SPEAKERS["nom"])).own
            chosen: phrases.Determiner = ("ein", *own)
        elif name == "a" and plural and not negated and self.random() < 0.5:
            chosen = ("none", *self._pick(_NUMBERS))
        else:
            name = "the" if name == "own" else "kein" if negated and name == "a" else name
            number = "plural" if plural else "singular" if countable else "mass"
            chosen = phrases.DETERMINERS[number][name]
        return phrases.noun_phrase(noun, case, chosen, plural, self._adjective(noun))

    def _subject(self, kinds: str, role: str, pronouns: Sequence[Phrase]) -> Phrase:
        kind = "a" if kinds == "a" or ("a" in kinds and self.random() < 0.3) else "p"
        chance = self.random() if kind == "p" and pronouns else 1.0
        if chance < 0.2:
            return self._pick(pronouns)
        if chance < 0.3:
            return self._name()
        return self._phrase(self._noun(kind), "nom", role)

    def _name(self) -> Phrase:
        name = self._pick(phrases.NAMES)
        self._clear &= name.noun not in self._used
        self._used.add(name.noun)
        return name

    def _object(self, kinds: str, case: str, subject: Phrase, negated: bool) -> Phrase:
        """A speaker, a name, or a noun phrase."""
        kind = self._pick(kinds)
        chance = self.random() if kind == "p" else 1.0
        if chance < 0.12 and subject.person >= 2 and subject.noun:
            return self._pick(phrases.SPEAKERS[case])
        if 0.12 <= chance < 0.2 and case == "acc":
            return self._name()
        role = "object" if case == "acc" else "dative"
        return self._phrase(self._noun(kind), case, role, subject, negated)

    def _relative(self, head: Phrase) -> Phrase:
        """The phrase with a relative clause behind it."""
        animate = head.kind in _ANIMATE
        kind = "animate" if animate else "place" if head.kind == "l" else "thing"
        role = self._pick(_RELATIVES[kind])
        case = {"subject": "nom", "dative": "dat"}.get(role, "acc")
        de, en = phrases.relative_pronoun(head, case)
        frames = {
            "subject": _EVENTS if animate else ["be"],
            "accusative": ["transitive"],
            "dative": ["dative"],
            "place": ["intransitive"],
        }[role]
        if role == "place":
            de, en = "wo", "where"
        kinds = head.kind if role in ("accusative", "dative") else ""
        clause = self._clause(_RELATIVE, None, Gap(role, de, en, frames, kinds, head))
        inner = clause.spelled("de", "verb_final"), clause.spelled("en", "main")
        return head._replace(de=f"{head.de}, {inner[0]},", en=f"{head.en} {inner[1]}")

    def _question(self, word: str) -> Gap:
        """The gap of a question word; `welch` and `wie viele` take a noun."""
        gap = _WH[word]
        if word not in ("welch", "wie viele"):
            return gap
        noun = self._noun(self._pick(gap.kinds))
        plural = word == "wie viele" or self.random() < 0.3
        if not noun.de_plural:
            plural, gap = False, _WH["welch"]
        declension = "dies" if gap.de == "welch" else "none"
        chosen = (declension, gap.de, gap.en)
        phrase = phrases.noun_phrase(noun, "acc", chosen, plural, self._adjective(noun))
        return gap._replace(de=phrase.de, en=phrase.en, kinds=noun.kind, phrase=phrase)

    # Clauses

    def _clause(self, rule: Rule, first: Clause | None = None, gap: Gap = _WHOLE) -> Clause:
        """A clause; `first` is the one before it in the sentence."""
        if rule.wh:
            gap = self._question(self._pick(rule.wh))
        frame = self._pick(gap.frames or rule.frames)
        tense = self._pick(rule.tenses) if rule.tenses != "same" else first.tense if first else ""
        if tense not in _SIMPLE and (frame == "be" or rule.tenses == "same"):
            tense = "present"
        negated = self.random() < rule.negation
        subject = self._given_subject(rule, first, gap)
        again = first.object if first and rule.object == "again" else None
        kinds = again.kind if again else gap.kinds
        verb = None if frame == "be" else self._verb(frame, subject, kinds, rule)
        relative = rule.relative == "subject" or (rule.relative == "maybe" and self.random() < 0.35)
        if subject is None:
            role = "head" if negated or relative else "subject"
            pronouns = phrases.SPEAKERS["nom"] if rule.subject == "inner" else phrases.SUBJECTS
            kinds = verb.subjects if verb else "pa"
            subject = self._subject(kinds, role, () if relative else pronouns)
        clause = Clause(subject, verb, tense, negated, gap)
        if gap.role != "subject":
            clause.add("wh", gap.de, gap.en)
        self._add_verb(clause)
        self._add_objects(clause, again, rule.relative == "object")
        self._add_adverbials(clause, rule)
        shown = self._relative(subject) if relative else subject
        clause.add("subject", shown.de, shown.en)
        return clause

    def _given_subject(self, rule: Rule, first: Clause | None, gap: Gap) -> Phrase | None:
        """The subject where the rule or the gap settles it."""
        if gap.role == "subject" and gap.phrase:
            return gap.phrase._replace(de=gap.de, en=gap.en)
        if rule.subject == "wer":
            return phrases.WER
        if rule.subject == "description":
            return self._phrase(self._noun(self._pick(_THINGS)), "nom", "head")
        if first is None:
            return None
        if rule.subject == "again":
            return phrases.pronoun(first.subject, "nom")
        if rule.subject == "same":
            return first.subject._replace(de="", en="")
        if rule.subject == "thing":
            thing = first.object
            if thing and thing.kind not in _ANIMATE:
                return phrases.pronoun(thing, "nom")
            self._clear = False
        return None

    def _verb(self, frame: str, subject: Phrase | None, kinds: str, rule: Rule) -> Verb:
        # A particle would be too far away behind an object with a relative clause.
        kind = subject.kind if subject else ""
        options = _verbs(frame, kind, kinds, rule.relative != "object")
        self._clear &= bool(options)
        return self._pick(options or _verbs(frame, "", "", True))

    def _add_verb(self, clause: Clause) -> None:
        """The forms of the verb, or those of to be and an adjective."""
        subject, verb = clause.subject, clause.verb
        if verb:
            german, english = verb_parts(verb, clause.tense, subject.person, clause.negated)
            combination = f"subject {subject.noun} {verb.particle}{verb.infinitive}"
        else:
            german, english = be_parts(clause.tense, subject.person, clause.negated)
            known = _ADJECTIVES if subject.noun else _SAID_OF_PRONOUNS
            adjective = self._pick(known[subject.kind])
            clause.add("predicate", adjective.de, adjective.en)
            combination = f"adjective {adjective.de} {subject.noun}"
        clause.de |= german
        clause.en |= english
        if subject.noun:
            self.combinations.append(combination)

    def _add_objects(self, clause: Clause, again: Phrase | None, relative: bool) -> None:
        """What the frame of the verb takes; `again` is taken up by a pronoun."""
        verb, missing = clause.verb, clause.gap.role
        frame = verb.frame if verb else ""
        if verb and missing != "dative" and frame in ("dative", "ditransitive"):
            kinds = verb.objects if frame == "dative" else "p"
            dative = self._object(kinds, "dat", clause.subject, False)
            part = "dative" if dative.noun else "dative_pronoun"
            clause.add(part, dative.de, dative.en, "dative")
        if missing == "accusative":
            self._check_clear(clause.gap, clause.subject)
        elif verb and frame.startswith(("transitive", "ditransitive")):
            if again:
                thing = phrases.pronoun(again, "acc")
            else:
                thing = self._object(verb.objects, "acc", clause.subject, clause.negated)
            clause.object = thing
            if missing == "subject":
                self._check_clear(clause.gap, thing)
            shown = self._relative(thing) if relative and thing.noun else thing
            part = "definite" if thing.definite else "indefinite"
            clause.add(part if thing.noun else "pronoun", shown.de, shown.en, "object")
            if not thing.definite:
                clause.de["nicht"] = ""  # kein stands with the object

    def _check_clear(self, gap: Gap, other: Phrase) -> None:
        """Refuse what leaves open which phrase is the subject: die Frau, die das Mädchen sieht."""
        head = gap.phrase
        if head and head.kind in _ANIMATE and other.kind in _ANIMATE and head.gender != "m":
            alike = other.noun and (head.gender == "p") == (other.gender == "p")
            self._clear &= not alike or (other.gender == "m" and not other.name)

    def _add_adverbials(self, clause: Clause, rule: Rule) -> None:
        verb, negated, missing = clause.verb, clause.negated, clause.gap.role
        frame, allowed = (verb.frame, verb.adverbials) if verb else ("be", "")
        group = ""
        if missing != "time" and self.random() < rule.time:
            tense = clause.tense if clause.tense in _SIMPLE else "modal"
            group, de, en = self._pick(_TIMES[tense if verb else "be"])
            often = group in ("often", "rarely")
            if not (often and negated):
                clause.add("time", de, en, "often" if often else "")
        if "m" in allowed and not negated and self.random() < rule.manner:
            clause.add("manner", *self._pick(_MANNERS))
        share = 2 * rule.place if frame == "intransitive" else rule.place
        if verb and frame == "motion":
            clause.add("place", *self._direction(verb))
        elif "p" in allowed and missing != "place" and self.random() < share:
            clause.add("place", *self._place())
        if self.random() < rule.front:
            options = [part for part in ("time", "manner", "place") if part in clause.de]
            fixed = {"time"} if group == "rarely" else {"place"} if frame == "motion" else set()
            options = [part for part in options if part not in fixed]
            if options:
                clause.add_front(self._pick(options))

    def _place(self) -> tuple[str, str]:
        """Where: in dem Garten, at the station, in Berlin."""
        if self.random() < 0.15:
            de, en = self._pick(_CITIES)
            return f"in {de}", f"in {en}"
        noun = self._noun("l")
        preposition, en = noun.where.split("/")
        phrase = self._phrase(noun, "dat", "place")
        return phrases.prepositional(preposition, phrase), f"{en} {phrase.en}"

    def _direction(self, verb: Verb) -> tuple[str, str]:
        """Where to: in den Garten, to the station, nach Berlin."""
        if verb.infinitive == "reisen" or self.random() < 0.2:
            de, en = self._pick(_CITIES)
            return f"nach {de}", f"to {en}"
        noun = self._noun("l")
        inside = noun.where == "in/in"
        phrase = self._phrase(noun, "acc" if inside else "dat", "place")
        de = phrases.prepositional("in" if inside else "zu", phrase)
        return de, f"{'into' if inside else 'to'} {phrase.en}"

"""The kinds of sentences of the built-in corpus: statements, questions and compound sentences."""

from __future__ import annotations

import random
from collections.abc import Callable

from headwise.data import builtin_grammar as grammar
from headwise.data.builtin_clauses import (
    BY_OBJECT,
    BY_SUBJECT,
    DEFINITE,
    EVENT_TYPES,
    INNER_PRONOUNS,
    MANNERLESS,
    ONLY_ANIMATE,
    ONLY_THINGS,
    SPEAKERS_OWN,
    TENSES,
    ClauseComposer,
    unclear,
)
from headwise.data.builtin_grammar import ACCUSATIVE, NOMINATIVE, Clause, Phrase
from headwise.data.builtin_lexicon import VERBS, Verb

_KINDS_OF_THINGS = "ooohhhtdcvlek"
_GETTING = frozenset({"kaufen", "suchen", "finden", "bestellen", "sehen", "stehlen", "brauchen"})
# What somebody may do to an unnamed thing: the boy forgets what the teacher buys.
_DOING = [
    verb
    for verb in VERBS["transitive"]
    if verb.de
    in {"kaufen", "verkaufen", "suchen", "finden", "sehen", "malen", "vergessen", "stehlen"}
    | {"bestellen", "bezahlen", "brauchen", "mitbringen", "wegwerfen"}
]
# Conjunction, English, modes of both clauses; `when` is als in the past and wenn elsewhere.
_CONJUNCTIONS = (
    ("weil", "because", ("present", "present", "past")),
    ("weil", "because", ("present", "present", "past")),
    ("obwohl", "although", ("present", "past")),
    ("während", "while", ("present", "past")),
    ("bevor", "before", ("present", "past")),
    ("wenn", "when", ("present",)),
    ("als", "when", ("past",)),
)

_WH_WORDS = (
    *("wer", "wer", "was", "was", "wen", "wem", "wo", "wo", "wann", "warum", "warum"),
    *("welch", "welch", "wie viele"),
)


class Composer(ClauseComposer):
    """Draws sentence pairs; `combinations` holds the word pairs of the last one."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._types: list[Callable[[], tuple[str, str]]] = []
        for weight, draw in (
            (21, self._statement),
            (18, self._with_relative),
            (6, self._infinitive_clause),
            (17, self._object_clause),
            (17, self._adverbial_clause),
            (6, self._yes_no_question),
            (9, self._direct_question),
            (7, self._description),
            (8, self._coordination),
            (2, self._free_relative),
        ):
            self._types += [draw] * weight

    def draw(self) -> tuple[str, str]:
        """One sentence pair (German, English)."""
        self.combinations = []
        self.used = set()
        return self._pick(self._types)()

    def _fronting(self, clause: Clause, share: float = 0.45) -> str:
        """Which adverbial opens the sentence; never opens: a direction, and rarely."""
        if self.random() >= share:
            return ""
        options = []
        if clause.time is not None and clause.time.group != "rarely":
            options.append("time")
        if clause.manner is not None:
            options.append("manner")
        if clause.place is not None and clause.verb not in VERBS["motion"]:
            options.append("place")
        return self._pick(options) if options else ""

    def _statement(self) -> tuple[str, str]:
        clause = self._clause(time=0.6, place=0.4)
        front = self._fronting(clause, 0.6)
        return grammar.sentence(clause.de_main(front), clause.en_main(front))

    def _with_relative(self) -> tuple[str, str]:
        if self.random() < 0.5:
            head = self._subject(self._pick(("p", "pa")), definite=True, pronouns=())
            clause = self._clause(head, time=0.25, place=0.2, negation=0.05)
            clause.subject = self._relative(head)
        else:
            subject = self._subject()
            verb = self._pick([v for v in BY_SUBJECT["transitive", "p"] if not v.en_particle])
            if subject.noun:
                self.combinations.append(f"subject {subject.noun} {verb.de}")
            # English would attach a later adverbial to the relative clause: there is none.
            clause = Clause(subject, verb, "present")
            if verb.en != verb.en_past:
                clause.mode = self._pick(("present", "past", "werden", "wollen"))
            head = self._object(self._pick(verb.objects), ACCUSATIVE, subject)
            clause.accusative = self._relative(head)
        return grammar.sentence(clause.de_main(), clause.en_main())

    def _infinitive_clause(self) -> tuple[str, str]:
        subject = self._subject()
        verb = self._pick(VERBS["control"])
        if subject.noun:
            self.combinations.append(f"subject {subject.noun} {verb.de}")
        mark = len(self.combinations)
        inner = self._clause(subject, "present", EVENT_TYPES, 0.0, 0.25, 0.0)
        while inner.verb.de in MANNERLESS or inner.verb.de == verb.de:  # nobody tries to know
            del self.combinations[mark:]
            inner = self._clause(subject, "present", EVENT_TYPES, 0.0, 0.25, 0.0)
        clause = Clause(subject, verb, self._pick(TENSES))
        clause.tail = (f", {inner.de_infinitive()}", f" {inner.en_infinitive()}")
        clause.time = self._time(clause.mode, 0.2)
        if clause.time is not None and clause.time.group in ("rarely", "often"):
            clause.time = None
        # An adverbial behind the infinitive would belong to it, so this one opens the sentence.
        front = "time" if clause.time is not None else ""
        return grammar.sentence(clause.de_main(front), clause.en_main(front))

    def _object_clause(self) -> tuple[str, str]:
        subject = self._subject()
        verb = self._pick(VERBS["clausal"])
        mode = self._pick(TENSES)
        joint = self._pick(verb.objects.split(","))
        if subject.noun:
            self.combinations.append(f"subject {subject.noun} {verb.de}")
        # The speakers' inner clause keeps to the past when the outer one does.
        inner_mode = (
            "past" if mode == "past" else self._pick(("present", "past", "können", "werden"))
        )
        matrix = Clause(subject, verb, mode)
        if joint == "wh":
            de, en = self._wh_clause(inner_mode)
        else:
            again = self._again(subject) if self.random() < 0.35 else None
            inner = self._clause(again, inner_mode, time=0.25, pronouns=INNER_PRONOUNS)
            de = f"{joint} {inner.de_subordinate()}"
            en = f"{'that' if joint == 'dass' else 'whether'} {inner.en_main()}"
        matrix.tail = (f", {de}", f" {en}")
        if verb.de == "wissen" and subject.definite and self.random() < 0.4 + (joint == "ob"):
            if self.random() < 0.4:
                return grammar.sentence(matrix.de_verb_first(), matrix.en_question(), "?")
            matrix.negated = True
        return grammar.sentence(matrix.de_main(), matrix.en_main())

    def _again(self, subject: Phrase) -> Phrase:
        """The pronoun for a subject that was named already."""
        return grammar.pronoun(subject, NOMINATIVE) if subject.noun else subject

    def _wh_gap(
        self, mode: str, word: str, pronouns: tuple[Phrase, ...]
    ) -> tuple[str, str, Clause]:
        """A wh-phrase in both languages and the clause it is missing from."""
        if word == "wer":
            clause = self._clause(grammar.WHO, mode, negation=0.0)
            return "", "", clause
        if word in ("wo", "wann", "warum"):
            types = ("transitive", "intransitive", "intransitive") if word == "wo" else EVENT_TYPES
            negation = 0.2 if word == "warum" else 0.0
            time = 0.0 if word == "wann" else 0.15
            place = 0.0 if word == "wo" else 0.15
            clause = self._clause(None, mode, types, time, place, negation, pronouns)
            if word == "wo":
                clause.place = None
            return word, {"wo": "where", "wann": "when", "warum": "why"}[word], clause
        if word == "was":
            verb = self._pick(_DOING)
            return "was", "what", self._gap_clause(verb, mode, pronouns)
        if word in ("wen", "wem"):
            verbs = VERBS["dative"] if word == "wem" else BY_OBJECT["p"]
            return word, "who", self._gap_clause(self._pick(verbs), mode, pronouns)
        return self._which(mode, word, pronouns)

    def _gap_clause(self, verb: Verb, mode: str, pronouns: tuple[Phrase, ...]) -> Clause:
        subject = self._subject(pronouns=pronouns)
        if subject.noun:
            self.combinations.append(f"subject {subject.noun} {verb.de}")
        return Clause(subject, verb, mode, time=self._time(mode, 0.2))

    def _which(self, mode: str, word: str, pronouns: tuple[Phrase, ...]) -> tuple[str, str, Clause]:
        """welcher: which; wie viele: how many."""
        verb = self._pick([v for v in BY_SUBJECT["transitive", "p"] if v.de != "lesen"])
        noun = self._noun(self._pick(verb.objects))
        plural = word == "wie viele" or self.random() < 0.3
        if noun.mass:
            plural, word = False, "welch"
        determiner = ("none", word, "how many") if word != "welch" else ("dies", word, "which")
        phrase = grammar.noun_phrase(
            noun, ACCUSATIVE, determiner, plural, self._adjective(noun, 0.15)
        )
        mark = len(self.combinations)
        clause = self._gap_clause(verb, mode, pronouns)
        if unclear(phrase, clause.subject):
            del self.combinations[mark:]
            clause.subject = self._pick(INNER_PRONOUNS)
        return phrase.de, phrase.en, clause

    def _wh_word(self) -> str:
        return self._pick(_WH_WORDS)

    def _wh_clause(self, mode: str) -> tuple[str, str]:
        """An embedded question: wer das Buch kauft, who buys the book."""
        de, en, clause = self._wh_gap(mode, self._wh_word(), INNER_PRONOUNS)
        return f"{de} {clause.de_subordinate()}".strip(), f"{en} {clause.en_main()}".strip()

    def _direct_question(self) -> tuple[str, str]:
        mode = self._pick((*TENSES, "müssen", "wollen"))
        de, en, clause = self._wh_gap(mode, self._wh_word(), grammar.SPEAKERS)
        if clause.subject is grammar.WHO:
            return grammar.sentence(clause.de_main(), clause.en_main(), "?")
        return grammar.sentence(
            f"{de} {clause.de_verb_first()}", f"{en} {clause.en_question()}", "?"
        )

    def _yes_no_question(self) -> tuple[str, str]:
        clause = self._clause(None, None, time=0.35, negation=0.0)
        return grammar.sentence(clause.de_verb_first(), clause.en_question(), "?")

    def _adverbial_clause(self) -> tuple[str, str]:
        de, en, modes = self._pick(_CONJUNCTIONS)
        mode = self._pick(modes)
        first = self._clause(None, mode, EVENT_TYPES, 0.25, 0.2, 0.08)
        subject, thing = first.subject, first.accusative
        chance = self.random()
        if de in ("weil", "obwohl") and chance < 0.25 and _is_thing(thing):
            assert thing is not None
            options = ONLY_THINGS[thing.kind]
            inner = self._copula(grammar.pronoun(thing, NOMINATIVE), mode, options)
            return self._joined(first, (de, en), inner, False)
        if subject.pronoun or chance < 0.75:
            again = self._again(subject)
            if chance < 0.5 and de not in ("bevor", "während"):
                inner = self._copula(again, mode, ONLY_ANIMATE)
            else:
                inner = self._clause(again, mode, EVENT_TYPES, 0.0, 0.15, 0.08)
            return self._joined(first, (de, en), inner, self.random() < 0.4)
        inner = self._clause(
            None, mode, time=0.0, place=0.15, negation=0.08, pronouns=INNER_PRONOUNS
        )
        return self._joined(first, (de, en), inner, self.random() < 0.4)

    def _joined(
        self, first: Clause, conjunction: tuple[str, str], inner: Clause, fronted: bool
    ) -> tuple[str, str]:
        """Main clause and adverbial clause; the one that comes first has the noun."""
        de, en = conjunction
        if not fronted:
            front = self._fronting(first)
            return grammar.sentence(
                f"{first.de_main(front)}, {de} {inner.de_subordinate()}",
                f"{first.en_main(front)} {en} {inner.en_main()}",
            )
        if inner.subject.pronoun and first.subject.noun:
            first.subject, inner.subject = inner.subject, first.subject
        return grammar.sentence(
            f"{de} {inner.de_subordinate()}, {first.de_verb_first()}",
            f"{en} {inner.en_main()}, {first.en_main()}",
        )

    def _description(self) -> tuple[str, str]:
        """What a thing is like."""
        noun = self._noun(self._pick(_KINDS_OF_THINGS))
        plural = not noun.mass and self.random() < 0.2
        chance = self.random()
        determiner = DEFINITE
        if chance < 0.15:
            determiner = self._pick(SPEAKERS_OWN)
        elif chance < 0.3:
            determiner = ("dies", "dies", "these" if plural else "this")
        subject = grammar.noun_phrase(noun, NOMINATIVE, determiner, plural)
        clause = self._copula(subject, self._pick(TENSES), None)
        clause.negated = clause.time is None and self.random() < 0.2
        if self.random() < 0.35:
            clause.subject = self._relative(subject)
        return grammar.sentence(clause.de_main(), clause.en_main())

    def _coordination(self) -> tuple[str, str]:
        """The second clause takes up subject and object of the first."""
        verb = self._pick([v for v in BY_SUBJECT["transitive", "p"] if v.de in _GETTING])
        mode = self._pick(TENSES)
        subject = self._subject()
        thing = self._object(self._pick(verb.objects), ACCUSATIVE, subject)
        others = [v for v in BY_OBJECT[thing.kind] if v.de not in _GETTING and v.en != v.en_past]
        other = self._pick(others)
        if subject.noun:
            self.combinations.append(f"subject {subject.noun} {verb.de}")
            self.combinations.append(f"subject {subject.noun} {other.de}")
        first = Clause(subject, verb, mode, accusative=thing, time=self._time(mode, 0.3))
        front = self._fronting(first, 0.6)
        if first.time is not None and not front:
            first.time = None  # it would be read with the second clause, or stand between them
        again = self._again(subject)
        second = Clause(again, other, mode, accusative=grammar.pronoun(thing, ACCUSATIVE))
        if self.random() < 0.5:
            de, en = f" und {second.de_conjunct()}", f" and {second.en_main(subject=False)}"
        else:
            second.negated = True
            de, en = f", aber {second.de_main()}", f", but {second.en_main()}"
        return grammar.sentence(first.de_main(front) + de, first.en_main(front) + en)

    def _free_relative(self) -> tuple[str, str]:
        """Der Junge vergisst, was die Lehrerin kauft."""
        subject, mode = self._subject(), self._pick(TENSES)
        verb = self._pick([v for v in _DOING if not v.en_particle])
        if subject.noun:
            self.combinations.append(f"subject {subject.noun} {verb.de}")
        inner = self._gap_clause(self._pick(_DOING), mode, INNER_PRONOUNS)
        tail = (f", was {inner.de_subordinate()}", f" what {inner.en_main()}")
        clause = Clause(subject, verb, mode, tail=tail)
        return grammar.sentence(clause.de_main(), clause.en_main())


def _is_thing(phrase: Phrase | None) -> bool:
    return phrase is not None and not phrase.pronoun and phrase.kind not in "pa"

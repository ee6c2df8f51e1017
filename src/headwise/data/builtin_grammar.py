"""Phrases and clauses of the built-in corpus, spelled out in German and in English.

A clause is one structure with two spellings. German puts the finite verb second in a main clause
and last in a subordinate one, and objects, adverbials and the negation in between; English keeps
subject, verb, object, manner, place, time. A fronted adverbial is fronted in both languages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from headwise.data.builtin_lexicon import Adjective, Adverb, Noun, Verb
from headwise.data.builtin_words import MODALS

NOMINATIVE, ACCUSATIVE, DATIVE = 0, 1, 2

# Per case: masculine, feminine, neuter, plural.
_DER = (
    {"m": "der", "f": "die", "n": "das", "p": "die"},
    {"m": "den", "f": "die", "n": "das", "p": "die"},
    {"m": "dem", "f": "der", "n": "dem", "p": "den"},
)
_DER_ENDING = (  # dieser, jeder, welcher, and adjectives without an article
    {"m": "er", "f": "e", "n": "es", "p": "e"},
    {"m": "en", "f": "e", "n": "es", "p": "e"},
    {"m": "em", "f": "er", "n": "em", "p": "en"},
)
_EIN_ENDING = (  # ein, kein, mein
    {"m": "", "f": "e", "n": "", "p": "e"},
    {"m": "en", "f": "e", "n": "", "p": "e"},
    {"m": "em", "f": "er", "n": "em", "p": "en"},
)
_WEAK = (  # adjectives after der-words
    {"m": "e", "f": "e", "n": "e", "p": "en"},
    {"m": "en", "f": "e", "n": "e", "p": "en"},
    {"m": "en", "f": "en", "n": "en", "p": "en"},
)
_MIXED = (  # adjectives after ein-words
    {"m": "er", "f": "e", "n": "es", "p": "en"},
    {"m": "en", "f": "e", "n": "es", "p": "en"},
    {"m": "en", "f": "en", "n": "en", "p": "en"},
)
_PRONOUN = (
    {"m": "er", "f": "sie", "n": "es", "p": "sie"},
    {"m": "ihn", "f": "sie", "n": "es", "p": "sie"},
    {"m": "ihm", "f": "ihr", "n": "ihm", "p": "ihnen"},
)
_EN_PRONOUN = (
    {"m": "he", "f": "she", "n": "it", "p": "they"},
    {"m": "him", "f": "her", "n": "it", "p": "them"},
)
_EN_OWN = {"m": "his", "f": "her", "n": "its", "p": "their"}
_CONTRACTED = {
    "in dem": "im",
    "in das": "ins",
    "an dem": "am",
    "zu dem": "zum",
    "zu der": "zur",
}
_BE = {"present": ("am", "are", "is", "are", "are"), "past": ("was", "were", "was", "were", "were")}
_SEIN = ("bin", "bist", "ist", "sind", "sind")
_WAR = ("war", "warst", "war", "waren", "waren")
_HABEN = ("habe", "hast", "hat", "haben", "haben")
_BASE = (True, True, False, True, True)  # English present without -s

BE = Verb("sein", _SEIN[:4], "", "", "", True, "be", "is", "was", "", "", "p", "")


class Phrase(NamedTuple):
    """A noun phrase or pronoun in its case, spelled in both languages.

    `agreement` is ich, du, er, wir, sie (0 to 4); `gender` German (m, f, n, p for plural),
    `referent` English; `kind` and `noun` are those of the lexicon, "" for pronouns.
    """

    de: str
    en: str
    agreement: int
    gender: str
    referent: str
    kind: str = "p"
    noun: str = ""
    definite: bool = True
    pronoun: bool = False

    def own(self) -> tuple[str, str]:
        """Stem of the possessive that refers to this phrase, and the English one."""
        if self.agreement in (0, 1, 3):
            return (("mein", "my"), ("dein", "your"), ("", ""), ("unser", "our"))[self.agreement]
        return ("ihr" if self.gender in "fp" else "sein", _EN_OWN[self.referent])


SPEAKERS = (  # subjects without an antecedent
    Phrase("ich", "I", 0, "m", "m", pronoun=True),
    Phrase("du", "you", 1, "m", "m", pronoun=True),
    Phrase("er", "he", 2, "m", "m", pronoun=True),
    Phrase("sie", "she", 2, "f", "f", pronoun=True),
    Phrase("wir", "we", 3, "p", "p", pronoun=True),
    Phrase("sie", "they", 4, "p", "p", pronoun=True),
)
SPEAKER_OBJECTS = (  # accusative, dative
    (Phrase("mich", "me", 0, "m", "m", pronoun=True), "mir"),
    (Phrase("dich", "you", 1, "m", "m", pronoun=True), "dir"),
    (Phrase("uns", "us", 3, "p", "p", pronoun=True), "uns"),
)
WHO = Phrase("wer", "who", 2, "m", "m")


def pronoun(antecedent: Phrase, case: int) -> Phrase:
    """The pronoun that stands for `antecedent`: German by gender, English by referent."""
    return antecedent._replace(
        de=_PRONOUN[case][antecedent.gender],
        en=_EN_PRONOUN[min(case, ACCUSATIVE)][antecedent.referent],
        noun="",
        definite=True,
        pronoun=True,
    )


def with_article(word: str) -> str:
    """The English word or phrase with its indefinite article."""
    return ("an " if word[0] in "aeiou" else "a ") + word


def _determiner(kind: str, stem: str, case: int, gender: str) -> str:
    if kind == "der":
        return _DER[case][gender]
    if kind == "dies":
        return stem + _DER_ENDING[case][gender]
    if kind == "ein":
        return stem + _EIN_ENDING[case][gender]
    return stem


def noun_phrase(
    noun: Noun,
    case: int,
    determiner: tuple[str, str, str],
    plural: bool = False,
    adjective: Adjective | None = None,
) -> Phrase:
    """Determiner, adjective and noun, declined.

    `determiner` is (declension, stem, English): declension der, dies (der-words), ein (ein-words)
    or none (numbers and nothing). The English word "a" turns into a or an, or into nothing before
    plurals and mass nouns.
    """
    declension, stem, en_determiner = determiner
    gender = "p" if plural else noun.gender
    if plural:
        word, en = noun.de_plural, noun.en_plural
        if case == DATIVE and word[-1] not in "ns":
            word += "n"
    else:
        word, en = (noun.de if case == NOMINATIVE else noun.oblique), noun.en
    if adjective is not None:
        endings = {"der": _WEAK, "dies": _WEAK, "ein": _MIXED, "none": _DER_ENDING}[declension]
        word = f"{adjective.stem}{endings[case][gender]} {word}"
        en = f"{adjective.en} {en}"
    article = _determiner(declension, stem, case, gender)
    if en_determiner == "a" and not plural and not noun.mass:
        en = with_article(en)
    elif en_determiner not in ("", "a"):
        en = f"{en_determiner} {en}"
    return Phrase(
        f"{article} {word}" if article else word,
        en,
        4 if plural else 2,
        gender,
        "p" if plural else noun.referent,
        noun.kind,
        noun.de,
        definite=declension in ("der", "dies")
        or (declension == "ein" and stem not in ("ein", "kein")),
    )


def prepositional(preposition: str, phrase: Phrase) -> str:
    """German preposition and phrase, contracted where German contracts (im, ins, am, zum, zur)."""
    first, _, rest = phrase.de.partition(" ")
    contracted = _CONTRACTED.get(f"{preposition} {first}")
    return f"{contracted} {rest}" if contracted else f"{preposition} {phrase.de}"


def relative_pronoun(head: Phrase, case: int) -> str:
    """The German relative pronoun."""
    if case == DATIVE and head.gender == "p":
        return "denen"
    return _DER[case][head.gender]


@dataclass(slots=True)
class Clause:
    """One clause. `mode` is present, past, gern or a modal verb of `MODALS`.

    Past is the German perfect (war for sein) and the English simple past. `place` and `predicate`
    are (German, English); `negated` puts `nicht` in German, or nothing where the object carries
    `kein`; `tail` follows the whole clause (an object clause).
    """

    subject: Phrase
    verb: Verb
    mode: str = "present"
    dative: Phrase | None = None
    accusative: Phrase | None = None
    time: Adverb | None = None
    manner: Adverb | None = None
    place: tuple[str, str] | None = None
    predicate: tuple[str, str] | None = None
    negated: bool = False
    kein: bool = False
    tail: tuple[str, str] = ("", "")

    # German

    def _verb_forms(self) -> tuple[str, str]:
        """The finite verb, and what stands at the end of a main clause."""
        person, verb = self.subject.agreement, self.verb
        if verb is BE:
            return (_WAR if self.mode == "past" else _SEIN)[person], ""
        row = min(person, 3)
        if self.mode == "past":
            return (_SEIN if verb.with_sein else _HABEN)[person], verb.participle
        if self.mode in MODALS:
            return MODALS[self.mode][0][row], verb.de
        return verb.present[row], verb.particle

    def _middle(self, front: str) -> Iterable[str]:
        accusative, time, manner, place = self.accusative, self.time, self.manner, self.place
        if accusative is not None and accusative.pronoun:
            yield accusative.de
        if self.dative is not None and self.dative.pronoun:
            yield self.dative.de
        if time is not None and front != "time":
            yield time.de
        if self.dative is not None and not self.dative.pronoun:
            yield self.dative.de
        full = accusative is not None and not accusative.pronoun
        if accusative is not None and full and accusative.definite:
            yield accusative.de
        if self.negated and not self.kein:
            yield "nicht"
        if self.mode == "gern":
            yield "gern"
        if manner is not None and front != "manner":
            yield manner.de
        if accusative is not None and full and not accusative.definite:
            yield accusative.de
        if place is not None and front != "place":
            yield place[0]
        if self.predicate is not None:
            yield self.predicate[0]

    def _fronted(self, front: str, language: int) -> str:
        if front == "time" and self.time is not None:
            return self.time[language]
        if front == "manner" and self.manner is not None:
            return self.manner[language]
        if front == "place" and self.place is not None:
            return self.place[language]
        return ""

    def de_main(self, front: str = "") -> str:
        """Verb-second order; `front` is time, manner, place, or "" for the subject."""
        first = self._fronted(front, 0)
        finite, end = self._verb_forms()
        start = [first, finite, self.subject.de] if first else [self.subject.de, finite]
        return _join([*start, *self._middle(front), end]) + self.tail[0]

    def de_verb_first(self) -> str:
        """The order of a yes-no question, and of what follows a fronted clause or wh-word."""
        finite, end = self._verb_forms()
        return _join([finite, self.subject.de, *self._middle(""), end]) + self.tail[0]

    def de_conjunct(self) -> str:
        """What follows `und`: without the subject, and in the perfect without its auxiliary."""
        finite, end = self._verb_forms()
        return _join(["" if self.mode == "past" else finite, *self._middle(""), end])

    def de_subordinate(self, subject: bool = True) -> str:
        """Verb-final order, without the conjunction; `subject=False` after `wer` or `der`."""
        finite, end = self._verb_forms()
        if self.verb.particle and end == self.verb.particle:
            finite, end = end + finite, ""
        first = self.subject.de if subject else ""
        # An object pronoun before the subject would be as good; only this order is used.
        return _join([first, *self._middle(""), end, finite]) + self.tail[0]

    def de_infinitive(self) -> str:
        """Objects and adverbials, then the infinitive with zu."""
        return _join([*self._middle(""), self.verb.to_infinitive]) + self.tail[0]

    # English

    def _rest(self, front: str = "") -> Iterable[str]:
        """What follows the English verb."""
        yield self.verb.en_preposition
        if self.dative is not None:
            yield self.dative.en
        if self.accusative is not None:
            yield self.accusative.en
        yield self.verb.en_particle
        if self.predicate is not None:
            yield self.predicate[1]
        if self.manner is not None and front != "manner":
            yield self.manner.en
        if self.place is not None and front != "place":
            yield self.place[1]
        time = self.time
        if time is not None and front != "time" and time.group not in ("often", "rarely"):
            yield time.en

    def _head(self) -> tuple[str, str, str]:
        """Auxiliary, the finite verb that do-support would replace, and what follows both."""
        person, base = self.subject.agreement, self.verb.en
        if self.verb is BE:
            return _BE["past" if self.mode == "past" else "present"][person], "", ""
        if self.mode == "past":
            return "", self.verb.en_past, ""
        modal, with_do = base, False
        if self.mode == "gern":
            modal, with_do = "like", True
        elif self.mode in MODALS:
            _, modal, with_do = MODALS[self.mode]
            if not with_do:
                return modal, "", base
        after = f"to {base}" if with_do else ""
        if _BASE[person]:
            return "", modal, after
        third = {"have": "has", "like": "likes", "want": "wants"}.get(modal, self.verb.en_third)
        return "", third, after

    def _do(self) -> tuple[str, str]:
        """The form of do, and the infinitive behind it."""
        if self.mode == "past":
            return "did", self.verb.en
        base = self.verb.en
        if self.mode == "gern":
            base = f"like to {base}"
        elif self.mode in MODALS:
            base = f"{MODALS[self.mode][1]} to {base}"
        return ("do" if _BASE[self.subject.agreement] else "does"), base

    def _often(self, front: str = "") -> str:
        time = self.time
        inner = time is not None and front != "time" and time.group in ("often", "rarely")
        return time.en if time is not None and inner else ""

    def en_main(self, front: str = "", subject: bool = True) -> str:
        """Statement order; `subject=False` after a relative pronoun."""
        auxiliary, finite, after = self._head()
        often = self._often(front)
        first = self._fronted(front, 1)
        words = [first, self.subject.en if subject else ""]
        if auxiliary:
            negation = "not" if self.negated else ""
            if auxiliary == "can" and negation:
                auxiliary, negation = "cannot", ""
            words += [auxiliary, negation, often, after]
        elif self.negated:
            do, base = self._do()
            words += [do, "not", often, base]
        else:
            words += [often, finite, after]
        return _join([*words, *self._rest(front)]) + self.tail[1]

    def en_question(self) -> str:
        """Inverted order: the auxiliary or a form of do before the subject."""
        auxiliary, _, after = self._head()
        if not auxiliary:
            auxiliary, after = self._do()
        negation = "not" if self.negated else ""
        words = [auxiliary, self.subject.en, negation, self._often(), after]
        return _join([*words, *self._rest()]) + self.tail[1]

    def en_infinitive(self) -> str:
        """The infinitive with to, and what follows it."""
        return _join(["to", self.verb.en, *self._rest()]) + self.tail[1]


def _join(words: Iterable[str]) -> str:
    return " ".join([word for word in words if word])


def sentence(de: str, en: str, mark: str = ".") -> tuple[str, str]:
    """Capital letter, closing mark; the comma that closes a clause at the end is dropped."""
    de = de.replace(",,", ",").rstrip(",")
    return de[0].upper() + de[1:] + mark, en[0].upper() + en[1:] + mark

"""The spelling rules of the built-in corpus, on chosen phrases and clauses."""

from __future__ import annotations

import pytest

from headwise.data.builtin_grammar import (
    ACCUSATIVE,
    BE,
    DATIVE,
    NOMINATIVE,
    SPEAKERS,
    Clause,
    Phrase,
    noun_phrase,
    prepositional,
    pronoun,
    relative_pronoun,
    sentence,
)
from headwise.data.builtin_lexicon import (
    ADJECTIVES,
    COMPOUND_NOUNS,
    NAMES,
    SIMPLE_NOUNS,
    VERBS,
    Adverb,
)

_NOUNS = {noun.de: noun for nouns in SIMPLE_NOUNS.values() for noun in nouns}
_VERBS = {verb.de: verb for verbs in VERBS.values() for verb in verbs}
_OLD = next(adjective for adjective in ADJECTIVES["p"] if adjective.de == "alt")
_FRESH = next(adjective for adjective in ADJECTIVES["k"] if adjective.de == "frisch")
DER, EIN, BARE = ("der", "", "the"), ("ein", "ein", "a"), ("none", "", "")
TODAY = Adverb("heute", "today", "any")
OFTEN = Adverb("oft", "often", "often")


def phrase(noun: str, case: int = NOMINATIVE, determiner: tuple[str, str, str] = DER) -> Phrase:
    return noun_phrase(_NOUNS[noun], case, determiner)


@pytest.mark.parametrize(
    ("noun", "case", "determiner", "plural", "german", "english"),
    [
        ("Mann", NOMINATIVE, DER, False, "der alte Mann", "the old man"),
        ("Mann", ACCUSATIVE, DER, False, "den alten Mann", "the old man"),
        ("Mann", DATIVE, DER, True, "den alten Männern", "the old men"),
        ("Mann", NOMINATIVE, EIN, False, "ein alter Mann", "an old man"),
        ("Buch", ACCUSATIVE, EIN, False, "ein altes Buch", "an old book"),
        ("Frau", DATIVE, EIN, False, "einer alten Frau", "an old woman"),
        ("Buch", ACCUSATIVE, BARE, True, "alte Bücher", "old books"),
        ("Hund", DATIVE, ("none", "drei", "three"), True, "drei alten Hunden", "three old dogs"),
        ("Bauer", ACCUSATIVE, ("ein", "kein", "a"), False, "keinen alten Bauern", "an old farmer"),
        ("Auto", DATIVE, ("dies", "dies", "these"), True, "diesen alten Autos", "these old cars"),
        ("Uhr", NOMINATIVE, ("ein", "unser", "our"), True, "unsere alten Uhren", "our old clocks"),
    ],
)
def test_declension(
    noun: str,
    case: int,
    determiner: tuple[str, str, str],
    plural: bool,
    german: str,
    english: str,
) -> None:
    made = noun_phrase(_NOUNS[noun], case, determiner, plural, _OLD)
    assert (made.de, made.en) == (german, english)


def test_mass_nouns_have_no_indefinite_article() -> None:
    bread = noun_phrase(_NOUNS["Brot"], ACCUSATIVE, BARE, False, _FRESH)
    assert (bread.de, bread.en) == ("frisches Brot", "fresh bread")


def test_every_english_word_stands_for_one_german_word() -> None:
    nouns = [
        noun
        for group in (SIMPLE_NOUNS, COMPOUND_NOUNS)
        for nouns in group.values()
        for noun in nouns
    ] + NAMES
    for german, english in (("de", "en"), ("de_plural", "en_plural")):
        pairs = {(getattr(n, german), getattr(n, english)) for n in nouns} - {("", ""), ("-", "-")}
        pairs = {pair for pair in pairs if pair[0] not in ("", "-")}
        assert len({en for _, en in pairs}) == len(pairs)
        assert len({de for de, _ in pairs}) == len(pairs)
    adjectives = {(a.de, a.en) for group in ADJECTIVES.values() for a in group}
    assert len({en for _, en in adjectives}) == len({de for de, _ in adjectives}) == len(adjectives)
    verbs = {(v.de, v.en, v.en_preposition, v.en_particle) for v in _VERBS.values()}
    doubled = [v[0] for v in verbs if sum(v[1:] == other[1:] for other in verbs) > 1]
    assert set(doubled) == {"kennen", "wissen"}


def test_separable_verb_in_every_order() -> None:
    call = Clause(phrase("Lehrerin"), _VERBS["anrufen"], accusative=phrase("Koch", ACCUSATIVE))
    assert call.de_main() == "die Lehrerin ruft den Koch an"
    assert call.de_subordinate() == "die Lehrerin den Koch anruft"
    assert call.de_infinitive() == "den Koch anzurufen"
    call.mode = "past"
    assert call.de_main() == "die Lehrerin hat den Koch angerufen"
    assert call.de_subordinate() == "die Lehrerin den Koch angerufen hat"
    assert call.en_main() == "the teacher called the cook"
    call.mode = "müssen"
    assert call.de_main() == "die Lehrerin muss den Koch anrufen"
    assert call.de_subordinate() == "die Lehrerin den Koch anrufen muss"
    assert call.en_question() == "does the teacher have to call the cook"


def test_adverbs_front_in_both_languages() -> None:
    place = (prepositional("in", phrase("Garten", DATIVE)), "in the garden")
    sleep = Clause(phrase("Hund"), _VERBS["schlafen"], time=TODAY, place=place)
    assert sleep.de_main() == "der Hund schläft heute im Garten"
    assert sleep.en_main() == "the dog sleeps in the garden today"
    assert sleep.de_main("time") == "heute schläft der Hund im Garten"
    assert sleep.en_main("time") == "today the dog sleeps in the garden"
    assert sleep.de_main("place") == "im Garten schläft der Hund heute"
    sleep.time = OFTEN
    assert sleep.en_main() == "the dog often sleeps in the garden"
    assert sleep.en_question() == "does the dog often sleep in the garden"


def test_object_order_and_negation() -> None:
    buy = Clause(phrase("Koch"), _VERBS["kaufen"], time=TODAY, negated=True)
    buy.accusative = phrase("Apfel", ACCUSATIVE)
    assert buy.de_main() == "der Koch kauft heute den Apfel nicht"
    assert buy.en_main() == "the cook does not buy the apple today"
    assert buy.en_question() == "does the cook not buy the apple today"
    buy.accusative = pronoun(buy.accusative, ACCUSATIVE)
    assert buy.de_main() == "der Koch kauft ihn heute nicht"
    buy.accusative, buy.kein = phrase("Apfel", ACCUSATIVE, ("ein", "kein", "a")), True
    assert buy.de_main() == "der Koch kauft heute keinen Apfel"
    assert buy.en_main() == "the cook does not buy an apple today"
    buy.mode = "können"
    assert buy.en_main() == "the cook cannot buy an apple today"


def test_pronouns_and_relative_pronouns() -> None:
    girl, dog = phrase("Mädchen"), phrase("Hund")
    assert (pronoun(girl, NOMINATIVE).de, pronoun(girl, NOMINATIVE).en) == ("es", "she")
    assert girl.own() == ("sein", "her")
    assert (pronoun(dog, ACCUSATIVE).de, pronoun(dog, ACCUSATIVE).en) == ("ihn", "it")
    assert relative_pronoun(dog, ACCUSATIVE) == "den"
    many = noun_phrase(_NOUNS["Hund"], NOMINATIVE, DER, True)
    assert relative_pronoun(many, DATIVE) == "denen"


@pytest.mark.parametrize(
    ("number", "german", "english"),
    [
        (0, "ich bin müde", "I am tired"),
        (1, "du bist müde", "you are tired"),
        (2, "er ist müde", "he is tired"),
        (4, "wir sind müde", "we are tired"),
    ],
)
def test_to_be(number: int, german: str, english: str) -> None:
    clause = Clause(SPEAKERS[number], BE, predicate=("müde", "tired"))
    assert (clause.de_main(), clause.en_main()) == (german, english)
    assert clause.en_question().split()[0] == english.split()[1]


def test_closing_comma_is_dropped_at_the_end_only() -> None:
    assert sentence("der Mann, der schläft,, weil er träumt,", "the man")[0] == (
        "Der Mann, der schläft, weil er träumt."
    )

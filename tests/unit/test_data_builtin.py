"""The built-in corpus: reproducible, with new combinations in the test set, and grammatical."""

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest

from headwise.data.builtin import BuiltinCorpus
from headwise.data.builtin.corpus import compound_forms, held_out, words_of
from headwise.data.builtin.grammar import (
    ADJECTIVES,
    COMPOUNDS,
    FORMS,
    NOUNS,
    RULES,
    VERBS,
    noun_phrase,
    spelled,
)
from headwise.data.builtin.sampler import Sampler
from headwise.errors import ConfigError

Pairs = list[tuple[str, str]]
_SIZES = {"train": 30000, "valid": 500, "test": 1000}
_COMPOUNDS = compound_forms()
_NOUN = {noun["de"]: noun for noun in NOUNS}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def splits():
    source = BuiltinCorpus("de", "en")
    return {split: list(source.pairs(split)) for split in source.splits()}


@pytest.fixture(scope="module")
def text(splits):
    return [pair for pairs in splits.values() for pair in pairs]


# The corpus: sizes, splits, seeds


def test_sentences_are_unique(splits):
    assert {split: len(pairs) for split, pairs in splits.items()} == _SIZES
    for side in (0, 1):
        sentences = [pair[side] for pairs in splits.values() for pair in pairs]
        assert len(set(sentences)) == len(sentences), "splits or pairs share a sentence"


def test_same_text_in_every_process_and_other_identity_with_other_rules():
    program = (
        "import hashlib\n"
        "from headwise.data.builtin import BuiltinCorpus\n"
        "c = BuiltinCorpus('de', 'en', 7, 600, 50, 50)\n"
        "text = repr([list(c.pairs(split)) for split in c.splits()])\n"
        "print(hashlib.sha256(text.encode()).hexdigest(), c.identity('train'))"
    )
    other_rules = (
        "import pathlib\n"
        "read = pathlib.Path.read_bytes\n"
        "pathlib.Path.read_bytes = lambda path: read(path) + b' '\n"
    )
    outputs = []
    for hash_seed, before in (("0", ""), ("123", ""), ("0", other_rules)):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", before + program]
        outputs.append(subprocess.check_output(command, env=environment, text=True).split())
    assert outputs[0] == outputs[1]
    assert (outputs[0][0] == outputs[2][0], outputs[0][1] == outputs[2][1]) == (True, False)


def test_identity_follows_seed_and_split():
    one, two = (BuiltinCorpus("de", "en", seed, 500, 50, 50) for seed in (1, 2))
    assert len({source.identity(split) for source in (one, two) for split in _SIZES}) == 6
    assert list(one.pairs("train")) != list(two.pairs("train"))


def test_prefix_direction_and_small_sizes(splits):
    assert list(BuiltinCorpus("de", "en", n_train=700).pairs("train")) == splits["train"][:700]
    mirrored = BuiltinCorpus("en", "de").pairs("test")
    assert [(de, en) for en, de in mirrored] == splits["test"]
    small = BuiltinCorpus("en", "de", 3, 20, 5, 5)
    assert [len(list(small.pairs(split))) for split in small.splits()] == [20, 5, 5]


def test_refusals():
    with pytest.raises(ConfigError, match=r"n_test.* 0"):
        BuiltinCorpus("de", "en", n_test=0)
    with pytest.raises(ConfigError, match="Did you mean train"):
        next(BuiltinCorpus("de", "en").pairs("tain"))


def test_one_translation_for_every_sentence():
    sampler = Sampler("translations")
    english = {}
    german = {}
    for _ in range(40000):
        de, en = sampler.draw()
        assert english.setdefault(de, en) == en
        assert german.setdefault(en, de) == de


# Held-out combinations, as the text itself shows them


_NOMINATIVE = {noun[form]: noun["de"] for noun in (*NOUNS, *COMPOUNDS) for form in FORMS}
_STEMS = {adjective["stem"]: adjective["de"] for adjective in ADJECTIVES}


def combinations(de):
    """Compounds, and adjectives before their nouns."""
    names = []
    for word in words_of(de):
        if word in _COMPOUNDS:
            modifier = _COMPOUNDS[word][0]
            names.append(f"compound {modifier} {_NOMINATIVE[word][len(modifier) :]}")
    for adjective, noun in pairwise(words_of(de)):
        match = re.fullmatch(r"(.+?)(e|en|em|er|es)", adjective)
        if match and match[1] in _STEMS and noun in _NOMINATIVE:
            names.append(f"adjective {_STEMS[match[1]]} {_NOMINATIVE[noun]}")
    return names


def test_only_the_test_set_has_held_out_combinations(splits):
    training_pairs = [*splits["train"], *splits["valid"]]
    training_names = [name for de, _ in training_pairs for name in combinations(de)]
    assert len(training_names) > 10000
    assert not any(map(held_out, training_names))
    sampler = Sampler("headwise 1 test")  # the sampler of the test set, without exclusions
    names_by_sentence = {sampler.draw()[0]: sampler.combinations for _ in range(15000)}
    kinds = Counter()
    for de, _ in splits["test"]:
        held_out_names = [name for name in names_by_sentence[de] if held_out(name)]
        assert held_out_names, de
        assert set(combinations(de)) <= set(names_by_sentence[de]), de
        kinds.update({name.split()[0] for name in held_out_names})
    assert min(kinds.values()) > 100, kinds


def test_new_words_of_the_test_set_have_known_parts(splits):
    known = {word for pair in splits["train"] for side in pair for word in words_of(side)}
    parts = [_COMPOUNDS[word] for word in known if word in _COMPOUNDS]
    modifiers, heads = {first for first, _ in parts}, {last for _, last in parts}
    new = {word for de, _ in splits["test"] for word in words_of(de)} - known
    assert len(new) > 30
    assert {_COMPOUNDS[word][0] for word in new} <= modifiers
    assert {_COMPOUNDS[word][1] for word in new} <= heads
    assert sum(not _COMPOUNDS.keys().isdisjoint(words_of(de)) for de, _ in splits["train"]) > 4500
    assert {word for _, en in splits["test"] for word in words_of(en)} <= known


# A German pattern and an English one, and the least number in 1000 pairs that match both.
_PHENOMENA = {
    "fronted time": (r"^(Heute|Gestern|Am Montag|Bald) \w+ (der|die|das|ich|er|wir)", r"^\w+ ", 6),
    "perfect": (r"\b(hat|haben|habe|hast|ist|sind|bin|bist)\b.* \w*ge\w+\b", "", 100),
    "modal": (r"\b(kann|muss|soll|darf|können|müssen|sollen)\b", r"can|have|has|sho|may", 40),
    "weil": (r", weil |^Weil ", r"[Bb]ecause ", 30),
    "relative": (r", (der|die|das|den|dem|denen) .*", r" (who|which) ", 100),
    "embedded wer": (r", wer ", r" who ", 8),
    "wer question": (r"^Wer .*\?$", r"^Who .*\?$", 8),
    "yes or no": (r"^(\w+t|\w+en|\w+st|Ist|Kann|Muss) .*\?$", r"^(D|I|C|H|W|M|S|A)", 25),
    "particle": (r" (ihn|sie|es)\b", r" (it|him|her|them) (up|away|back|along)\b", 2),
    "anzurufen": (r" (auf|an|zu|ab|ein|weg|mit|aus|zurück)zu\w+en\b", r" to ", 4),
    "pronoun it": (r"\b(er|sie|ihn|es)\b", r"\bit\b", 15),
}


@pytest.mark.parametrize("name", _PHENOMENA)
def test_phenomenon_is_frequent(name, text):
    german, english, least = _PHENOMENA[name]
    n = sum(bool(re.search(german, de) and re.search(english, en)) for de, en in text)
    assert 1000 * n / len(text) >= least, f"{name}: {1000 * n / len(text):.1f} in 1000"


# Grammar


def test_lengths_capitals_punctuation_and_spaces(text):
    for side in (0, 1):
        lengths = [len(pair[side].split()) for pair in text]
        assert 8 < sum(lengths) / len(lengths) < 10.5
        assert max(lengths) < 40
        for sentence in (pair[side] for pair in text):
            assert re.fullmatch(r"[A-ZÄÖÜ][\w-]*(,? [\w-]+)*[.?]", sentence), sentence
    assert all((de[-1] == "?") == (en[-1] == "?") for de, en in text)


def test_agreement(text):
    regular = [verb for verb in VERBS if verb["frames"] != "be"]
    bases = "|".join({verb["en"].split()[0] for verb in regular} | {"be", "are", "were", "do"})
    thirds = "|".join({verb["en_third"].split()[0] for verb in regular} | {"is", "does"})
    opening = "(^|that |whether |because |although |while |before )"
    often = "(often |always |sometimes |rarely |never )?"
    english = re.compile(
        rf"{opening}(Anna|Peter|He|She|It|he|she|it) {often}({bases})\b"
        rf"|{opening}(I|[Yy]ou|[Ww]e|[Tt]hey) {often}({thirds})\b"
        rf"|\b(does|did|do|can|will|may|should|to|not) ({thirds})\b"
        r"|\b[Aa] [aeio]|\b[Aa]n [^aeiou]|^(This|Every) \w+ are\b|^These \w+ is\b"
    )
    second = "|".join(verb["du"] for verb in VERBS if verb["du"].endswith("st"))
    german = re.compile(
        rf"\bich ({second}|hat|ist|sind|haben)\b"
        r"|\b(du|Du) (hat|ist|habe|kann|will|muss)\b|\b(wir|Wir) (hat|ist|habe|kann)\b"
        r"|\b([Ii]n|[Aa]n|zu) dem\b|\b[Ii]n das\b|\bzu der\b"
    )
    for de, en in text:
        assert not english.search(en), en
        assert not german.search(de), de


def test_verb_is_second_in_main_clauses_and_last_in_others(text):
    auxiliaries = "habe hast hat haben bin bist ist sind war warst waren " + " ".join(
        " ".join(tense["finite"]) for tense in RULES["tenses"].values()
    )
    present = [(verb, verb[person]) for verb in VERBS for person in ("ich", "du", "er", "wir")]
    second = {form for _, form in present} | set(auxiliaries.split())
    last = {verb["particle"] + form for verb, form in present} | set(auxiliaries.split())
    n_last = n_second = 0
    for de, _ in text:
        clause = re.search(r"(?:, |^)(?:dass|[Ww]eil|ob|[Ww]enn|[Oo]bwohl) ([^,]+)[,.]", de)
        # A relative clause parts subject and verb.
        if clause and not re.search(r", (der|die|das|den|dem|denen|wo) ", de):
            n_last += 1
            assert clause[1].split()[-1] in last, de
        adverbs = "Heute|Gestern|Jetzt|Oft|Manchmal|Abends|Bald|Morgen"
        statement = re.match(rf"({adverbs}) (\w+) .*\.$", de)
        if statement:
            n_second += 1
            assert statement[2] in second, de
    assert n_last > 2000
    assert n_second > 400


def test_pronouns_follow_gender_in_german_and_referent_in_english(text):
    animate = "(müde|hungrig|krank|traurig|glücklich|nervös|reich|arm) (ist|war)"
    expected = {
        rf"^Das (?:\w+ )?Mädchen [^,]*, (?:weil|obwohl|wenn) es {animate}": r" she (is|was) ",
        r"^Der (?:\w+ )?(?:Hund|Esel|Fuchs) [^,]*, (?:weil|obwohl|wenn) er ": r" it ",
        rf"^Die (?:\w+ )?\w+in [^,]*, (?:weil|obwohl|wenn) sie {animate}": r" she (is|was) ",
        r", weil (er|sie|es) (billig|teuer|kaputt|neu) (ist|war)\b": r" it (is|was) ",
        r"^Das Mädchen [^,]*\bsein(e|en|em|er)? [^,]*\.$": r"\bher\b",
    }
    for german, english in expected.items():
        matching = [(de, en) for de, en in text if re.search(german, de)]
        assert matching, german
        assert all(re.search(english, en) for _, en in matching), german


def test_either_noun_as_subject_is_never_possible(text):
    """Die Frau, die die Tante sieht: who sees whom?"""
    woman = r"(?:\w+in|Frau|Tante|Tochter|Schwester|\w*[Mm]utter)"
    unclear = re.compile(rf"[Dd]ie {woman}, die (?:die|diese|jede) {woman} (?:\w+t|\w+ hat)[,.]")
    assert not [de for de, _ in text if unclear.search(de)]


@pytest.mark.parametrize(
    ("noun", "case", "determiner", "plural", "german", "english"),
    [
        ("Mann", "nom", "the", False, "der alte Mann", "the old man"),
        ("Mann", "acc", "the", False, "den alten Mann", "the old man"),
        ("Mann", "dat", "the", True, "den alten Männern", "the old men"),
        ("Mann", "nom", "a", False, "ein alter Mann", "an old man"),
        ("Buch", "acc", "a", False, "ein altes Buch", "an old book"),
        ("Frau", "dat", "a", False, "einer alten Frau", "an old woman"),
        ("Buch", "acc", "a", True, "alte Bücher", "old books"),
        ("Bauer", "acc", "kein", False, "keinen alten Bauern", "an old farmer"),
        ("Auto", "dat", "this", True, "diesen alten Autos", "these old cars"),
    ],
)
def test_declension(noun, case, determiner, plural, german, english):
    row = RULES["determiners"]["plural" if plural else "singular"][determiner][0]
    phrase = noun_phrase(_NOUN[noun], row, plural, ADJECTIVES[0])
    column = ("nom", "acc", "dat").index(case)
    assert phrase.de[column] == german
    assert spelled(phrase.en[column], "en", {}) == english.capitalize()

"""The built-in corpus: same bytes from a seed, a test set of new combinations, right grammar."""

from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from headwise.data import builtin
from headwise.data.builtin import BuiltinCorpus, compound_forms, held_out, words_of
from headwise.data.builtin_lexicon import ADJECTIVES, COMPOUND_NOUNS, SIMPLE_NOUNS, VERBS
from headwise.data.builtin_sentences import Composer
from headwise.errors import ConfigError

Pairs = list[tuple[str, str]]


@pytest.fixture(scope="module")
def corpus() -> dict[str, Pairs]:
    source = BuiltinCorpus("de", "en")
    return {split: list(source.pairs(split)) for split in source.splits()}


@pytest.fixture(scope="module")
def text(corpus: dict[str, Pairs]) -> Pairs:
    return [pair for split in corpus.values() for pair in split]


def digest(pairs: Pairs) -> str:
    return hashlib.sha256(repr(pairs).encode()).hexdigest()


def test_sizes_and_distinct_pairs(corpus: dict[str, Pairs]) -> None:
    assert {split: len(pairs) for split, pairs in corpus.items()} == {
        "train": 30000,
        "valid": 500,
        "test": 1000,
    }
    for side in (0, 1):
        sentences = [pair[side] for pairs in corpus.values() for pair in pairs]
        assert len(set(sentences)) == len(sentences), "splits or pairs share a sentence"


def test_same_seed_same_text_in_every_process() -> None:
    program = (
        "from headwise.data.builtin import BuiltinCorpus as C\n"
        "import hashlib\n"
        "c = C('de', 'en', 7, 600, 50, 50)\n"
        "text = repr([list(c.pairs(s)) for s in c.splits()])\n"
        "print(hashlib.sha256(text.encode()).hexdigest(), c.identity('train'))"
    )
    source_folder = os.path.dirname(os.path.dirname(os.path.dirname(builtin.__file__)))
    outputs = set()
    for hash_seed in ("0", "123"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": source_folder}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_another_seed_gives_other_text_and_identity() -> None:
    one, two = (BuiltinCorpus("de", "en", seed, 500, 50, 50) for seed in (1, 2))
    for split in one.splits():
        assert digest(list(one.pairs(split))) != digest(list(two.pairs(split)))
        assert one.identity(split) != two.identity(split)
    assert len({one.identity(split) for split in one.splits()}) == 3


def test_identity_follows_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = BuiltinCorpus("de", "en")
    before = corpus.identity("train")
    assert before == BuiltinCorpus("de", "en").identity("train")
    monkeypatch.setattr(builtin.inspect, "getsource", lambda module: "another grammar")
    builtin._grammar_hash.cache_clear()
    try:
        assert corpus.identity("train") != before
    finally:
        builtin._grammar_hash.cache_clear()


def test_smaller_train_is_a_prefix(corpus: dict[str, Pairs]) -> None:
    assert list(BuiltinCorpus("de", "en", n_train=700).pairs("train")) == corpus["train"][:700]


def test_small_corpora_are_full() -> None:
    source = BuiltinCorpus("en", "de", 3, 20, 5, 5)
    assert [len(list(source.pairs(split))) for split in source.splits()] == [20, 5, 5]


def test_directions_mirror_each_other(corpus: dict[str, Pairs]) -> None:
    mirrored = BuiltinCorpus("en", "de")
    for split in ("train", "test"):
        assert [(de, en) for en, de in mirrored.pairs(split)] == corpus[split]
    assert mirrored.identity("test") != BuiltinCorpus("de", "en").identity("test")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source": "fr", "target": "en"}, ["data.source", "'fr'", "de, en"]),
        ({"source": "de", "target": "eng"}, ["data.target", "'eng'", "Did you mean en?"]),
        ({"source": "de", "target": "de"}, ["data.target", "'de'"]),
        ({"source": "de", "target": "en", "n_test": 0}, ["n_test", "0"]),
    ],
)
def test_refusals(arguments: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        BuiltinCorpus(**arguments)  # type: ignore[arg-type]
    for word in words:
        assert word in str(caught.value)


def test_unknown_split() -> None:
    with pytest.raises(ConfigError, match="Did you mean train"):
        next(BuiltinCorpus("de", "en").pairs("tain"))


def test_one_translation_for_every_sentence() -> None:
    composer = Composer(random.Random(11))
    english: dict[str, str] = {}
    german: dict[str, str] = {}
    for _ in range(60000):
        de, en = composer.draw()
        assert english.setdefault(de, en) == en
        assert german.setdefault(en, de) == de


# Held-out combinations, seen in the text itself and in what the composer notes.

_COMPOUNDS = compound_forms()
_STEMS = {adjective.stem: adjective.de for group in ADJECTIVES.values() for adjective in group}
_FORMS = {
    form: noun.de
    for group in (SIMPLE_NOUNS, COMPOUND_NOUNS)
    for nouns in group.values()
    for noun in nouns
    for form in (noun.de, noun.oblique, noun.de_plural, noun.de_plural + "n")
}


def visible_combinations(de: str) -> list[str]:
    words = words_of(de)
    found = [f"compound {' '.join(split_compound(word))}" for word in words if word in _COMPOUNDS]
    words[0] = words[0].lower()
    for adjective, noun in pairwise(words):
        match = re.fullmatch(r"(.+?)(e|en|em|er|es)", adjective)
        if match and match[1] in _STEMS and noun in _FORMS:
            found.append(f"adjective {_STEMS[match[1]]} {_FORMS[noun]}")
    return found


def split_compound(word: str) -> tuple[str, str]:
    modifier, _ = _COMPOUNDS[word]
    return modifier, _FORMS[word][len(modifier) :]


def test_training_text_holds_no_held_out_combination(corpus: dict[str, Pairs]) -> None:
    visible = 0
    for split in ("train", "valid"):
        for de, _ in corpus[split]:
            found = visible_combinations(de)
            visible += len(found)
            assert not any(map(held_out, found)), de
    assert visible > 10000


def test_every_test_sentence_holds_one(corpus: dict[str, Pairs]) -> None:
    combinations: dict[str, list[str]] = {}
    composer = Composer(random.Random("headwise 1 test"))
    for _ in range(20000):
        de, _ = composer.draw()
        combinations[de] = composer.combinations
    kinds = {"subject": 0, "adjective": 0, "compound": 0}
    for de, _ in corpus["test"]:
        held = [name for name in combinations[de] if held_out(name)]
        assert held, de
        for name in {name.split()[0] for name in held}:
            kinds[name] += 1
        assert set(visible_combinations(de)) <= set(combinations[de]), de
    assert min(kinds.values()) > 100, kinds


def test_vocabulary_of_the_test_set(corpus: dict[str, Pairs]) -> None:
    known = {word for pair in corpus["train"] for side in pair for word in words_of(side)}
    parts = [_COMPOUNDS[word] for word in known if word in _COMPOUNDS]
    modifiers, heads = {first for first, _ in parts}, {last for _, last in parts}
    n_new = 0
    for de, en in corpus["test"]:
        assert set(words_of(en)) <= known
        for word in set(words_of(de)) - known:
            assert word in _COMPOUNDS, word
            n_new += 1
            assert _COMPOUNDS[word][0] in modifiers
            assert _COMPOUNDS[word][1] in heads
    assert n_new > 50


# The phenomena, each a German pattern and an English one for the same pair, and how many in 1000
# pairs show it.
_ADVERB = r"(Heute|Gestern|Jetzt|Oft|Manchmal|Am Montag|Letzte Woche|Nächste Woche|Morgen|Bald)"
_PHENOMENA = {
    "inversion": (rf"^{_ADVERB} \w+ (der|die|das|ich|er|wir|\w+) ", r"^\w+ ", 10),
    "fronted place": (r"^(Im|In|Am|Auf) ", r"^(In|At|On) ", 30),
    "perfect": (r"\b(hat|haben|habe|hast|ist|sind|bin|bist)\b.* (ge\w+|\w+ge\w+)\b", "", 100),
    "modal": (
        r"\b(kann|muss|soll|darf|können|müssen|sollen|dürfen)\b",
        r"can|have|has|sho|may",
        60,
    ),
    "future": (r"\b(werde|wirst|wird|werden)\b .*en\b", r"\bwill\b", 20),
    "dass": (r", dass .* \w+", r" that ", 25),
    "weil": (r", weil |^Weil ", r"[Bb]ecause ", 20),
    "ob": (r", ob ", r" whether ", 10),
    "wenn": (r", wenn |^Wenn ", r"[Ww]hen ", 5),
    "als": (r", als |^Als ", r"[Ww]hen ", 5),
    "relative": (r", (der|die|das|den|dem|denen) .*, ", r" (who|which) ", 80),
    "wo clause": (r", wo ", r" where ", 3),
    "embedded wer": (r", wer ", r" who ", 3),
    "embedded was": (r", was ", r" what ", 8),
    "wer question": (r"^Wer .*\?$", r"^Who .*\?$", 5),
    "was question": (r"^Was .*\?$", r"^What (do|did|does|can|will) .*\?$", 5),
    "wo question": (r"^Wo .*\?$", r"^Where .*\?$", 5),
    "warum question": (r"^Warum .*\?$", r"^Why .*\?$", 5),
    "welcher": (r"[Ww]elche\w? ", r"[Ww]hich ", 5),
    "yes or no": (r"^(Hat|Haben|Ist|Kann|Muss|\w+t|\w+en|\w+st) .*\?$", r"^(D|I|C|H|W|M|S|A)", 25),
    "particle at the end": (r" ruft .* an\b| macht .* (auf|zu)\b| holt .* ab\b", "", 5),
    "anzurufen": (r" (auf|an|zu|ab|ein|weg|vor|mit|aus|zurück)zu\w+en\b", r" to ", 8),
    "infinitive with zu": (r", (.* )?zu \w+n\.", r" to ", 20),
    "nicht": (r"\bnicht\b", r"\bnot\b", 50),
    "kein": (r"\bkein(e|en|em|er)?\b", r"\bnot\b.* (an?|any) ", 5),
    "gern": (r"\bgern\b", r"\blikes? to\b", 10),
    "pronoun it": (r"\b(er|sie|ihn) ", r"\bit\b", 15),
    "er is it": (r", (weil|wenn|als|obwohl) er .* (ist|war)", r"\bit (is|was)\b", 1),
    "number": (r"\b(zwei|drei|vier|fünf|zwölf)\b", r"\b(two|three|four|five|twelve)\b", 6),
    "name": (r"\b(Anna|Peter|Emma|Paul)\b", r"\b(Anna|Peter|Emma|Paul)\b", 25),
    "hyphen": (r"(U-Bahn-|CD-|E-Mail|T-Shirt|E-Bike)", r"(subway|CD|email|T-shirt|e-bike)", 5),
    "possessive": (r"\b(sein|ihr)(e|en|em|er)?\b", r"\b(his|her|its|their)\b", 50),
    "nach": (r"\bnach (Berlin|Wien)\b", r"\bto (Berlin|Vienna)\b", 3),
    "ins": (r"\bins |\bin (die|den) ", r"\binto ", 15),
    "weak noun": (r"\b(Studenten|Bauern|Löwen|Polizisten)\b", "", 10),
}


@pytest.mark.parametrize("name", _PHENOMENA)
def test_phenomenon_is_frequent(name: str, text: Pairs) -> None:
    german, english, least = _PHENOMENA[name]
    n = sum(bool(re.search(german, de) and re.search(english, en)) for de, en in text)
    assert 1000 * n / len(text) >= least, f"{name}: {1000 * n / len(text):.1f} in 1000"


def test_compounds_are_frequent_and_written_apart_in_english(text: Pairs) -> None:
    n = 0
    for de, en in text:
        if "Gartenfenster" in de:
            assert "garden window" in en
        n += any(word in _COMPOUNDS for word in words_of(de))
    assert n > 0.15 * len(text)


def test_lengths(corpus: dict[str, Pairs]) -> None:
    for side in (0, 1):
        lengths = [len(pair[side].split()) for pair in corpus["train"]]
        assert 8 < sum(lengths) / len(lengths) < 10.5
        assert sum(4 <= n <= 20 for n in lengths) > 0.97 * len(lengths)
        assert max(lengths) < 40


def test_capitals_punctuation_and_spaces(text: Pairs) -> None:
    for de, en in text:
        for side in (de, en):
            assert side[0].isupper(), side
            assert side[-1] in ".?", side
            assert not re.search(r"  |,,| ,|,[^ ]|,[.?]|[.?].", side), side
        assert (de[-1] == "?") == (en[-1] == "?")


def test_english_agreement(text: Pairs) -> None:
    bases = "|".join({v.en for verbs in VERBS.values() for v in verbs if v.en != "read"} | {"have"})
    thirds = "|".join({verb.en_third for verbs in VERBS.values() for verb in verbs} | {"has"})
    often = "(often |always |sometimes |rarely |never )?"
    opening = "(^|that |whether |because |although |while |before )"
    names = "Anna|Peter|Maria|Thomas|Julia|Felix|He|She|It|he|she|it"
    wrong = re.compile(
        rf"{opening}({names}) {often}({bases}|are|were|am|do|want|like)\b"
        rf"|{opening}(I|[Yy]ou|[Ww]e|[Tt]hey) {often}({thirds}|is|does|wants|likes)\b"
        rf"|\b(does|did|do|can|will|may|should|to|not) ({thirds})\b"
        r"|\b[Aa] [aeio]|\b[Aa]n [^aeiou]|\b([Tt]his|[Ee]very) \w+ are\b|\b[Tt]hese \w+ is\b"
    )
    singular = re.compile(rf"{opening}({names}) {often}({thirds})\b")
    for _, en in text:
        assert not wrong.search(en), en
    assert sum(bool(singular.search(en)) for _, en in text) > 1000


def test_german_agreement(text: Pairs) -> None:
    second = "|".join({verb.present[1] for verbs in VERBS.values() for verb in verbs})
    wrong = re.compile(
        rf"\bich ({second}|hat|ist|sind|haben)\b|\b(du|Du) (hat|ist|habe|kann|will|muss)\b"
        r"|\b(wir|Wir) (hat|ist|habe|kann)\b|\b([Ii]n|[Aa]n|zu) dem\b|\b[Ii]n das\b|\bzu der\b"
    )
    plurals = {noun.de_plural for nouns in SIMPLE_NOUNS.values() for noun in nouns}
    plurals |= {noun.de_plural for nouns in COMPOUND_NOUNS.values() for noun in nouns}
    articles = {"m": {"der", "den", "dem"}, "f": {"die", "der"}, "n": {"das", "dem"}}
    allowed = {
        noun.de: articles[noun.gender]
        for group in (SIMPLE_NOUNS, COMPOUND_NOUNS)
        for nouns in group.values()
        for noun in nouns
        if noun.de not in plurals
    }
    checked = 0
    for de, _ in text:
        assert not wrong.search(de), de
        # Elsewhere an article could be a relative pronoun.
        for article, noun in re.findall(
            r"(?:^|dass |weil |ob |hat |haben |habe |kann |will |wird )"
            r"([Dd]er|[Dd]ie|[Dd]as|den|dem) ([A-ZÄÖÜ][\w-]+)",
            de,
        ):
            if noun in allowed:
                checked += 1
                assert article.lower() in allowed[noun], de
    assert checked > 5000


def test_verbs_stand_where_they_should(text: Pairs) -> None:
    finite = {
        verb.particle + form for verbs in VERBS.values() for verb in verbs for form in verb.present
    }
    finite |= {
        "ist",
        "war",
        "sind",
        "waren",
        "bin",
        "bist",
        "warst",
        "hat",
        "habe",
        "hast",
        "haben",
    }
    finite |= {"kann", "kannst", "können", "muss", "musst", "müssen", "will", "willst", "wollen"}
    finite |= {"soll", "sollst", "sollen", "darf", "darfst", "dürfen", "wird", "wirst", "werde"}
    finite |= {"werden"}
    n_final = n_second = 0
    for de, _ in text:
        # A clause without a further comma ends with its finite verb.
        match = re.search(r"(?:, |^)(?:dass|weil|ob|wenn|obwohl|[WO]\w+) ([^,]+)[,.]", de)
        if match and re.match(r"(?:.*, )?(dass|weil|ob|wenn|obwohl|Weil|Wenn|Obwohl) ", match[0]):
            n_final += 1
            assert match[1].split()[-1] in finite, de
        match = re.match(r"(Heute|Gestern|Jetzt|Oft|Manchmal|Abends|Bald|Morgen) (\w+) (.*)\.$", de)
        if match:
            n_second += 1
            unmarked = {form for verbs in VERBS.values() for v in verbs for form in v.present}
            assert match[2] in unmarked | finite, de
    assert n_final > 2000
    assert n_second > 500


def test_pronouns_follow_gender_in_german_and_referent_in_english(text: Pairs) -> None:
    animate = "(müde|hungrig|krank|traurig|glücklich|nervös|reich|arm) (ist|war)"
    pairs = {
        rf"^Das (?:\w+ )?Mädchen [^,]*, (?:weil|obwohl|als|wenn) es {animate}": r" she (is|was) ",
        r"^Der (?:\w+ )?(?:Hund|Esel|Fuchs) [^,]*, (?:weil|als|wenn) er ": r"(because|when) it ",
        rf"^Die (?:\w+ )?\w+in [^,]*, (?:weil|obwohl|als|wenn) sie {animate}": r" she (is|was) ",
        r", (?:weil|obwohl) (er|sie|es) (billig|teuer|kaputt|neu) (ist|war)\b": r" it (is|was) ",
        r"^Das Mädchen [^,]*\bsein(e|en|em|er)? [^,]*\.$": r"\bher\b",
    }
    for german, english in pairs.items():
        found = [(de, en) for de, en in text if re.search(german, de)]
        assert found, german
        for de, en in found:
            assert re.search(english, en), (de, en)


def test_past_and_present_of_read_are_told_apart(text: Pairs) -> None:
    for de, en in text:
        if re.search(r"\b(I|you|we|they|We|You|They) (often )?read\b", en):
            assert "gelesen" not in de or " hat " in de

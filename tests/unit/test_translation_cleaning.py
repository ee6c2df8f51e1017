import random

import pytest

from headwise.config.data import CleaningConfig
from headwise.tasks.translation.cleaning import Cleaner, CleaningReport, Normaliser


def _clean(pairs, **rules):
    report = CleaningReport()
    return list(Cleaner(CleaningConfig(**rules), "en")(iter(pairs), report)), report


@pytest.mark.parametrize(
    ("rules", "accepted", "dropped", "rule"),
    [
        ({}, ("x", "y"), (" \u3000", "y"), "empty"),
        ({"max_words": 3}, ("a b c", "a"), ("a b c d", "a"), "max_words"),
        ({"max_words": 3}, ("a", "a b c"), ("a", "a b c d"), "max_words"),
        ({"max_source_characters": 3}, ("abc", "abcd"), ("abcd", "a"), "max_source_characters"),
        ({"max_target_characters": 3}, ("abcd", "abc"), ("a", "abcd"), "max_target_characters"),
        ({"max_ratio": 1.5}, ("a b c", "a b"), ("a b", "a b c d"), "max_ratio"),
        ({"max_ratio": 2.0}, ("a", "a b"), ("a b c", "a"), "max_ratio"),
        ({"max_ratio": 1.0}, ("a b", "c d"), ("a b", "c"), "max_ratio"),
        ({"max_target_moses_tokens": 3}, ("x", "Yes, no"), ("x", "Yes, no."), None),
    ],
)
def test_each_rule_at_its_limit(rules, accepted, dropped, rule):
    pairs, report = _clean([accepted, dropped], **rules)
    assert pairs == [accepted]
    assert report.as_dict() == {
        "read": 2,
        "kept": 1,
        "dropped": {rule or "max_target_moses_tokens": 1},
        "truncated": False,
    }


def test_moses_bounds_agree_with_the_tokeniser():
    words = ["don't", "U.S.", "(寺院)", "...", "3,000.5", "naïve", "x_y", "A.B.", "\x01", "well-",
              '"no"', "e.g.", "it's,", "word", "他", "—", "a/b", "#1", "`s", "Mr."]  # fmt: skip
    generator = random.Random(1)
    for _ in range(600):
        sentence = " ".join(generator.choices(words, k=generator.randint(1, 14)))
        limit = generator.randint(1, 20)
        cleaner = Cleaner(CleaningConfig(max_target_moses_tokens=limit), "en")
        is_dropped = cleaner.dropped_by("x", sentence) is not None
        assert is_dropped == (cleaner.n_tokens(sentence) > limit), (limit, sentence)


def test_romanian_letters_change_on_the_romanian_side_only():
    cedilla, comma = "Şi ţara ŢĂRII aşa", "Și țara ȚĂRII așa"
    forward = Normaliser(["romanian_comma_below"], "ron_Latn", "eng_Latn")
    backward = Normaliser(["romanian_comma_below"], "en", "ro")
    assert (forward.source(cedilla), forward.target(cedilla)) == (comma, cedilla)
    assert (backward.source(cedilla), backward.target(cedilla)) == (cedilla, comma)

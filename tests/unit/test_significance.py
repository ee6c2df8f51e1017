"""The paired bootstrap against sacreBLEU's numbers and against what a test of significance owes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from headwise.errors import ConfigError, DataError
from headwise.metrics.bleu import score_translations
from headwise.metrics.significance import corpus_bleu, paired_bootstrap, sentence_statistics

WORDS = [f"w{i}" for i in range(30)]
REFERENCES = [
    "The dog (a big one) doesn't see the cat.",
    "No!",
    "Three well-known houses cost $1,000.50 each, don't they?",
    "",
]
HYPOTHESES = [
    "The dog (a big one) does not see the cat.",
    "",
    "Three houses cost $1,000 each.",
    "x",
]


def references(n: int, seed: int = 0) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(5, 12))) for _ in range(n)]


def noisy(lines: list[str], rate: float, seed: int) -> list[str]:
    """Each word is another one with probability `rate`."""
    chosen = random.Random(seed)
    return [
        " ".join(w if chosen.random() > rate else chosen.choice(WORDS) for w in line.split())
        for line in lines
    ]


def statistics(lines: list[str], refs: list[str]) -> np.ndarray:
    return sentence_statistics(lines, refs, "bleu", "en")


@pytest.mark.parametrize("metric", ["bleu", "bleu_tokenised"])
@pytest.mark.parametrize("language", ["en", "de"])
def test_statistics_sum_to_the_corpus_score(metric: str, language: str) -> None:
    found = sentence_statistics(HYPOTHESES, REFERENCES, metric, language)
    assert found.shape == (4, 10)
    wanted = score_translations(HYPOTHESES, REFERENCES, language)[metric]["score"]
    assert corpus_bleu(found.sum(0)) == pytest.approx(wanted, abs=1e-9)


def test_an_order_without_matches_is_smoothed_as_a_table_is() -> None:
    mine, other = ["a b c d e", "x"], ["a b y d e", "no"]
    found = statistics(mine, other).sum(0)
    assert list(found[:4]) == [4, 2, 0, 0]
    wanted = score_translations(mine, other, "en")["bleu"]["score"]
    assert corpus_bleu(found) == pytest.approx(wanted, abs=1e-9)
    assert wanted > 1


def test_words_are_cut_as_the_target_language_wants_it() -> None:
    found = sentence_statistics(["我爱北京天安门"], ["我爱天安门"], "bleu", "zh-CN")
    assert found[0, -2:].tolist() == [7, 5]  # every character is a word


def test_interval_and_p_are_of_the_mean_over_seeds_that_differ() -> None:
    refs = references(60)
    systems = [statistics(noisy(refs, rate, seed), refs) for rate, seed in ((0.2, 1), (0.5, 2))]
    baselines = [statistics(noisy(refs, rate, seed), refs) for rate, seed in ((0.22, 3), (0.34, 4))]
    both = paired_bootstrap(systems, baselines, 3000)
    first = paired_bootstrap(systems[:1], baselines[:1], 3000)
    chosen, by_hand = random.Random(0), []
    for _ in range(3000):
        drawn = chosen.choices(range(60), k=60)
        new, old = (
            [corpus_bleu(of[drawn].sum(0)) for of in seeds] for seeds in (systems, baselines)
        )
        by_hand.append(np.mean(new) - np.mean(old))
    low, high = np.quantile(by_hand, [0.025, 0.975])
    # 90 % would be narrower by a third of the deviation at either end
    deviation = np.std(by_hand)
    assert (both.low, both.high) == pytest.approx((low, high), abs=0.15 * deviation)
    scores = [np.mean([corpus_bleu(of.sum(0)) for of in seeds]) for seeds in (systems, baselines)]
    assert both.difference == pytest.approx(scores[0] - scores[1], abs=1e-9)
    assert (both.n_seeds, both.n_sentences, both.n_resamples) == (2, 60, 3000)
    as_far = np.abs(np.array(by_hand) - np.mean(by_hand)) >= abs(both.difference)
    assert both.p_value == pytest.approx(as_far.mean(), abs=0.03)
    assert abs(both.low - first.low) > deviation
    assert abs(both.high - first.high) > deviation
    assert abs(both.p_value - first.p_value) > 0.1


def test_one_seed_is_resampled_as_sacrebleu_does() -> None:
    refs = references(150)
    system, baseline = noisy(refs, 0.2, 1), noisy(refs, 0.24, 2)
    ours = paired_bootstrap([statistics(system, refs)], [statistics(baseline, refs)], 2000)
    metric = {"BLEU": BLEU(tokenize="13a", references=None)}
    _, theirs = PairedTest(
        [("baseline", baseline), ("system", system)], metric, [refs], "bs", n_samples=2000
    )()
    before, after = theirs["BLEU"]
    assert ours.difference == pytest.approx(after.score - before.score, abs=1e-4)
    # absolute differences make theirs one-sided; the spread of both is the same
    assert ours.p_value == pytest.approx(2 * after.p_value, abs=0.05)


def test_a_clear_difference_is_found_and_its_sign_kept() -> None:
    refs = references(150)
    good, bad = statistics(noisy(refs, 0.1, 1), refs), statistics(noisy(refs, 0.4, 2), refs)
    better, worse = paired_bootstrap([good], [bad], 300), paired_bootstrap([bad], [good], 300)
    assert better.p_value == worse.p_value == 1 / 301
    assert better.low > 0 > worse.high
    assert better.difference == -worse.difference


def test_equal_systems_never_differ() -> None:
    refs = references(20)
    same = statistics(noisy(refs, 0.3, 1), refs)
    found = paired_bootstrap([same], [same], 50)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_sentences_are_drawn_not_sentences_of_each_seed() -> None:
    """The same translations three times over are no more evidence than once."""
    refs = references(80)
    system, baseline = statistics(noisy(refs, 0.2, 1), refs), statistics(noisy(refs, 0.22, 2), refs)
    once, thrice = (paired_bootstrap([system] * n, [baseline] * n, 200) for n in (1, 3))
    assert (once.low, once.high, once.p_value) == pytest.approx(
        (thrice.low, thrice.high, thrice.p_value)
    )


def test_a_report_made_twice_says_the_same() -> None:
    refs = references(30)
    pair = [[statistics(noisy(refs, 0.2, seed), refs)] for seed in (1, 2)]
    assert paired_bootstrap(*pair, 50) == paired_bootstrap(*pair, 50)


def test_what_cannot_be_compared_is_refused() -> None:
    refs = references(4)
    few, many = statistics(refs[:2], refs[:2]), statistics(refs, refs)
    with pytest.raises(DataError, match="different numbers of sentences"):
        paired_bootstrap([few], [many])
    with pytest.raises(DataError, match="cannot pair 0 systems"):
        paired_bootstrap([], [])
    with pytest.raises(DataError, match="2 hypotheses with 4 references"):
        statistics(refs[:2], refs)
    with pytest.raises(ConfigError, match="n_resamples must be at least 1"):
        paired_bootstrap([many], [many], 0)
    with pytest.raises(ConfigError, match="metric must be one of bleu, bleu_tokenised"):
        sentence_statistics(refs, refs, "chrf", "en")

"""The paired bootstrap: compared with sacreBLEU, and properties of a significance test."""

import random
from dataclasses import replace

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from headwise.errors import ConfigError, DataError
from headwise.metrics.metric import Measured, Metric
from headwise.metrics.significance import (
    mcnemar,
    mean_interval,
    paired_bootstrap,
    scores_with_intervals,
    t_quantile,
)
from headwise.tasks.translation.metrics import score_translations, text_metrics

WORDS = [f"w{i}" for i in range(30)]
BLEU_13A = text_metrics("en")[0]


def references(n, seed=0):
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(5, 12))) for _ in range(n)]


def noisy(lines, rate, seed):
    """Replace each word with probability `rate`."""
    chosen = random.Random(seed)
    return [
        " ".join(w if chosen.random() > rate else chosen.choice(WORDS) for w in line.split())
        for line in lines
    ]


def statistics(lines, refs):
    return score_translations(lines, refs, "en").items


def noisy_statistics(n, *systems):
    """Statistics of systems, each with a rate of wrong words and a seed."""
    refs = references(n)
    return [statistics(noisy(refs, *system), refs) for system in systems]


def compare(systems, baselines, n):
    return paired_bootstrap(systems, baselines, BLEU_13A, n)


def test_interval_and_p_value_are_of_the_mean_over_seeds():
    systems = noisy_statistics(60, (0.2, 1), (0.5, 2))
    baselines = noisy_statistics(60, (0.22, 3), (0.34, 4))
    both = compare(systems, baselines, 3000)
    first = compare(systems[:1], baselines[:1], 3000)
    chosen, differences = random.Random(0), []
    for _ in range(3000):
        resample = chosen.choices(range(60), k=60)
        new, old = (
            [BLEU_13A.score(items[resample]) for items in seeds] for seeds in (systems, baselines)
        )
        differences.append(np.mean(new) - np.mean(old))
    low, high = np.quantile(differences, [0.025, 0.975])
    # 90 % would be narrower by a third of the deviation at either end
    deviation = np.std(differences)
    assert (both.low, both.high) == pytest.approx((low, high), abs=0.15 * deviation)
    scores = [np.mean([BLEU_13A.score(items) for items in seeds]) for seeds in (systems, baselines)]
    assert both.difference == pytest.approx(scores[0] - scores[1], abs=1e-9)
    as_far = np.abs(np.array(differences) - np.mean(differences)) >= abs(both.difference)
    assert both.p_value == pytest.approx(as_far.mean(), abs=0.03)
    assert abs(both.low - first.low) > deviation
    assert abs(both.high - first.high) > deviation
    assert abs(both.p_value - first.p_value) > 0.1


def test_one_seed_is_resampled_as_sacrebleu_does():
    refs = references(150)
    system, baseline = noisy(refs, 0.2, 1), noisy(refs, 0.24, 2)
    result = compare([statistics(system, refs)], [statistics(baseline, refs)], 2000)
    metric = {"BLEU": BLEU(tokenize="13a", references=None)}
    named = [("baseline", baseline), ("system", system)]
    _, sacrebleu_results = PairedTest(named, metric, [refs], "bs", n_samples=2000)()
    before, after = sacrebleu_results["BLEU"]
    assert result.difference == pytest.approx(after.score - before.score, abs=1e-4)
    # absolute differences make sacreBLEU's test one-sided; the spread of both is the same
    assert result.p_value == pytest.approx(2 * after.p_value, abs=0.05)


def test_clear_difference_is_significant_with_its_sign():
    good, bad = noisy_statistics(150, (0.1, 1), (0.4, 2))
    better, worse = compare([good], [bad], 300), compare([bad], [good], 300)
    assert better.p_value == worse.p_value == 1 / 301
    assert better.low > 0 > worse.high
    assert better.difference == -worse.difference
    result = compare([good], [good], 50)
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)


def test_sentences_are_resampled_jointly_over_seeds():
    """Three copies of the same translations are no more evidence than one."""
    system, baseline = noisy_statistics(80, (0.2, 1), (0.22, 2))
    once, thrice = (compare([system] * n, [baseline] * n, 200) for n in (1, 3))
    assert compare([system], [baseline], 200) == once  # always the same resamples
    bounds = [(result.low, result.high, result.p_value) for result in (once, thrice)]
    assert bounds[0] == pytest.approx(bounds[1])


def test_invalid_comparisons_are_rejected():
    refs = references(4)
    few, many = statistics(refs[:2], refs[:2]), statistics(refs, refs)
    with pytest.raises(DataError, match="different numbers of items"):
        compare([few], [many], 1)
    with pytest.raises(DataError, match="cannot pair 0 systems"):
        compare([], [], 1)
    with pytest.raises(ConfigError, match="n_resamples must be at least 1"):
        compare([many], [many], 0)


def test_difference_is_one_of_the_metric():
    """Items are nats and tokens; columns that the metric does not read have no effect."""
    generator = np.random.default_rng(1)
    base = np.column_stack((generator.random(60), generator.gamma(9, size=60), np.full(60, 4.0)))
    lower = base - [0.0, 0.5, 0.0]
    nll = Metric("nll", "lower", lambda sums: float(sums[0] / sums[1]), (1, 2), "", "loss", "")
    result = paired_bootstrap([lower], [base], nll, 200)
    assert result.difference == pytest.approx(-0.125)
    assert (result.low, result.high) == pytest.approx((-0.125, -0.125))
    assert result.p_value == 1 / 201
    score = Metric("score", "higher", nll.from_sums, (1, 2), "", "loss", "")
    assert paired_bootstrap([lower], [base], score, 200).difference == pytest.approx(-0.125)


def test_t_intervals_are_those_of_the_tables():
    two_sided = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 9: 2.2622, 30: 2.0423, 1000: 1.9623}
    assert {n: round(t_quantile(n), 4) for n in two_sided} == two_sided
    assert t_quantile(2, 0.9) == pytest.approx(2.9200, abs=1e-4)
    # mean 2, deviation 1, three values
    assert mean_interval([1, 2, 3]) == pytest.approx((-0.48414, 4.48414), abs=1e-5)
    assert mean_interval([1.0]) is None


def test_blocks_of_dependent_items_are_drawn():
    """Neighbours are correlated by 0.5: the interval of a mean is wider by up to the root of 3."""
    generator, n_items = np.random.default_rng(0), 1000
    noise = generator.normal(size=n_items)
    items = np.empty((n_items, 1))
    items[0] = noise[0]
    for i in range(1, n_items):
        items[i] = 0.5 * items[i - 1] + noise[i]
    mean = Metric("mean", "higher", lambda sums: sums[0] / n_items, [0], "", "", "")
    width = {}
    for consecutive in (False, True):
        metric = replace(mean, consecutive=consecutive, has_interval=True)
        test = paired_bootstrap([items], [np.zeros_like(items)], metric, 2000)
        width[consecutive] = test.high - test.low
        score = scores_with_intervals(Measured(items, [metric]))["mean"]
        assert score["high"] - score["low"] == pytest.approx(width[consecutive], rel=0.1)
    # blocks of 10 give 1 + 2 * sum of (1 - k / 10) * 0.5**k = 2.6 of the variance
    assert width[True] / width[False] == pytest.approx(2.6**0.5, rel=0.08)


def test_default_number_of_resamples_gives_a_stable_p_value():
    """Other orders of the items are other resamples."""
    generator = np.random.default_rng(0)
    mean = Metric("mean", "higher", lambda sums: sums[0], [0], "", "", "")
    items = generator.normal(size=(100, 1))
    items += 0.24 - items.mean()
    orders = [generator.permutation(items) for _ in range(6)]
    p_values = [paired_bootstrap([one], [np.zeros_like(one)], mean).p_value for one in orders]
    assert 0.002 < np.mean(p_values) < 0.03
    assert 0 < np.std(p_values) < 0.2 * np.mean(p_values)


def test_mcnemar_is_the_exact_binomial_test():
    def right(*numbers):
        return np.isin(np.arange(20), numbers)

    assert mcnemar(right(0), right(*range(1, 9))) == pytest.approx(2 * (1 + 9) / 2**9)
    assert mcnemar(right(*range(1, 9), 15), right(0, 15)) == pytest.approx(2 * (1 + 9) / 2**9)
    assert mcnemar(right(1, 2), right(1, 2)) == mcnemar(right(1), right(2)) == 1


def test_intervals_of_scores_are_those_of_their_distribution():
    is_right = np.arange(400) < 300
    items = np.column_stack((np.ones(400), is_right)).astype(float)
    share = Metric("accuracy", "higher", lambda s: float(s[1] / s[0]), (0, 1), "", "row", "")
    measured = Measured(items, [replace(share, has_interval=True)])
    score = scores_with_intervals(measured)["accuracy"]
    deviation = np.sqrt(0.75 * 0.25 / 400)
    assert score["score"] == 0.75
    assert score["low"] == pytest.approx(0.75 - 1.96 * deviation, abs=0.004)
    assert score["high"] == pytest.approx(0.75 + 1.96 * deviation, abs=0.004)

"""Is one system's BLEU above another's by more than the choice of test sentences explains?

Paired bootstrap resampling (Koehn 2004): test sentences are drawn with replacement, the same ones
for both systems, and the difference in corpus BLEU is computed on each draw. Systems trained from
several seeds are compared through their mean BLEU, which is what tables show: on each draw the mean
over the seeds' differences. What is tested is thus the sentences' share of the chance; how much
seeds differ is not in the p value, and is shown beside it as a standard deviation.

sacreBLEU's own paired test takes one pair of systems and compares absolute differences, so that on
equal systems it falls below 0.05 about one time in ten; hence the resampling here. Sentence
statistics and BLEU itself are sacreBLEU's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.errors import DataError, refuse, require
from headwise.languages import language_of
from headwise.metrics.bleu import bleu_tokeniser, moses_tokenised, token_bleu

METRICS = ("bleu", "bleu_tokenised")
ORDER = 4  # of the longest n-grams
RANDOM_SEED = 12345  # sacreBLEU's own; a report made twice says the same


@dataclass(frozen=True)
class Comparison:
    """A system beside a baseline.

    Attributes:
        difference: mean over seeds of BLEU(system) - BLEU(baseline), in percent.
        low, high: middle 95 % of the differences on resampled sentences.
        p_value: two-sided: how often a difference as large comes about between equal systems.
        n_seeds: pairs of systems.
        n_sentences: of the test set.
        n_resamples: draws of that many sentences.
    """

    difference: float
    low: float
    high: float
    p_value: float
    n_seeds: int
    n_sentences: int
    n_resamples: int


def sentence_statistics(
    hypotheses: Sequence[str], references: Sequence[str], metric: str, target_language: str
) -> np.ndarray:
    """What corpus BLEU is made of, by sentence.

    Args:
        hypotheses, references: detokenised text, one sentence each, aligned.
        metric: bleu or bleu_tokenised, as `headwise.metrics.bleu.score_translations` has them.
        target_language: code such as "en"; it chooses the tokeniser.

    Returns:
        (sentences, 10) counts: matching n-grams of orders 1 to 4, all n-grams of orders 1 to 4,
        tokens of the hypothesis, tokens of the reference.

    Raises:
        DataError: no sentences, or unequal numbers of them.
    """
    if len(hypotheses) != len(references) or not hypotheses:
        raise DataError(
            f"cannot compare {len(hypotheses)} hypotheses with {len(references)} references: "
            "the numbers of lines must be equal and not 0"
        )
    if metric not in METRICS:
        raise refuse("metric", metric, METRICS)
    language = language_of(target_language)
    if metric == "bleu":
        from sacrebleu.metrics.bleu import BLEU

        scorer: Any = BLEU(tokenize=bleu_tokeniser(language))
    else:
        scorer = token_bleu()
        hypotheses = moses_tokenised(hypotheses, language)
        references = moses_tokenised(references, language)
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        found = scorer.corpus_score([hypothesis], [[reference]])
        rows.append([*found.counts, *found.totals, found.sys_len, found.ref_len])
    return np.array(rows, dtype=np.float64)


def corpus_bleu(statistics: np.ndarray) -> float:
    """BLEU in percent of summed sentence statistics (10,)."""
    from sacrebleu.metrics.bleu import BLEU

    counts = [round(value) for value in statistics.tolist()]
    score = BLEU.compute_bleu(
        counts[:ORDER], counts[ORDER : 2 * ORDER], counts[-2], counts[-1], smooth_method="exp"
    )
    return float(score.score)


def paired_bootstrap(
    systems: Sequence[np.ndarray], baselines: Sequence[np.ndarray], n_resamples: int = 1000
) -> Comparison:
    """Compare systems with baselines, pair by pair, on the same resampled sentences.

    The p value is of the resampled differences moved to a mean of 0, as a true difference of 0
    would spread them: the share that is as far from 0 as what was observed.

    Args:
        systems, baselines: `sentence_statistics` of one system a seed, in the same order of seeds,
            all of the same test set.
        n_resamples: draws.

    Raises:
        DataError: statistics of different test sets, or none.
        ConfigError: fewer than 1 draw.
    """
    require(n_resamples >= 1, "n_resamples", "at least 1", n_resamples)
    if len(systems) != len(baselines) or not systems:
        raise DataError(f"cannot pair {len(systems)} systems with {len(baselines)} baselines")
    everything = [*systems, *baselines]
    n_sentences = len(everything[0])
    if any(len(statistics) != n_sentences for statistics in everything):
        raise DataError("cannot pair systems that translated different numbers of sentences")
    generator = np.random.default_rng(RANDOM_SEED)
    draws = generator.multinomial(n_sentences, [1 / n_sentences] * n_sentences, size=n_resamples)
    weights = draws.astype(np.float64)  # (draws, sentences): how often each was drawn

    def scores(statistics: np.ndarray) -> np.ndarray:
        return np.array([corpus_bleu(row) for row in weights @ statistics])

    pairs = list(zip(systems, baselines, strict=True))
    difference = float(
        np.mean([corpus_bleu(new.sum(0)) - corpus_bleu(old.sum(0)) for new, old in pairs])
    )
    resampled = np.mean([scores(new) - scores(old) for new, old in pairs], axis=0)
    centred = np.abs(resampled - resampled.mean())
    n_as_far = int((centred >= abs(difference)).sum())
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Comparison(
        difference=difference,
        low=float(low),
        high=float(high),
        p_value=(n_as_far + 1) / (n_resamples + 1),
        n_seeds=len(pairs),
        n_sentences=n_sentences,
        n_resamples=n_resamples,
    )

"""BLEU and chrF by sacreBLEU, each with its signature.

BLEU (Papineni et al. 2002) is computed on detokenised text with the tokeniser of sacreBLEU (Post
2018). `bleu_tokenised` is BLEU on Moses-tokenised text, as in older papers. chrF and
chrF++ are Popović 2015 and 2017.

Columns of a sentence's statistics. BLEU: numbers of tokens of hypothesis and reference, then
matching and all n-grams of orders 1 to 4. chrF++: for each order (characters 1 to 6, words 1 and 2)
the n-grams of hypothesis, of reference and in both. Tokenised BLEU: as BLEU, only for languages
written with spaces.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headwise.errors import DataError
from headwise.languages import has_spaces, language_of
from headwise.metrics.metric import Floats, Measured, Metric

logger = logging.getLogger(__name__)

UNIT = "translation"
BLEU_COLUMNS, CHRF_COLUMNS, CHRF_WORDS_COLUMNS = range(10), range(10, 28), range(10, 34)
TOKENISED_COLUMNS = range(34, 44)


def text_metrics(target_language: str, scope: str = "") -> list[Metric]:
    """Return BLEU, tokenised BLEU (only for languages written with spaces), chrF and chrF++.

    Args:
        target_language: code such as "en", "zh-CN" or "jpn_Jpan"; selects the tokenisers.
        scope: the search, see `Metric`.
    """
    from sacrebleu.metrics.chrf import CHRF

    metrics = [_metric("bleu", "BLEU", _bleu(target_language), BLEU_COLUMNS)]
    if has_spaces(target_language):  # Moses needs spaces
        import sacremoses

        language = language_of(target_language)
        tokens = f"tok:moses-{language}-sacremoses-{sacremoses.__version__}"
        label, scorer = "tokenised BLEU", _token_bleu()
        metrics.append(_metric("bleu_tokenised", label, scorer, TOKENISED_COLUMNS, tokens))
    metrics.append(_metric("chrf", "chrF", CHRF(), CHRF_COLUMNS))
    metrics.append(_metric("chrf++", "chrF++", CHRF(word_order=2), CHRF_WORDS_COLUMNS))
    return [replace(metric, scope=scope) for metric in metrics]


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], target_language: str, scope: str = ""
) -> Measured:
    """Compute the statistics of translations, one item per sentence, with `text_metrics`.

    Args:
        hypotheses: detokenised sentences.
        references: detokenised sentences, aligned with the hypotheses.
        target_language: as in `text_metrics`.
        scope: as in `text_metrics`.

    Raises:
        DataError: no sentences, or different numbers of them.
    """
    # sacreBLEU would truncate the longer list silently
    if len(hypotheses) != len(references) or not hypotheses:
        raise DataError(
            f"cannot score {len(hypotheses)} hypotheses against {len(references)} references: "
            "the numbers of lines must be equal and not 0"
        )
    from sacrebleu.metrics.chrf import CHRF

    parts = [
        _statistics(scorer, hypotheses, references)
        for scorer in (_bleu(target_language), CHRF(word_order=2))
    ]
    if has_spaces(target_language):
        tokens = [moses_tokenised(lines, target_language) for lines in (hypotheses, references)]
        parts.append(_statistics(_token_bleu(), *tokens))
    return Measured(np.concatenate(parts, axis=1), text_metrics(target_language, scope))


def bleu_tokeniser(code: str) -> str:
    """Return the tokeniser of sacreBLEU for a target language, by its code.

    13a for languages written with spaces, zh for Chinese, ja-mecab for Japanese. Other languages
    without spaces, and Japanese without MeCab (`pip install 'sacrebleu[ja]'`), are scored on
    characters. The signatures differ (tok:ja-mecab-..., tok:char), and the scores are not
    comparable.
    """
    language = language_of(code)
    if has_spaces(code):
        return "13a"
    if language == "zh":
        return "zh"
    if language == "ja" and all(map(importlib.util.find_spec, ("MeCab", "ipadic"))):
        return "ja-mecab"
    _log_characters(code, language == "ja")
    return "char"


@functools.cache  # once
def _log_characters(code: str, is_japanese: bool) -> None:
    message = f"BLEU of language {code} is computed on characters (tok:char in its signature)"
    if is_japanese:
        logger.warning("%s: MeCab is not installed; pip install 'sacrebleu[ja]'", message)
    else:
        logger.info("%s: it has no spaces between words", message)


def moses_tokenised(sentences: Sequence[str], language: str) -> list[str]:
    """Tokenise detokenised text with Moses; tokens are joined by spaces."""
    import sacremoses

    moses = sacremoses.MosesTokenizer(lang=language_of(language))
    return [moses.tokenize(line, return_str=True, escape=False) for line in sentences]


def _bleu(code: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=bleu_tokeniser(code))


def _token_bleu() -> Any:
    """Return BLEU on tokenised text, as multi-bleu.perl computes it."""
    from sacrebleu.metrics.bleu import BLEU

    # force: no warning about tokenised text
    return BLEU(tokenize="none", force=True)


# The functions below call two private methods of sacreBLEU's scorers: the statistics of each
# sentence, and the score of their sums. `corpus_score` and its significance test use them too.


def _statistics(scorer: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Floats:
    rows = scorer._extract_corpus_statistics(list(hypotheses), [list(references)])
    return np.array(rows, dtype=np.float64)


def _metric(
    name: str, label: str, scorer: Any, columns: Sequence[int], tokens: str = "tok:none"
) -> Metric:
    def from_sums(sums: Floats) -> float:
        counts = [round(value) for value in sums.tolist()]
        return float(scorer._compute_score_from_stats(counts).score)

    scorer.num_refs = 1  # part of the signature
    signature = str(scorer.get_signature()).replace("tok:none", tokens)
    return Metric(name, "higher", from_sums, columns, signature, UNIT, label)

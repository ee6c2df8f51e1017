"""BLEU and chrF by sacreBLEU, each with its signature.

BLEU (Papineni et al. 2002) is computed on detokenised text with sacreBLEU's own tokeniser (Post
2018); the BLEU of Moses-tokenised text that older papers report stands beside it under a name of
its own. chrF and chrF++ are Popović 2015 and 2017.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from typing import Any, TypedDict

from headwise.errors import DataError
from headwise.languages import has_spaces, language_of

logger = logging.getLogger(__name__)


class Score(TypedDict):
    """A value in percent and how it was computed."""

    score: float
    signature: str


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], target_language: str
) -> dict[str, Score]:
    """All corpus scores of a set of translations, as `results.json` holds them.

    Args:
        hypotheses, references: detokenised text, one sentence each, aligned.
        target_language: code such as "en", "ja" or "zh-CN"; it chooses the tokenisers.

    Returns:
        "bleu", "bleu_tokenised" (absent for languages written without spaces), "chrf" and
        "chrf++", each {"score": percent, "signature": text}.

    Raises:
        DataError: no sentences, or unequal numbers of them.
    """
    # sacreBLEU would cut the longer list silently
    if len(hypotheses) != len(references) or not hypotheses:
        raise DataError(
            f"cannot score {len(hypotheses)} hypotheses against {len(references)} references: "
            "the numbers of lines must be equal and not 0"
        )
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    language = language_of(target_language)
    scores = {
        "bleu": _corpus_score(BLEU(tokenize=bleu_tokeniser(language)), hypotheses, references)
    }
    if has_spaces(language):  # Moses' rules find no words elsewhere
        scores["bleu_tokenised"] = _moses_bleu(hypotheses, references, language)
    scores["chrf"] = _corpus_score(CHRF(), hypotheses, references)
    scores["chrf++"] = _corpus_score(CHRF(word_order=2), hypotheses, references)
    return scores


def bleu_tokeniser(language: str) -> str:
    """Which tokeniser of sacreBLEU suits a target language: 13a, zh, or for Japanese ja-mecab.

    Without MeCab (`pip install 'sacrebleu[ja]'`) Japanese is scored on characters. The signature
    says which it was (tok:ja-mecab-..., tok:char); the two are not comparable.
    """
    if language == "zh":
        return "zh"
    if language != "ja":
        return "13a"
    if importlib.util.find_spec("MeCab") and importlib.util.find_spec("ipadic"):
        return "ja-mecab"
    logger.warning(
        "MeCab is not installed: Japanese BLEU is computed on characters (tok:char in its "
        "signature). For words: pip install 'sacrebleu[ja]'"
    )
    return "char"


def _corpus_score(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return {"score": float(result.score), "signature": str(metric.get_signature())}


def moses_tokenised(sentences: Sequence[str], language: str) -> list[str]:
    """Moses tokens joined by spaces, of detokenised text."""
    import sacremoses

    moses = sacremoses.MosesTokenizer(lang=language)
    return [moses.tokenize(line, return_str=True, escape=False) for line in sentences]


def token_bleu() -> Any:
    """SacreBLEU's BLEU of text that is tokenised already."""
    from sacrebleu.metrics.bleu import BLEU

    # force: sacreBLEU warns of text that looks tokenised, which here is the intention
    return BLEU(tokenize="none", force=True)


def _moses_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Score:
    """BLEU between Moses-tokenised texts, what multi-bleu.perl gives after tokenizer.perl."""
    import sacremoses

    tokens = [moses_tokenised(lines, language) for lines in (hypotheses, references)]
    score = _corpus_score(token_bleu(), *tokens)
    name = f"tok:moses-{language}-sacremoses-{sacremoses.__version__}"
    score["signature"] = score["signature"].replace("tok:none", name)
    return score

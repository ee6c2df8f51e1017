"""Questions, and interrogation heads (Correia et al. 2019, section 5.2).

An interrogation head attends from an interrogative word to the question mark at the end of the
sentence, but not from the same word as a relative pronoun or conjunction to the end of a statement.
The paper gives no lists of interrogative words; these are ours.

Axes: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from headwise.analysis.collect import Measures
from headwise.analysis.observe import Observation
from headwise.analysis.text.words import Surface, aligned
from headwise.languages import language_of

if TYPE_CHECKING:
    from headwise.data.batch import Batch

WORDS = {
    "de": """
        wer wen wem wessen was wo woher wohin wann warum wieso weshalb weswegen wozu wie wieviel
        wieviele welche welcher welches welchen welchem womit wofür wodurch worüber woran worauf
        woraus worin worum wovon wovor wonach wogegen wobei
    """,
    "en": "who whom whose what which when where why how",
    "ro": """
        cine cui ce care când cand unde cum cât cat câtă cata câți câte cate cărui cărei căror
        încotro oare
    """,
}
# Japanese has no spaces between words. か marks a question at the end of a sentence; elsewhere it
# may be part of any word.
JAPANESE = re.compile(
    r"何|なに|なん(?=[でのとだじにか])|誰|だれ|どなた|(?<![あこそど])いつ(?!も)"
    r"|(?<!ほ)(?:どこ|どちら|どれ|どの|どんな)|(?<!ぶ)どう(?!して?も|せ|も|ぞ)"
    r"|なぜ|いくら|いくつ|か(?=\s*[?？]?[\s\"'”’」』）)]*$)"
)
CLOSING = r"[\s\"'“”’»«」』）)\]]*"
ENDS_IN_MARK = re.compile(rf"[?？]{CLOSING}$")
JAPANESE_QUESTION = re.compile(rf"か[。．.]{CLOSING}$")  # a question without a question mark
COMMAS = {"ş": "ș", "ţ": "ț"}  # Romanian: cedilla -> comma below


@dataclass(frozen=True)
class QuestionWords:
    """The interrogative words of one sentence.

    Attributes:
        tokens: indices of their tokens.
        mark: index of the final question mark; in other sentences index of the last token.
        is_question: whether the sentence ends in a question mark.
    """

    tokens: tuple[int, ...]
    mark: int
    is_question: bool


def has_word_list(language: str) -> bool:
    """Whether there is a list of interrogative words for a language, by its code."""
    language = language_of(language)
    return language in WORDS or language == "ja"


def question_words(sentence: Surface, language: str) -> QuestionWords | None:
    """Return the interrogative words of a sentence.

    None if there are none, or if it may be a question without a question mark.
    """
    language = language_of(language)
    ends = ENDS_IN_MARK.search(sentence.text)
    if not sentence.spans or (
        ends is None and language == "ja" and JAPANESE_QUESTION.search(sentence.text)
    ):
        return None
    mark = len(sentence.spans) - 1
    if ends is not None:
        mark = sentence.tokens_of(ends.start(), ends.start() + 1)[-1]
    tokens = {
        token
        for start, end in _matches(sentence.text, language)
        for token in sentence.tokens_of(start, end)
    } - {mark}
    return QuestionWords(tuple(sorted(tokens)), mark, ends is not None) if tokens else None


def _matches(text: str, language: str) -> list[tuple[int, int]]:
    if language == "ja":
        return [match.span() for match in JAPANESE.finditer(text)]
    words = WORDS[language].split()
    # by character: a lower-case form of two characters would shift the positions
    lower = (c.lower() if len(c.lower()) == 1 else c for c in text)
    plain = "".join(COMMAS.get(letter, letter) for letter in lower)
    return [match.span() for match in re.finditer(r"[^\W_]+", plain) if match[0] in words]


def n_tokens(sentences: Sequence[QuestionWords | None]) -> dict[str, int]:
    """Count tokens of interrogative words in questions and in other sentences."""
    known = [words for words in sentences if words is not None]
    return {
        "question": sum(len(words.tokens) for words in known if words.is_question),
        "statement": sum(len(words.tokens) for words in known if not words.is_question),
    }


def interrogation(
    batch: Batch, obs: Observation, words_of: Mapping[str, Sequence[QuestionWords | None]]
) -> Measures:
    """Yield the weight of self-attention from interrogative words to the end of the sentence.

    question_weight and statement_weight: mean weight from the words to the mark.

    Args:
        words_of: column -> the interrogative words of every sentence of the text; columns that
            are not measured are absent.
    """
    text = words_of.get(obs.keys)
    if text is None or not obs.is_self:
        return
    sentences = [text[index] for index in batch.rows]
    marks = [0 if words is None else words.mark for words in sentences]
    marks_B = torch.tensor(marks, device=obs.queries_BQ.device)
    index_BHQ1 = marks_B[:, None, None, None].expand(*obs.shares_BHQK.shape[:3], 1)
    weight_BHQ = obs.measured(obs.shares_BHQK.gather(3, index_BHQ1)[..., 0])
    for name, is_question in (("question_weight", True), ("statement_weight", False)):
        rows = [
            _flags(words) if words is not None and words.is_question == is_question else []
            for words in sentences
        ]
        is_word_BN = aligned(rows, 0, batch.columns[obs.queries].is_real_BN) > 0
        yield {name: weight_BHQ}, obs.of_queries(is_word_BN)


def _flags(words: QuestionWords) -> list[int]:
    return [int(token in words.tokens) for token in range(max(words.tokens) + 1)]

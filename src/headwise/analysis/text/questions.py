"""Questions, and heads that tell them (Correia et al. 2019, section 5.2).

An interrogation head looks from an interrogative word at the question mark that ends the
sentence, and does not look at the end from the same word where it is a relative pronoun or
conjunction. The words are those of the source; the lists are ours, the paper gives none.

Letters: B batch, H heads, Q queries, K keys.
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
# Japanese has no spaces to find words by. か asks at the end of a sentence; elsewhere it may be
# any part of any word.
JAPANESE = re.compile(
    r"何|なに|なん(?=[でのとだじにか])|誰|だれ|どなた|(?<![あこそど])いつ(?!も)"
    r"|(?<!ほ)(?:どこ|どちら|どれ|どの|どんな)|(?<!ぶ)どう(?!して?も|せ|も|ぞ)"
    r"|なぜ|いくら|いくつ|か(?=\s*[?？]?[\s\"'”’」』）)]*$)"
)
CLOSING = r"[\s\"'“”’»«」』）)\]]*"
ENDS_IN_MARK = re.compile(rf"[?？]{CLOSING}$")
JAPANESE_ASKS = re.compile(rf"か[。．.]{CLOSING}$")  # a question without a question mark
COMMAS = {"ş": "ș", "ţ": "ț"}  # for Romanian cedillas


@dataclass(frozen=True)
class Asking:
    """Where one sentence has interrogative words.

    Attributes:
        pieces: those of the words.
        mark: the piece of the final question mark; in other sentences the last piece.
        is_question: whether it ends in a question mark.
    """

    pieces: tuple[int, ...]
    mark: int
    is_question: bool


def has_words(language: str) -> bool:
    """Whether there is a list of interrogative words for a language, by its code."""
    language = language_of(language)
    return language in WORDS or language == "ja"


def asking(sentence: Surface, language: str) -> Asking | None:
    """The interrogative words of a sentence; None where it has none, or may or may not ask."""
    language = language_of(language)
    ends = ENDS_IN_MARK.search(sentence.text)
    if not sentence.spans or (
        ends is None and language == "ja" and JAPANESE_ASKS.search(sentence.text)
    ):
        return None
    mark = len(sentence.spans) - 1
    if ends is not None:
        mark = sentence.pieces_of(ends.start(), ends.start() + 1)[-1]
    found = {
        piece
        for start, end in _matches(sentence.text, language)
        for piece in sentence.pieces_of(start, end)
    } - {mark}
    return Asking(tuple(sorted(found)), mark, ends is not None) if found else None


def _matches(text: str, language: str) -> list[tuple[int, int]]:
    if language == "ja":
        return [match.span() for match in JAPANESE.finditer(text)]
    known = WORDS[language].split()
    # letter by letter: where the small form of one is two characters, places would move
    small = (c.lower() if len(c.lower()) == 1 else c for c in text)
    plain = "".join(COMMAS.get(letter, letter) for letter in small)
    return [match.span() for match in re.finditer(r"[^\W_]+", plain) if match[0] in known]


def n_tokens(sentences: Sequence[Asking | None]) -> dict[str, int]:
    """Pieces of interrogative words in questions and in other sentences."""
    known = [asks for asks in sentences if asks is not None]
    return {
        "question": sum(len(asks.pieces) for asks in known if asks.is_question),
        "statement": sum(len(asks.pieces) for asks in known if not asks.is_question),
    }


def interrogation(
    batch: Batch, seen: Observation, asking_of: Mapping[str, Sequence[Asking | None]]
) -> Measures:
    """How much each head of self-attention looks from interrogative words at the sentence's end.

    question_weight and statement_weight: mean weight from the words on the mark.

    Args:
        asking_of: column -> what every sentence asks, by its place in the text; without columns
            that are not looked at.
    """
    text = asking_of.get(seen.keys)
    if text is None or not seen.is_self:
        return
    sentences = [text[index] for index in batch.rows]
    marks = [0 if asks is None else asks.mark for asks in sentences]
    marks_B = torch.tensor(marks, device=seen.queries_BQ.device)
    index_BHQ1 = marks_B[:, None, None, None].expand(*seen.shares_BHQK.shape[:3], 1)
    weight_BHQ = seen.measured(seen.shares_BHQK.gather(3, index_BHQ1)[..., 0])
    for name, is_question in (("question_weight", True), ("statement_weight", False)):
        rows = [
            _flags(asks) if asks is not None and asks.is_question == is_question else []
            for asks in sentences
        ]
        yield {name: weight_BHQ}, aligned(rows, 0, seen.queries_BQ) > 0


def _flags(asks: Asking) -> list[int]:
    return [int(piece in asks.pieces) for piece in range(max(asks.pieces) + 1)]

"""The sentences of a page: what a run makes of them, and where its heads look meanwhile.

Letters: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.analysis.observe import Observation
from headwise.analysis.text.questions import asking, has_words
from headwise.analysis.text.readings import readings
from headwise.analysis.text.words import surface
from headwise.errors import DataError
from headwise.page.weights import packed, rounded
from headwise.tasks.texts import named_sets, read_lines, set_to_show
from headwise.tasks.translation_run import TranslationRun

UNFINISHED = "…"  # what the last step of a translation would write that hit the length limit
QUESTIONS = 4  # one in so many sentences at most is chosen for being a question


@dataclass(frozen=True)
class Sentence:
    """One line of text.

    Attributes:
        line: its number in its file, from 1.
        reference: None where there is none.
    """

    line: int
    source: str
    reference: str | None = None


@dataclass(frozen=True)
class Sentences:
    """What is looked at, and where it comes from.

    Attributes:
        origin: name of the set or file.
        chosen: in the order of their lines.
        n_lines: how many were to choose from, empty lines left out.
        n_questions: how many of them were chosen for being questions.
    """

    origin: str
    chosen: Sequence[Sentence]
    n_lines: int
    n_questions: int = 0


def chosen_sentences(run: TranslationRun, n_sentences: int, path: Path | None) -> Sentences:
    """Evenly spaced lines of the run's first test set, or the first lines of a file.

    Up to a quarter of the lines of a test set are questions with an interrogative word, evenly
    spaced among those: without any, a head that tells questions has nothing to be seen at.

    Args:
        run: whose test set.
        n_sentences: how many at most.
        path: source sentences, one a line; a tab and a reference may follow.

    Raises:
        DataError: there is no text, or it cannot be found.
    """
    if path is not None:
        found = [
            Sentence(number, source.strip(), reference.strip() or None)
            for number, line in enumerate(read_lines(path), start=1)
            for source, _, reference in [line.partition("\t")]
        ]
        origin = path.name
    else:
        origin = set_to_show(run)
        sides = named_sets(run, [origin], None)[origin]
        pairs = enumerate(zip(*sides, strict=True), start=1)
        found = [Sentence(number, source, reference) for number, (source, reference) in pairs]
    found = [sentence for sentence in found if sentence.source.strip()]
    if not found:
        raise DataError(f"{path or origin} has no sentence to show")
    if path is not None:
        return Sentences(origin, found[:n_sentences], len(found))
    asked = _spaced(_questions(found, run.config.data.source), n_sentences // QUESTIONS)
    others = [sentence for sentence in found if sentence not in asked]
    chosen = [*asked, *_spaced(others, n_sentences - len(asked))]
    chosen.sort(key=lambda sentence: sentence.line)
    return Sentences(origin, chosen, len(found), len(asked))


def _questions(found: Sequence[Sentence], language: str) -> list[Sentence]:
    """Those that end in a question mark and hold an interrogative word."""
    if not has_words(language):
        return []
    # a character a piece: where the words are does not matter here
    asks = [asking(surface(list(sentence.source.strip())), language) for sentence in found]
    return [one for one, seen in zip(found, asks, strict=True) if seen and seen.is_question]


def _spaced(found: Sequence[Sentence], most: int) -> list[Sentence]:
    """At most so many, evenly spaced, from the first on."""
    n = min(most, len(found))
    return [found[place * len(found) // n] for place in range(n)]


def sentence_contents(run: TranslationRun, sentences: Sequence[Sentence]) -> list[dict[str, Any]]:
    """What a page holds of each sentence: the run's translation, its pieces and all weights."""
    contents: list[dict[str, Any]] = [{} for _ in sentences]
    sources = [sentence.source for sentence in sentences]
    for place, reading in readings(run.translator, run.normaliser, sources):
        written = reading.written_pieces
        if not reading.is_finished:
            written = [*written[:-1], UNFINISHED]
        contents[place] = {
            "translation": reading.translation,
            "source_pieces": reading.source_pieces,
            "read_pieces": reading.read_pieces,
            "written_pieces": written,
            **weight_contents(reading.seen),
        }
    return contents


def weight_contents(found: Sequence[Observation]) -> dict[str, Any]:
    """The attentions of one sentence: their shapes, and the bytes of all of them.

    A head whose weights are not what it declares (finite, or no distribution) is left out.
    """
    blocks, kept = [], []
    for seen in found:
        weights_HQK, allowed_HQK = seen.weights_BHQK[0], seen.allowed_BHQK[0]
        is_sound_H = seen.is_sound_H1[:, 0]
        kept.append(rounded(weights_HQK[is_sound_H], allowed_HQK[is_sound_H]))
        numbers = zip(seen.head_numbers, is_sound_H.tolist(), strict=True)
        blocks.append(
            {
                "site": seen.site,
                "layer": seen.layer,
                "heads": [number for number, is_sound in numbers if is_sound],
                "shape": list(weights_HQK.shape[1:]),
                "signed": bool((kept[-1] < 0).any()),
            }
        )
    return {"blocks": blocks, "weights": packed(kept)}

"""Sentences to show for a translation run, and the model's input of each.

The decoder input is the run's translation, not the reference: forced decoding of the ids that the
search returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headwise.analysis.text.questions import has_word_list, question_words
from headwise.analysis.text.words import surface
from headwise.data.tokenizer import BOS, EOS
from headwise.decode.translator import require_lines
from headwise.errors import DataError
from headwise.tasks.reading import Axes, Candidates, Item, Reading
from headwise.tasks.translation.batches import evaluation_batches
from headwise.tasks.translation.run import TranslationRun
from headwise.tasks.translation.store import EncodedSplit

NAMES = "source", "reference"
NOTE = "The target is the model's own translation."
UNFINISHED = "…"  # last label of a translation that reached the length limit


def line_pairs(lines: Iterable[str]) -> Iterator[Sequence[str]]:
    """Source sentences of a user, one per line; a tab and a reference may follow."""
    return (list(map(str.strip, line.split("\t", 1))) for line in lines)


def sentence_candidates(pairs: Iterable[Sequence[str]], language: str) -> Candidates:
    """Sentences that are not empty, of which questions with an interrogative word are preferred.

    The role of interrogation heads shows on these only.

    Args:
        pairs: sources, each with a reference or without.
        language: code of the sources.
    """
    items = [
        Item(number, {name: text for name, text in zip(NAMES, sides, strict=False) if text})
        for number, sides in enumerate(pairs, start=1)
        if sides[0].strip()
    ]
    questions = _questions(items, language)
    note = "some of them questions"
    return Candidates(len(items), items.__getitem__, "sentences", questions, note)


def _questions(items: Sequence[Item], language: str) -> list[int]:
    """Places of the items that end in a question mark and contain an interrogative word."""
    if not has_word_list(language):
        return []
    # one character per token: positions of words do not matter here
    words = [question_words(surface(list(item.text.strip())), language) for item in items]
    return [place for place, word in enumerate(words) if word and word.is_question]


def given_sentences(run: TranslationRun, sentences: Sequence[str]) -> Iterator[Reading]:
    """See `Task.given`.

    Rows of the cross-attention are labelled by the token generated at each step, rows of the
    decoder's self-attention by its input token.

    Raises:
        DataError: a string instead of a list, or an empty sentence, by line number.
    """
    require_lines(sentences)
    sources = list(map(run.normaliser.source, sentences))
    translations = run.translator.translate(sources)
    source, target = run.tokenizers.source, run.tokenizers.target
    source_ids = source.encode(sources)
    for line, translation in enumerate(translations, start=1):
        if not translation.hypotheses:
            raise DataError(f"source line {line} is empty: there is no attention to show")
    for index, translation in enumerate(translations):
        hypothesis, text = translation.hypotheses[0], translation.text
        split = EncodedSplit.from_lists([source_ids[index]], [list(hypothesis.ids)])
        (batch,) = evaluation_batches(split, max_tokens=1)
        encoded = source.labels([*source_ids[index], EOS])
        _, *outputs = inputs = target.labels([BOS, *hypothesis.ids])
        outputs += target.labels([EOS]) if hypothesis.finished else [UNFINISHED]
        axes = {
            "encoder_self": Axes(encoded, encoded, sources[index]),
            "decoder_self": Axes(inputs, inputs, text, NOTE),
            "cross": Axes(outputs, encoded, f"{sources[index]} → {text}", NOTE),
        }
        yield Reading(batch, axes, {"translation": text})

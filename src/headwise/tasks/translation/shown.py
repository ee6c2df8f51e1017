"""What is shown of a sentence to translate: the source and the run's own translation.

The decoder input is the run's translation, not the reference: forced decoding of the ids that the
search returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from headwise.analysis.text.questions import has_word_list, question_words
from headwise.analysis.text.words import surface
from headwise.data.sources.lines import read_lines
from headwise.data.tokenizer import BOS, EOS
from headwise.decode.translator import require_lines
from headwise.errors import DataError
from headwise.tasks.shown import Candidates, Item, Shown, given
from headwise.tasks.task import Part, Source
from headwise.tasks.translation.batches import evaluation_batches
from headwise.tasks.translation.corpus import EncodedSplit
from headwise.tasks.translation.run import TranslationRun

NAMES = "source", "reference"
NOTE = "The target is the model's own translation."
UNFINISHED = "…"  # last label of a translation that reached the length limit


def shown_sentences(run: TranslationRun, source: Source) -> Candidates:
    """See `Task.shown`: sentences that are not empty; a tab and a reference may follow in a file.

    Of a split, questions with an interrogative word are preferred: the role of interrogation heads
    shows on these only.

    Raises:
        DataError: a string instead of a list, or an empty sentence, by line number.
    """
    read = partial(_read, run)
    pairs: Iterable[Iterable[str]]
    if isinstance(source, Part):
        pairs = zip(*run.data([source.split]).texts(source.split), strict=True)
    elif isinstance(source, Path):
        pairs = (map(str.strip, line.split("\t", 1)) for line in read_lines(source))
    else:
        require_lines(source)
        return given(source, read, "sentences")
    numbered = enumerate((dict(zip(NAMES, pair, strict=False)) for pair in pairs), 1)
    items = [
        Item(number, texts["source"], {name: text for name, text in texts.items() if text})
        for number, texts in numbered
        if texts["source"].strip()
    ]
    questions = _questions(items, run.config.data.source)
    note = "some of them questions"
    return Candidates(len(items), items.__getitem__, read, "sentences", questions, note)


def _questions(items: Sequence[Item], language: str) -> list[int]:
    """Places of the items that end in a question mark and contain an interrogative word."""
    if not has_word_list(language):
        return []
    # one character per token: positions of words do not matter here
    words = [question_words(surface(list(str(item.input).strip())), language) for item in items]
    return [place for place, word in enumerate(words) if word and word.is_question]


def _read(run: TranslationRun, items: Iterable[Item]) -> Iterator[Shown]:
    """Sentences with their translations.

    Rows of the cross-attention are labelled by the token generated at each step, rows of the
    decoder's self-attention by its input token.
    """
    items = list(items)
    sources = [run.normaliser.source(str(item.input)) for item in items]
    translations = run.translator.translate(sources)
    source, target = run.tokenizers.source, run.tokenizers.target
    for item, translation in zip(items, translations, strict=True):
        if not translation.hypotheses:
            raise DataError(f"source line {item.number} is empty: there is no attention to show")
    for text, ids, translation in zip(sources, source.encode(sources), translations, strict=True):
        hypothesis, *_ = translation.hypotheses
        (batch,) = evaluation_batches(EncodedSplit.from_lists([ids], [list(hypothesis.ids)]), 1)
        inputs = target.labels([BOS, *hypothesis.ids])
        end = target.labels([EOS]) if hypothesis.finished else [UNFINISHED]
        labels = {
            "source": (source.labels([*ids, EOS]), text),
            "target": (inputs, translation.text),
        }
        outputs, predicted = {"translation": translation.text}, [*inputs[1:], *end]
        yield Shown(batch, labels, outputs=outputs, predicted=predicted, note=NOTE)

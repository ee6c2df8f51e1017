"""Sentences to show for a translation run, and the attention of its model on them.

The decoder input is the run's translation, not the reference: forced decoding of the ids that the
search returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headwise.analysis.observe import observations
from headwise.analysis.text.questions import has_word_list, question_words
from headwise.analysis.text.words import surface
from headwise.data.batching import evaluation_batches
from headwise.data.store import EncodedSplit
from headwise.data.tokenizer import BOS, EOS
from headwise.decode.translator import require_lines
from headwise.errors import DataError
from headwise.tasks.reading import Axes, Item, Items, Reading, spaced
from headwise.tasks.texts import named_sets, read_lines, set_to_show
from headwise.tasks.translation_run import TranslationRun

NAMES = "source", "reference"
NOTE = "The target is the model's own translation."
QUESTIONS = 4  # at most one in four sentences is chosen as a question
UNFINISHED = "…"  # last label of a translation that reached the length limit


def chosen_sentences(run: TranslationRun, max_items: int, path: Path | None) -> Items:
    """Evenly spaced lines of the run's first test set, or the first lines of a file.

    Up to a quarter of the lines of a test set are questions with an interrogative word, evenly
    spaced: the role of interrogation heads shows on these only.

    Args:
        run: a run of translation.
        max_items: maximum number of sentences.
        path: source sentences, one per line; a tab and a reference may follow.

    Raises:
        DataError: the text is empty or cannot be read.
    """
    lines: Iterable[Sequence[str]]
    if path is not None:
        origin = path.name
        lines = (list(map(str.strip, line.split("\t", 1))) for line in read_lines(path))
    else:
        origin = set_to_show(run)
        lines = zip(*named_sets(run, [origin], None)[origin], strict=True)
    items = [
        Item(number, {name: text for name, text in zip(NAMES, sides, strict=False) if text})
        for number, sides in enumerate(lines, start=1)
        if sides[0].strip()
    ]
    if not items:
        raise DataError(f"{path or origin} has no sentence to show")
    if path is not None:
        return Items(origin, "sentences", items[:max_items], len(items))
    questions = spaced(_questions(items, run.config.data.source), max_items // QUESTIONS)
    others = [item for item in items if item not in questions]
    others = spaced(others, max_items - len(questions))
    chosen = sorted([*questions, *others], key=lambda item: item.number)
    note = "some of them questions" if questions else ""
    return Items(origin, "sentences", chosen, len(items), note)


def _questions(items: Sequence[Item], language: str) -> list[Item]:
    """Items that end in a question mark and contain an interrogative word."""
    if not has_word_list(language):
        return []
    # one character per token: positions of words do not matter here
    words = [question_words(surface(list(item.text.strip())), language) for item in items]
    return [item for item, word in zip(items, words, strict=True) if word and word.is_question]


def readings(run: TranslationRun, sentences: Sequence[str]) -> Iterator[tuple[int, Reading]]:
    """See `Task.readings`.

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
    best = [translation.hypotheses[0] for translation in translations]
    split = EncodedSplit.from_lists(source_ids, [list(hypothesis.ids) for hypothesis in best])
    # one pair per batch: no padding, and little memory for the weights
    batches = evaluation_batches(split, max_tokens=1)
    for batch, observed in observations(run.model, batches, run.device):
        (index,) = batch.rows
        source_text, target_text = sources[index], translations[index].text
        encoded = source.labels([*source_ids[index], EOS])
        _, *outputs = inputs = target.labels([BOS, *best[index].ids])
        outputs += target.labels([EOS]) if best[index].finished else [UNFINISHED]
        yield (
            index,
            Reading(
                {
                    "encoder_self": Axes(encoded, encoded, source_text),
                    "decoder_self": Axes(inputs, inputs, target_text, NOTE),
                    "cross": Axes(outputs, encoded, f"{source_text} → {target_text}", NOTE),
                },
                observed,
                {"translation": target_text},
            ),
        )

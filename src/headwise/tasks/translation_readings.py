"""Which sentences a run of translation is shown on, and what it makes of them.

The decoder reads the run's own translation (forced decoding of the ids that the search returned),
so that its rows are what the model did, not what a reference would have had it do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headwise.analysis.observe import observations
from headwise.analysis.text.questions import has_words, question_words
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
OWN = "The target is the model's own translation."
QUESTIONS = 4  # one in so many sentences at most is chosen for being a question
UNFINISHED = "…"  # the last piece of a translation that hit the length limit


def chosen_sentences(run: TranslationRun, most: int, path: Path | None) -> Items:
    """Evenly spaced lines of the run's first test set, or the first lines of a file.

    Up to a quarter of the lines of a test set are questions with an interrogative word, evenly
    spaced among those: without any, a head that tells questions has nothing to be seen at.

    Args:
        run: whose test set.
        most: how many at most.
        path: source sentences, one a line; a tab and a reference may follow.

    Raises:
        DataError: there is no text, or it cannot be read.
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
        return Items(origin, "sentences", items[:most], len(items))
    asked = spaced(_questions(items, run.config.data.source), most // QUESTIONS)
    others = [item for item in items if item not in asked]
    chosen = sorted([*asked, *spaced(others, most - len(asked))], key=lambda item: item.number)
    note = "some of them questions" if asked else ""
    return Items(origin, "sentences", chosen, len(items), note)


def _questions(items: Sequence[Item], language: str) -> list[Item]:
    """Those that end in a question mark and hold an interrogative word."""
    if not has_words(language):
        return []
    # a character a piece: where the words are does not matter here
    asks = [question_words(surface(list(item.text.strip())), language) for item in items]
    return [item for item, seen in zip(items, asks, strict=True) if seen and seen.is_question]


def readings(run: TranslationRun, sentences: Sequence[str]) -> Iterator[tuple[int, Reading]]:
    """See `Task.readings`.

    The cross-attention's rows are named by what is written at each step, the decoder's own by what
    it reads.

    Raises:
        DataError: one string instead of a list, or one of them is empty, by line number.
    """
    require_lines(sentences)
    sources = list(map(run.normaliser.source, sentences))
    translations = run.translator.translate(sources)
    source, target = run.tokenizers.source, run.tokenizers.target
    source_ids = source.encode(sources)
    for line, translation in enumerate(translations, start=1):
        if not translation.hypotheses:
            raise DataError(f"source line {line} is empty: no head looks anywhere")
    best = [translation.hypotheses[0] for translation in translations]
    split = EncodedSplit.from_lists(source_ids, [list(hypothesis.ids) for hypothesis in best])
    # one by one (a batch holds one pair at least): no padding, and little memory for the weights
    for batch, seen in observations(run.model, evaluation_batches(split, max_tokens=1), run.device):
        (place,) = batch.rows
        source_text, target_text = sources[place], translations[place].text
        encoded = source.labels([*source_ids[place], EOS])
        _, *written = read = target.labels([BOS, *best[place].ids])
        written += target.labels([EOS]) if best[place].finished else [UNFINISHED]
        yield (
            place,
            Reading(
                {
                    "encoder_self": Axes(encoded, encoded, source_text),
                    "decoder_self": Axes(read, read, target_text, OWN),
                    "cross": Axes(written, encoded, f"{source_text} → {target_text}", OWN),
                },
                seen,
                {"translation": target_text},
            ),
        )

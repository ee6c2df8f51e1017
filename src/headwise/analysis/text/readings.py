"""What a run makes of sentences: its own translations, and where its heads look meanwhile.

The decoder reads the run's own translation (forced decoding of the ids that the search found), so
that its rows are what the model did, not what a reference would have had it do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headwise.analysis.observe import Observation, observations
from headwise.data.batching import evaluation_batches
from headwise.data.cleaning import Normaliser
from headwise.data.store import EncodedSplit
from headwise.data.tokenizer import BOS, EOS, Tokenizer
from headwise.decode.translator import Translator, require_lines
from headwise.errors import DataError


@dataclass(frozen=True)
class Reading:
    """A sentence as the model went through it.

    Attributes:
        source: the sentence as the model had it.
        translation: of the run.
        source_pieces: names of the positions of the source, its end included.
        read_pieces: of what the decoder reads, from the begin-of-sentence mark on.
        written_pieces: of what it writes at the same steps, the end of the sentence at last.
        is_finished: the search ended the translation itself, not the limit of its length.
        seen: every attention, a batch of one.
    """

    source: str
    translation: str
    source_pieces: list[str]
    read_pieces: list[str]
    written_pieces: list[str]
    is_finished: bool
    seen: Sequence[Observation]


def readings(
    translator: Translator, normaliser: Normaliser, sentences: Sequence[str]
) -> Iterator[tuple[int, Reading]]:
    """Each sentence, with its place, in no certain order.

    Args:
        translator, normaliser: of a run, `run.translator` and `run.normaliser`.

    Raises:
        DataError: one string, or one of them is empty, by line number.
    """
    require_lines(sentences)
    sources = [normaliser.source(sentence) for sentence in sentences]
    translations = translator.translate(sources)
    source, target = translator.tokenizers.source, translator.tokenizers.target
    source_ids = source.encode(sources)
    for line, translation in enumerate(translations, start=1):
        if not translation.hypotheses:
            raise DataError(f"source line {line} is empty: no head looks anywhere")
    found = [translation.hypotheses[0] for translation in translations]
    split = EncodedSplit.from_lists(source_ids, [list(hypothesis.ids) for hypothesis in found])
    # one by one (a batch holds one pair at least): no padding, and little memory for the weights
    batches = evaluation_batches(split, max_tokens=1)
    for batch, seen in observations(translator.model, batches, translator.device):
        (place,) = batch.rows
        ids = found[place].ids
        yield (
            place,
            Reading(
                sources[place],
                translations[place].text,
                _names(source, [*source_ids[place], EOS]),
                _names(target, [BOS, *ids]),
                _names(target, [*ids, EOS]),
                found[place].finished,
                seen,
            ),
        )


def _names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [tokenizer.id_to_piece(piece) for piece in ids]

"""A run's reading of sentences: its own translations, and the names of what it looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from head_counting import CPU, Dense, build, with_normaliser
from headwise.analysis.text.readings import readings


@dataclass
class Numbers:
    """Every word is a number and its own id; a piece is named by its side."""

    side: str

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [[int(word) for word in sentence.split()] for sentence in sentences]

    def id_to_piece(self, piece: int) -> str:
        return f"{self.side}{piece}"


def test_the_decoder_reads_the_runs_own_translation() -> None:
    translated = {"5 6 7": ("one", (8, 9), False), "4": ("two", (10,), True)}

    def translate(sources: Sequence[str]) -> list[Any]:
        best = [translated[source] for source in sources]
        return [
            SimpleNamespace(
                text=text,
                hypotheses=[
                    SimpleNamespace(ids=ids, finished=finished),
                    SimpleNamespace(ids=(11, 11, 11), finished=True),
                ],
            )
            for text, ids, finished in best
        ]

    translator: Any = SimpleNamespace(
        model=build(with_normaliser(Dense)),
        tokenizers=SimpleNamespace(source=Numbers("s"), target=Numbers("t")),
        translate=translate,
        device=CPU,
    )
    normaliser: Any = SimpleNamespace(source=str.strip)
    found = dict(readings(translator, normaliser, [" 5 6 7", "4 "]))
    first, second = found[0], found[1]
    assert (first.source, first.translation, first.is_finished) == ("5 6 7", "one", False)
    assert (second.source, second.translation, second.is_finished) == ("4", "two", True)
    assert first.source_pieces == ["s5", "s6", "s7", "s3"]
    assert first.read_pieces == ["t2", "t8", "t9"]
    assert first.written_pieces == ["t8", "t9", "t3"]
    assert (second.source_pieces, second.read_pieces) == (["s4", "s3"], ["t2", "t10"])
    shapes = {seen.site: tuple(seen.weights_BHQK.shape[2:]) for seen in first.seen}
    assert shapes == {"encoder_self": (4, 4), "decoder_self": (3, 3), "cross": (3, 4)}

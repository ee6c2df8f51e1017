"""Readings of sentences by a run: its translations, and the labels of the axes."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from head_counting import CPU, Dense, build, with_normaliser
from headwise.tasks.inspection import readings
from headwise.tasks.reading import Axes
from headwise.tasks.translation.reading import NOTE, given_sentences


@dataclass
class Numbers:
    """Every word is a number, which is its id; labels of tokens begin with the side."""

    side: str

    def encode(self, sentences):
        return [[int(word) for word in sentence.split()] for sentence in sentences]

    def labels(self, ids):
        return [f"{self.side}{token}" for token in ids]


def test_decoder_reads_the_translation_of_the_run():
    translated = {"5 6 7": ("one", (8, 9), False), "4": ("two", (10,), True)}

    def translate(sources):
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

    run = SimpleNamespace(
        model=build(with_normaliser(Dense)),
        tokenizers=SimpleNamespace(source=Numbers("s"), target=Numbers("t")),
        translator=SimpleNamespace(translate=translate),
        normaliser=SimpleNamespace(source=str.strip),
        task=SimpleNamespace(given=given_sentences),
        device=CPU,
    )
    first, second = readings(run, [" 5 6 7", "4 "])
    source, read, written = ["s5", "s6", "s7", "s3"], ["t2", "t8", "t9"], ["t8", "t9", "…"]
    assert first.axes == {
        "encoder_self": Axes(source, source, "5 6 7"),
        "decoder_self": Axes(read, read, "one", NOTE),
        "cross": Axes(written, source, "5 6 7 → one", NOTE),
    }
    assert second.axes["cross"] == Axes(["t10", "t3"], ["s4", "s3"], "4 → two", NOTE)
    assert [first.texts, second.texts] == [{"translation": "one"}, {"translation": "two"}]
    shapes = {obs.site: tuple(obs.weights_BHQK.shape[2:]) for obs in first.observations}
    assert shapes == {"encoder_self": (4, 4), "decoder_self": (3, 3), "cross": (3, 4)}

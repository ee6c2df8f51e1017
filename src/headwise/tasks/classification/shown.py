"""What is shown of examples of a classifier: texts or images, with predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from headwise.config.data import ImageDataConfig
from headwise.data.images import grid_of
from headwise.data.lossless import ids_text
from headwise.data.tokenizer import COLUMN, EOS
from headwise.errors import DataError
from headwise.tasks.classification.inputs import TextInputs
from headwise.tasks.classification.predict import ClassifierRun
from headwise.tasks.shown import Candidates, Item, Picture, Shown, given
from headwise.tasks.task import Part, Source

BETWEEN = "\t"  # the texts of a pair


def shown_examples(run: ClassifierRun, source: Source) -> Candidates:
    """See `Task.shown`: those of a split with their labels; the texts of a pair have a tab between.

    Raises:
        DataError: a file of text for a classifier of images.
    """
    data, read = run.config.data, partial(_read, run)
    is_image = isinstance(data, ImageDataConfig)
    if isinstance(source, Path) and is_image:
        raise DataError(f"sentences= is text, but this run is on data={data.name}")
    if not isinstance(source, Part):
        return given(source, read, run.task.unit)
    prepared, split = run.data([source.split]), source.split
    examples = prepared.split(split)

    def item(number: int) -> Item:
        label = {"label": prepared.labels[examples.classes[number]]}
        if is_image:
            values = examples.inputs.images[number].tobytes()
            return Item(number + 1, values, {"image": f"image of {split}", **label})
        ids = examples.inputs.store[number]
        parts = np.split(ids, np.flatnonzero(ids == EOS)[:-1] + 1)
        text = BETWEEN.join(ids_text(part[part != EOS], prepared.tokenizer) for part in parts)
        return Item(number + 1, text, {"text": text, **label})

    return Candidates(len(examples), item, read, run.task.unit)


def _read(run: ClassifierRun, items: Iterable[Item]) -> Iterator[Shown]:
    """Texts, or the values of images, with the prediction for each."""
    data, n_cls = run.config.data, run.model.n_prefix(COLUMN)
    for number, value, _ in items:
        picture, labels = None, {}
        if isinstance(data, ImageDataConfig):
            if not isinstance(value, bytes) or len(value) != prod(data.shape):
                raise DataError(f"item {number} has no values of data={data.name} to show")
            split = run.split([[np.frombuffer(value, np.uint8).reshape(data.shape)]])
            picture = Picture(data.shape, value, (*grid_of(data.shape, data.patch), 1), n_cls)
        else:
            texts = str(value).split(BETWEEN) if data.pair else [str(value)]
            if len(texts) != (2 if data.pair else 1) or not all(map(str.strip, texts)):
                wanted = (
                    "two texts with a tab between them" if data.pair else "a text that is not empty"
                )
                raise DataError(f"item {number} must be {wanted}, got {value!r}")
            split = run.split([texts])
            assert isinstance(split.inputs, TextInputs)
            assert run.tokenizer is not None
            names = run.tokenizer.labels(split.inputs.store[0].tolist())
            labels = {COLUMN: (names, " ".join(names))}
        batch = split.batch(np.arange(1))
        ((label, probability),) = run.predicted([batch])
        outputs = {"prediction": f"{label} ({100 * probability:.1f} %)"}
        yield Shown(batch, labels, picture, outputs, n_cls=n_cls)

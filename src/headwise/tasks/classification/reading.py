"""Examples of a classifier to show, with its prediction and the attention of the model on them.

Axes: C classes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from headwise.analysis.kinds import Places
from headwise.config.data import ImageDataConfig
from headwise.data.images import grid_of
from headwise.data.lossless import ids_text
from headwise.data.tokenizer import COLUMN, EOS
from headwise.errors import DataError
from headwise.tasks.classification.inputs import ImageInputs, LabelledSplit, TextInputs
from headwise.tasks.classification.predict import ClassifierRun
from headwise.tasks.classification.prepare import PreparedClasses
from headwise.tasks.reading import MAX_WEIGHTS, Axes, Item, Reading, View, selected

SITE = "encoder_self"
BETWEEN = "\t"  # the texts of a pair


def places_of(data: Any) -> Places | None:
    """Places of the patches of an image; None: text."""
    if not isinstance(data, ImageDataConfig):
        return None
    rows, columns = grid_of(data.shape, data.patch)
    return Places(rows * columns, columns, 1, 0, rows * columns)


def patch_id(values: Any) -> int:
    """A number for the values of a patch, equal for equal patches."""
    return zlib.crc32(bytes(values))


def example(prepared: PreparedClasses, name: str, number: int) -> Item:
    """An example of a split to show, with its label."""
    split, tokenizer = prepared.split(name), prepared.tokenizer
    label = {"label": prepared.labels[split.classes[number]]}
    if tokenizer is None:
        assert isinstance(split.inputs, ImageInputs)
        values = split.inputs.images[number].tobytes()
        return Item(number + 1, {"image": f"image of {name}", **label}, values)
    assert isinstance(split.inputs, TextInputs)
    ids = split.inputs.store[number]
    parts = np.split(ids, np.flatnonzero(ids == EOS)[:-1] + 1)
    texts = [ids_text(part[part != EOS], tokenizer) for part in parts]
    return Item(number + 1, {"text": BETWEEN.join(texts), **label})


def given_examples(run: ClassifierRun, inputs: Sequence[Any]) -> Iterator[Reading]:
    """Texts, or the values of images, with the prediction for each."""
    for index, example in enumerate(inputs):
        split = _split_of(run, example, f"item {index + 1}")
        batch, (axes, queries) = split.batch(np.arange(1)), _axes(run, split, len(inputs))
        (label, probability), *_ = run.predicted([batch])
        texts = {"prediction": f"{label} ({100 * probability:.1f} %)"}
        yield Reading(batch, {SITE: axes}, texts, queries, with_cls=True)


def _split_of(run: ClassifierRun, example: Any, name: str) -> LabelledSplit:
    """One example, with any class."""
    data = run.config.data
    if isinstance(data, ImageDataConfig):
        if not isinstance(example, bytes) or len(example) != prod(data.shape):
            raise DataError(f"{name} has no values of data={data.name} to show")
        return run.split([[np.frombuffer(example, np.uint8).reshape(data.shape)]])
    texts = str(example).split(BETWEEN) if data.pair else [str(example)]
    if len(texts) != (2 if data.pair else 1) or not all(map(str.strip, texts)):
        wanted = "two texts with a tab between them" if data.pair else "a text that is not empty"
        raise DataError(f"{name} must be {wanted}, got {example!r}")
    return run.split([texts])


def _axes(run: ClassifierRun, split: LabelledSplit, n_items: int) -> tuple[Axes, list[int] | None]:
    """Names of queries and keys, or a view; and the numbers of the queries, None for all.

    CLS tokens are the first queries and keys.
    """
    n_cls = run.model.n_prefix(COLUMN)
    cls = [f"CLS token {number}" for number in range(1, n_cls + 1)]
    if isinstance(split.inputs, TextInputs):
        assert run.tokenizer is not None
        names = run.tokenizer.labels(split.inputs.store[0].tolist())
        return Axes([*cls, *names], [*cls, *names], " ".join(names)), None
    assert isinstance(split.inputs, ImageInputs)
    (image,), data = split.inputs.images, split.inputs.config
    (rows, columns), patch = grid_of(data.shape, data.patch), data.patch
    n_heads = sum(attention.place.n_heads for _, _, attention in run.model.attentions())
    n_queries = MAX_WEIGHTS // max(1, n_items * n_heads * rows * columns)
    numbers = selected((rows, columns, 1), n_queries, rows * columns)
    corners = [(number // columns * patch, number % columns * patch) for number in numbers]
    middle = patch // 2 * (data.shape[1] + 1)
    queries = [-(number + 1) * image.size for number in range(n_cls)]
    queries += [(row * data.shape[1] + column + middle) * data.shape[2] for row, column in corners]
    names = [*cls, *(f"row {row + 1}, column {column + 1}" for row, column in corners)]
    view = View(data.shape, image.tobytes(), queries, n_cls, patch)
    return Axes(names, cls, "", view=view), [*range(n_cls), *(n_cls + n for n in numbers)]

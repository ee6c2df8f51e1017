"""Examples of a classifier to show, with its prediction and the attention of the model on them.

Axes: C classes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from headwise.analysis.kinds import Places
from headwise.analysis.observe import observations
from headwise.config.density_data import ImageDataConfig
from headwise.config.instantiate import instantiate
from headwise.data.batch import Batch
from headwise.data.class_store import PreparedClasses, example_ids
from headwise.data.classes import ImageInputs, LabelledSplit, TextInputs
from headwise.data.patches import grid_of
from headwise.data.store import IdStore
from headwise.data.token_stream import COLUMN, TOKENIZER, ids_text
from headwise.data.tokenizer import EOS, Tokenizer
from headwise.errors import DataError
from headwise.losses.loss import Loss
from headwise.tasks.density_items import MAX_WEIGHTS, selected
from headwise.tasks.predictions import labels_of, predicted
from headwise.tasks.reading import Axes, Item, Items, Reading, View, spaced
from headwise.tasks.task import TrainedRun
from headwise.tasks.texts import read_lines

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


def examples_to_show(run: TrainedRun, max_items: int, path: Path | None) -> Items:
    """Examples of the first test set, evenly spaced, or the first lines of a file of text."""
    data = run.config.data
    is_image = isinstance(data, ImageDataConfig)
    if path is None:
        name = [*data.test, data.valid][0]
        prepared = run.task.prepared_split(run, name, None)
        n_all = len(prepared.split(name))
        chosen = [_item(prepared, name, number) for number in spaced(range(n_all), max_items)]
        return Items(name, "images" if is_image else "texts", chosen, n_all)
    if is_image:
        raise DataError(f"sentences={path} is text, but this run is on data={data.name}")
    lines = [(number, line) for number, line in enumerate(read_lines(path), 1) if line.strip()]
    if not lines:
        raise DataError(f"{path} has no text to show")
    chosen = [Item(number, {"text": line}) for number, line in lines[:max_items]]
    return Items(path.name, "texts", chosen, len(lines))


def _item(prepared: PreparedClasses, name: str, number: int) -> Item:
    """An example of a split with its label."""
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


def example_readings(run: TrainedRun, inputs: Sequence[Any]) -> Iterator[tuple[int, Reading]]:
    """Readings of texts, or of the values of images, with the prediction for each."""
    labels = labels_of(run)
    for index, example in enumerate(inputs):
        split = _split_of(run, example, f"item {index + 1}")
        batch, (axes, queries) = split.batch(np.arange(1)), _axes(run, split, len(inputs))
        ((batch, observed),) = observations(run.model, [batch], run.device, queries, True)
        yield index, Reading({SITE: axes}, observed, {"prediction": _predicted(run, batch, labels)})


def _predicted(run: TrainedRun, batch: Batch, labels: Sequence[str]) -> str:
    """The most probable label of a batch of one example, and its probability."""
    loss = instantiate(run.config.loss, "loss", Loss)
    (label,), (probability,) = predicted(run.model, loss, [batch], run.device)
    return f"{labels[label]} ({100 * probability:.1f} %)"


def _split_of(run: TrainedRun, example: Any, name: str) -> LabelledSplit:
    """One example, with any class."""
    data, classes = run.config.data, np.zeros(1, np.int64)
    if isinstance(data, ImageDataConfig):
        if not isinstance(example, bytes) or len(example) != prod(data.shape):
            raise DataError(f"{name} has no values of data={data.name} to show")
        image = np.frombuffer(example, np.uint8).reshape(1, *data.shape)
        return LabelledSplit(ImageInputs(image, data), classes)
    texts = str(example).split(BETWEEN) if data.pair else [str(example)]
    if len(texts) != (2 if data.pair else 1) or not all(map(str.strip, texts)):
        wanted = "two texts with a tab between them" if data.pair else "a text that is not empty"
        raise DataError(f"{name} must be {wanted}, got {example!r}")
    tokenizer = Tokenizer.load(run.folder.path / TOKENIZER)
    ids = example_ids(texts, tokenizer, data.max_length)
    return LabelledSplit(TextInputs(IdStore.from_lists([ids])), classes)


def _axes(run: TrainedRun, split: LabelledSplit, n_items: int) -> tuple[Axes, list[int] | None]:
    """Names of queries and keys, or a view; and the numbers of the queries, None for all.

    CLS tokens are the first queries and keys.
    """
    n_cls = run.model.n_prefix(COLUMN)
    cls = [f"CLS token {number}" for number in range(1, n_cls + 1)]
    if isinstance(split.inputs, TextInputs):
        tokenizer = Tokenizer.load(run.folder.path / TOKENIZER)
        names = tokenizer.labels(split.inputs.store[0].tolist())
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

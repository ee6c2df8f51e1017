"""Predictions of classifiers: of new texts and pictures, and of the splits of a run.

Axes: N examples, R rows of a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from headwise.config.instantiate import instantiate
from headwise.data.batch import Batch
from headwise.data.class_store import LABELS, PreparedClasses, example_ids
from headwise.data.classes import ImageInputs, LabelledSplit, TextInputs, evaluation_batches
from headwise.data.corpora.pictures import Image, picture
from headwise.data.labelled import text_columns
from headwise.data.store import IdStore
from headwise.data.token_stream import TOKENIZER
from headwise.data.tokenizer import Tokenizer
from headwise.errors import DataError
from headwise.files import read_json, write_text
from headwise.losses.loss import Loss
from headwise.model.family import Model, evaluating
from headwise.runs.folder import RunFolder
from headwise.tasks.task import TrainedRun

FOLDER = "predictions"  # of a run
COLUMNS = ("prediction", "probability")
PICTURE = "picture"  # column with the file of a picture
CONFUSION = ".confusion.csv"  # end of the name of a file: counts by label (row) and prediction

Example = str | Path | Image  # a text, or a picture: its file or its values
Predicted = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]  # classes, probabilities, (N,)


class Prediction(NamedTuple):
    """The most probable label of an example."""

    label: str
    probability: float


def labels_of(run: TrainedRun) -> list[str]:
    """Names of the classes of a run."""
    labels: list[str] = read_json(run.folder.path / "data.json")[LABELS]
    return labels


@torch.no_grad()
def predicted(
    model: Model, loss: Loss, batches: Sequence[Batch], device: torch.device
) -> Predicted:
    """The most probable class of each row of the batches, and its probability."""
    n_rows = sum(map(len, batches))
    classes_N, probabilities_N = np.zeros(n_rows, np.int64), np.zeros(n_rows)
    with evaluating(model):
        for batch in (batch.to(device) for batch in batches):
            states_RD = batch.scored(model.states(**model.inputs(batch)))
            best = loss.log_probs(model.output(states_RD)).max(1)
            rows = np.asarray(batch.rows)
            classes_N[rows] = best.indices.cpu().numpy()
            probabilities_N[rows] = best.values.double().exp().cpu().numpy()
    return classes_N, probabilities_N


@dataclass(frozen=True)
class ClassifierRun(TrainedRun):
    """A finished classifier.

    Attributes:
        tokenizer: of its texts; None for a classifier of pictures.
        labels: names of its classes.
    """

    tokenizer: Tokenizer | None
    labels: Sequence[str]

    @classmethod
    def from_run(cls, run: TrainedRun) -> ClassifierRun:
        """The run with its tokenizer and labels."""
        path = run.folder.path / TOKENIZER
        tokenizer = Tokenizer.load(path) if path.is_file() else None
        attributes = {field.name: getattr(run, field.name) for field in fields(TrainedRun)}
        return cls(**attributes, tokenizer=tokenizer, labels=labels_of(run))

    @property
    def columns(self) -> list[str]:
        """Names of the parts of an example: a text, two for pairs, or a picture."""
        return [PICTURE] if self.tokenizer is None else text_columns(self.config.data)

    def predict(self, examples: Sequence[Example | Sequence[Example]]) -> list[Prediction]:
        """The label of each text, pair of texts or picture.

        Args:
            examples: texts or pairs of texts; or pictures, each a file or an array (H, W, C) of
                uint8.

        Raises:
            DataError: one text where pairs are classified, or the reverse; a picture that cannot
                be read or has another shape than those of the training.
        """
        columns = self.columns
        parts = [[e] if isinstance(e, (str, Path, np.ndarray)) else list(e) for e in examples]
        for number, example in enumerate(parts, 1):
            if len(example) != len(columns):
                raise DataError(
                    f"example {number} has {len(example)} parts; {self.folder.path} classifies "
                    f"{len(columns)}: {', '.join(columns)}"
                )
        inputs = self._pictures(parts) if self.tokenizer is None else self._texts(parts)
        split = LabelledSplit(inputs, np.zeros(len(parts), np.int64))
        batches = evaluation_batches(split, self.config.trainer.max_tokens)
        loss = instantiate(self.config.loss, "loss", Loss)
        classes_N, probabilities_N = predicted(self.model, loss, batches, self.device)
        pairs = zip(classes_N.tolist(), probabilities_N.tolist(), strict=True)
        return [Prediction(self.labels[label], probability) for label, probability in pairs]

    def _texts(self, examples: Sequence[Sequence[Any]]) -> TextInputs:
        assert self.tokenizer is not None
        longest = self.config.data.max_length
        ids = [example_ids(texts, self.tokenizer, longest) for texts in examples]
        return TextInputs(IdStore.from_lists(ids))

    def _pictures(self, examples: Sequence[Sequence[Any]]) -> ImageInputs:
        shape = tuple(self.config.data.shape)
        images_NHWC = np.empty((len(examples), *shape), np.uint8)
        for number, (example,) in enumerate(examples):
            is_array = isinstance(example, np.ndarray)
            image_HWC = example if is_array else picture(Path(example))
            if (image_HWC.shape, image_HWC.dtype) != (shape, images_NHWC.dtype):
                raise DataError(
                    f"{f'picture {number + 1}' if is_array else example} has the shape "
                    f"{list(image_HWC.shape)} of {image_HWC.dtype}; {self.folder.path} classifies "
                    f"{list(shape)} of uint8"
                )
            images_NHWC[number] = image_HWC
        return ImageInputs(images_NHWC, self.config.data)


def tsv_line(prediction: Prediction, *others: str) -> str:
    """One line of a table of predictions; white space in cells is spaces."""
    cells = (prediction.label, f"{prediction.probability:.4f}", *others)
    return "\t".join(" ".join(cell.split()) for cell in cells)


def write_predictions(
    folder: RunFolder,
    split: str,
    data: PreparedClasses,
    predicted_N: npt.NDArray[np.int64],
    probabilities_N: npt.NDArray[np.float64],
) -> None:
    """Write `predictions/<split>.tsv` (with labels and texts) and `<split>.confusion.csv`."""
    labels, true_N = data.labels, data.split(split).classes
    is_text = data.tokenizer is not None
    columns = text_columns(data.corpus.config) if is_text else ["number"]
    lines = ["\t".join((*COLUMNS, "label", *columns))]
    for number, (example, label) in enumerate(data.corpus.rows(split)):
        prediction = Prediction(labels[predicted_N[number]], probabilities_N[number])
        lines.append(tsv_line(prediction, label, *(example if is_text else [str(number + 1)])))
    (folder.path / FOLDER).mkdir(exist_ok=True)
    write_text(folder.path / FOLDER / f"{split}.tsv", "\n".join(lines) + "\n")
    counts_CC = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts_CC, (true_N, predicted_N), 1)
    counts = pd.DataFrame(counts_CC, labels, labels).to_csv(index_label="label")
    write_text(folder.path / FOLDER / f"{split}{CONFUSION}", counts)

"""Predictions of classifiers: of new texts and pictures, and of the splits of a run.

Axes: N examples, R rows of a batch, D width, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from headwise.data.batch import Batch
from headwise.data.sources.pictures import Image, picture
from headwise.data.store import IdStore
from headwise.data.tokenizer import TOKENIZER, Tokenizer
from headwise.errors import DataError
from headwise.files import read_json, write_text
from headwise.model.family import evaluating
from headwise.runs.folder import RunFolder
from headwise.tasks.classification.inputs import (
    ImageInputs,
    LabelledSplit,
    TextInputs,
    evaluation_batches,
)
from headwise.tasks.classification.prepare import LABELS, PreparedClasses, example_ids
from headwise.tasks.classification.text import text_columns
from headwise.tasks.task import Outputs, TrainedRun
from headwise.track.base import Tracker

FOLDER = "predictions"  # of a run
COLUMNS = ("prediction", "probability")
PICTURE = "picture"  # column with the file of a picture
CONFUSION = ".confusion.csv"  # end of the name of a file: counts by label (row) and prediction

Example = str | Path | Image  # a text, or a picture: its file or its values


class Prediction(NamedTuple):
    """The most probable label of an example."""

    label: str
    probability: float


def labels_of(saved: Path) -> list[str]:
    """Names of the classes of a run."""
    labels: list[str] = read_json(saved / "data.json")[LABELS]
    return labels


@dataclass(frozen=True)
class ClassifierRun(TrainedRun):
    """A finished classifier."""

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer of its texts; None for a classifier of pictures."""
        path = self.folder.path / TOKENIZER
        return Tokenizer.load(path) if path.is_file() else None

    @cached_property
    def labels(self) -> list[str]:
        """Names of its classes."""
        return labels_of(self.folder.path)

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
        return self.predicted(evaluation_batches(self.split(parts), self.config.trainer.max_tokens))

    @torch.no_grad()
    def predicted(self, batches: Sequence[Batch]) -> list[Prediction]:
        """The label of each row of the batches."""
        predictions: dict[int, Prediction] = {}
        with evaluating(self.model):
            for batch in (batch.to(self.device) for batch in batches):
                states_RD = batch.scored(self.model.states(**self.model.inputs(batch)))
                log_probs, classes = self.task.loss.log_probs(self.model.output(states_RD)).max(1)
                best = zip(classes.tolist(), log_probs.double().exp().tolist(), strict=True)
                of_batch = [Prediction(self.labels[label], share) for label, share in best]
                predictions |= zip(batch.rows, of_batch, strict=True)
        return [predictions[row] for row in sorted(predictions)]

    def split(self, examples: Sequence[Sequence[Any]]) -> LabelledSplit:
        """Examples of a user, each a list of its parts, with any class."""
        classes_N = np.zeros(len(examples), np.int64)
        if self.tokenizer is None:
            return LabelledSplit(self._pictures(examples), classes_N)
        longest = self.config.data.max_length
        ids = [example_ids(texts, self.tokenizer, longest) for texts in examples]
        return LabelledSplit(TextInputs(IdStore.from_lists(ids)), classes_N)

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
    """One line of a table of predictions; tabs and line ends in cells become spaces."""
    cells = (prediction.label, f"{prediction.probability:.4f}", *others)
    return "\t".join(re.sub(r"[\t\r\n]+", " ", cell) for cell in cells)


@dataclass
class Predictions(Outputs):
    """Predictions of a split: class and probability of each example, (N,)."""

    data: PreparedClasses
    classes_N: npt.NDArray[np.int64]
    probabilities_N: npt.NDArray[np.float64]

    def write(self, folder: RunFolder, name: Path, tracker: Tracker) -> Mapping[str, Any]:
        """Write `predictions/<name>.tsv` (with labels and texts) and `<name>.confusion.csv`."""
        data, split = self.data, name.name
        labels, true_N = data.labels, data.split(split).classes
        is_text = data.tokenizer is not None
        columns = text_columns(data.corpus.config) if is_text else ["number"]
        lines = ["\t".join((*COLUMNS, "label", *columns))]
        for number, (example, label) in enumerate(data.corpus.rows(split)):
            shown = Prediction(labels[self.classes_N[number]], self.probabilities_N[number])
            lines.append(tsv_line(shown, label, *(example if is_text else [str(number + 1)])))
        path = folder.path / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(Path(f"{path}.tsv"), "\n".join(lines) + "\n")
        counts_CC = np.zeros((len(labels), len(labels)), np.int64)
        np.add.at(counts_CC, (true_N, self.classes_N), 1)
        counts = pd.DataFrame(counts_CC, labels, labels).to_csv(index_label="label")
        write_text(Path(f"{path}{CONFUSION}"), counts)
        return {}

"""Samples of a trained model: their prompts and files, and those of validations."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, cast

import numpy as np

from headwise.config.schema import Config
from headwise.data.token_stream import ids_text, text_ids
from headwise.data.tokenizer import Tokenizer
from headwise.decode.sampling import Sampling, draw_samples
from headwise.errors import RunError
from headwise.files import write_text
from headwise.losses.loss import Loss
from headwise.model.family import Model
from headwise.model.single import SingleStack
from headwise.runs.folder import RunFolder
from headwise.track.base import Tracker

SAMPLES = "samples"  # folder of a run
TABLE = ("update", "sample", "text")
VALIDATION_TOKENS = 256  # most tokens of a sample at validations

log = logging.getLogger(__name__)


class Samples:
    """What samples are, for a kind of data: their first ids and their files.

    Args:
        window: most tokens that the model reads at once.
        barred: ids that are never drawn.

    Attributes:
        suffix: of the file.
    """

    suffix: ClassVar[str]

    def __init__(self, window: int, barred: Sequence[int]) -> None:
        self.window, self.barred = window, barred

    def prompt(self, text: str) -> list[int]:
        """Return the ids of the prompt that a user gives, which is not empty."""
        raise NotImplementedError

    def shown(self, rows: Sequence[Sequence[int]], first: int = 1) -> str:
        """Return samples, numbered from `first`, as they are printed."""
        raise NotImplementedError

    def write(self, rows: Sequence[Sequence[int]], path: Path) -> None:
        """Write all samples to a file, or to several whose names begin with its stem."""
        raise NotImplementedError

    def log(self, rows: Sequence[Sequence[int]], tracker: Tracker, update: int) -> None:
        """Send samples of a validation to a tracker."""
        raise NotImplementedError


class TextSamples(Samples):
    """Samples of a text, in one file of UTF-8 with a line before each.

    Bytes that are no character become U+FFFD, except incomplete characters at the end, which are
    left out.
    """

    suffix = ".txt"

    def __init__(self, window: int, tokenizer: Tokenizer) -> None:
        super().__init__(window, tokenizer.barred_ids)
        self.tokenizer = tokenizer

    def prompt(self, text: str) -> list[int]:
        """See `Samples.prompt`."""
        return cast("list[int]", text_ids(text, self.tokenizer).tolist())

    def text(self, row: Sequence[int]) -> str:
        """Return the text of one sample."""
        return ids_text(np.array(row), self.tokenizer)

    def shown(self, rows: Sequence[Sequence[int]], first: int = 1) -> str:
        """See `Samples.shown`."""
        numbered = enumerate(map(self.text, rows), start=first)
        return "".join(f"==== sample {number} ====\n{text}\n" for number, text in numbered)

    def write(self, rows: Sequence[Sequence[int]], path: Path) -> None:
        """See `Samples.write`."""
        write_text(path, self.shown(rows))

    def log(self, rows: Sequence[Sequence[int]], tracker: Tracker, update: int) -> None:
        """See `Samples.log`: a table of texts."""
        texts = enumerate(map(self.text, rows), start=1)
        tracker.log_table(SAMPLES, TABLE, [(update, *row) for row in texts])


def samples_path(folder: RunFolder, stem: str, samples: Samples) -> Path:
    """Return the path of a file of samples of a run, and make its folder."""
    path = folder.path / SAMPLES / f"{stem}{samples.suffix}"
    path.parent.mkdir(exist_ok=True)
    return path


def write_validation_samples(
    model: Model,
    loss: Loss,
    samples: Samples,
    config: Config,
    folder: RunFolder,
    tracker: Tracker,
    update: int,
) -> None:
    """Draw `trainer.valid_samples` samples, the same random numbers at each validation.

    Torch's generators are not used, so the training does not depend on it.
    """
    numbers = range(1, config.trainer.valid_samples + 1)
    assert isinstance(model, SingleStack)
    n_tokens, sampling = min(samples.window, VALIDATION_TOKENS), Sampling(seed=config.seed)
    settings = n_tokens, sampling, samples.window, samples.barred
    try:
        rows = draw_samples(model, loss.output_map, [[] for _ in numbers], numbers, *settings)
    except RunError as error:  # a sparse output early in training
        log.warning("no samples at update %d: %s", update, error)
        return
    samples.write(rows, samples_path(folder, f"update_{update:08d}", samples))
    samples.log(rows, tracker, update)

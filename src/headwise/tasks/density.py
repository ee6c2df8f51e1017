"""Density modelling: a decoder alone predicts the next token; judged by bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headwise.attention.place import Site
from headwise.config.instantiate import instantiate
from headwise.config.schema import Config
from headwise.data.loader import Examples
from headwise.data.plain_text import PreparedText, TextCorpus, prepare_text
from headwise.data.tokenizer import BOS
from headwise.data.windows import COLUMN, TrainingWindows, evaluation_windows
from headwise.errors import require
from headwise.losses.loss import Loss
from headwise.metrics.metric import Floats, Measured, Metric
from headwise.model.build import build_single, check_model, parts_of
from headwise.model.family import Model
from headwise.model.places import site_alone
from headwise.runs.folder import RunFolder
from headwise.tasks.evaluation import head_values, measure_losses
from headwise.tasks.task import Sizes, Task
from headwise.track.base import HeadValues, Tracker
from headwise.train.distributed import Ranks
from headwise.train.trainer import Validation

SITE = "decoder_self"
N_STATISTICS = 4  # loss, measure, tokens, bytes


def bits_per_byte(sums: Floats) -> float:
    """Of nats and bytes."""
    return float(sums[0] / math.log(2) / sums[1])


def density_metrics(loss: Loss) -> list[Metric]:
    """Those of the loss, and bits per byte where its measure is the likelihood."""
    (unit,) = {metric.unit for metric in loss.metrics}
    bits = Metric("bits_per_byte", "lower", bits_per_byte, (1, 3), "", unit)
    return [*([bits] if loss.measure == "nll" else []), *loss.metrics]


class Density(Task[TextCorpus, PreparedText]):
    """See the head of this file."""

    monitor = "bits_per_byte"

    def sites(self, config: Config) -> tuple[Site, ...]:
        """See `Task.sites`."""
        return (site_alone(config.model, SITE, COLUMN),)

    def metrics(self, config: Config) -> Sequence[Metric]:
        """See `Task.metrics`."""
        return density_metrics(instantiate(config.loss, "loss"))

    def check(self, config: Config) -> None:
        """See `Task.check`."""
        window, longest = config.data.window, parts_of(config).positions.max_positions
        require(window >= 1, "data.window", "at least 1", window)
        allowed = f"at least data.window={window}"
        require(longest is None or longest >= window, "positions.max_positions", allowed, longest)
        check_model(config, self.sites(config), {COLUMN: window})

    def open(self, config: Config, cache: Path) -> TextCorpus:
        """See `Task.open`."""
        return TextCorpus(config.data, cache)

    def prepare(self, corpus: TextCorpus, config: Config, progress: bool) -> PreparedText:
        """See `Task.prepare`."""
        return prepare_text(corpus, config.tokenizer)

    def model(self, config: Config, sizes: Sizes) -> Model:
        """See `Task.model`."""
        (site,) = self.sites(config)
        return build_single(config, sizes[0], site)

    def examples(self, config: Config, data: PreparedText, ranks: Ranks, scratch: Path) -> Examples:
        """See `Task.examples`."""
        ids, trainer = data.stream(config.data.train).ids, config.trainer
        sizes = config.data.window, trainer.max_tokens, config.seed, ranks.world_size
        return TrainingWindows(ids, BOS, *sizes)

    def validator(
        self, model: Model, loss: Loss, data: PreparedText, config: Config, ranks: Ranks
    ) -> DensityValidator:
        """See `Task.validator`."""
        return DensityValidator(model, loss, data, config, ranks)

    def scorer(
        self, model: Model, loss: Loss, data: PreparedText, config: Config, ranks: Ranks
    ) -> Callable[[str, RunFolder, Tracker], dict[str, Any]]:
        """See `Task.scorer`."""

        def score(split: str, folder: RunFolder, tracker: Tracker) -> dict[str, Any]:
            measured = measure(split, model, loss, data, config, ranks)
            if ranks.is_main:
                unit = measured.metrics[0].unit
                folder.write_sums(Path(f"{split}.{unit}.npy"), measured.items)
            return {**measured.scores()}

        return score


def measure(
    split: str, model: Model, loss: Loss, data: PreparedText, config: Config, ranks: Ranks
) -> Measured:
    """A whole split, window by window."""
    stream, window = data.stream(split), config.data.window
    batches = list(evaluation_windows(stream.ids, BOS, window, config.trainer.max_tokens))
    measured = measure_losses(model, loss, batches, ranks)
    starts = range(0, len(stream.ids), window)
    n_bytes = [stream.bytes_of(start, start + window) for start in starts]
    n_bytes[-1] = stream.bytes_of(starts[-1], len(stream.ids))
    items = np.column_stack((measured.items, n_bytes))
    return Measured(items, density_metrics(loss))


@dataclass
class DensityValidator:
    """Measures the whole validation split, and heads on its first windows."""

    model: Model
    loss: Loss
    data: PreparedText
    config: Config
    ranks: Ranks

    def __call__(self) -> Validation:
        """Measure the model as it is."""
        settings = self.model, self.loss, self.data, self.config, self.ranks
        return Validation([measure(self.config.data.valid, *settings)], self.heads())

    def heads(self) -> dict[str, HeadValues]:
        """Statistics of the heads as they are, on the first rank; nothing on the others."""
        window, trainer = self.config.data.window, self.config.trainer
        ids = self.data.stream(self.config.data.valid).ids[: window * trainer.head_sentences]
        batches = list(evaluation_windows(ids, BOS, window, trainer.max_tokens))
        return head_values(self.model, batches, self.ranks)

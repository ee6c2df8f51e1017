"""Density modelling: a decoder predicts the next token; evaluated by bits per byte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headwise.config.density_data import (
    BuiltinTextConfig,
    DensityDataConfig,
    ImageDataConfig,
    MusicDataConfig,
    TextDataConfig,
    WindowsConfig,
)
from headwise.config.instantiate import instantiate
from headwise.config.schema import Config, PruneDataConfig
from headwise.data.loader import Examples
from headwise.data.lossless import lossless
from headwise.data.token_stream import (
    COLUMN,
    TOKENIZER,
    PreparedTokens,
)
from headwise.data.tokenizer import BOS, Tokenizer
from headwise.data.windows import EvaluationWindows, TrainingWindows
from headwise.files import machine_cache_dir
from headwise.losses.loss import Loss
from headwise.metrics.metric import Floats, Measured, Metric
from headwise.model.family import Model
from headwise.precision import autocast
from headwise.runs.folder import RunFolder
from headwise.tasks.density_items import (
    SITE,
    places_of,
    text_items,
    text_readings,
    value_items,
    value_readings,
)
from headwise.tasks.evaluation import measure_losses
from headwise.tasks.reading import Inspected, Items, Reading
from headwise.tasks.samples import (
    ImageSamples,
    MusicSamples,
    Samples,
    TextSamples,
    write_validation_samples,
)
from headwise.tasks.stream_task import StreamTask, is_text, open_corpus, scope_of
from headwise.tasks.task import TrainedRun
from headwise.track.base import Tracker
from headwise.train.distributed import Ranks
from headwise.train.trainer import WriteOutputs, write_nothing

SAMPLES: dict[type[DensityDataConfig], type[Samples[Any]]] = {
    TextDataConfig: TextSamples,
    BuiltinTextConfig: TextSamples,
    ImageDataConfig: ImageSamples,
    MusicDataConfig: MusicSamples,
}


def bits_per_value(sums: Floats) -> float:
    """Bits per byte or dimension, from the sums (nats, bytes)."""
    return float(sums[0] / math.log(2) / sums[1])


class Density(StreamTask):
    """Next-token prediction on text, or on other data as a sequence of bytes."""

    site = SITE
    command = "sample"

    def metrics(self, config: Config) -> Sequence[Metric]:
        """See `Task.metrics`; bits per byte (or dimension) first if the loss has a nll."""
        loss: Loss = instantiate(config.loss, "loss")
        (unit,) = {metric.unit for metric in loss.metrics}
        value = config.data.unit
        names = f"bits_per_{value}", f"bits per {value}"
        counts = {"n_scored": 2, "n_bytes": 3}
        windows: WindowsConfig = config.decode
        part = f"|max_windows:{windows.max_windows}" if windows.max_windows else ""
        signature = f"min_context:{windows.min_context}{part}"
        bits = Metric(names[0], "lower", bits_per_value, (1, 3), signature, unit, names[1], counts)
        metrics = [*([bits] if loss.measure == "nll" else []), *loss.metrics]
        return [replace(metric, scope=scope_of(windows)) for metric in metrics]

    def examples(
        self, config: Config, data: PreparedTokens, ranks: Ranks, scratch: Path
    ) -> Examples:
        """See `Task.examples`."""
        stream, trainer = data.stream(config.data.train), config.trainer
        sizes = config.data.window, trainer.max_tokens, config.seed, ranks.n_shares
        return TrainingWindows(stream, BOS, *sizes, aligned=config.data.aligned)

    def batches(
        self, data: PreparedTokens, config: Config, split: str, n_items: int | None = None
    ) -> EvaluationWindows:
        """See `Task.batches`: windows of `decode.min_context`."""
        window, context = config.data.window, config.decode.min_context
        n_tokens = n_items and window + (n_items - 1) * (window - context)
        stream, most = data.stream(split).first(n_tokens), config.decode.max_windows
        return EvaluationWindows(stream, BOS, window, config.trainer.max_tokens, context, most)

    def measured(
        self, model: Model, loss: Loss, data: PreparedTokens, config: Config, ranks: Ranks,
        split: str, n_items: int | None = None, progress: bool = False,
    ) -> Measured:  # fmt: skip
        """See `Task.measured`; adds the number of bytes of each window."""
        windows = self.batches(data, config, split, n_items)
        with autocast(ranks.device, config.decode.precision):
            items = measure_losses(model, loss, windows, ranks, progress=progress).items
        n_bytes = [windows.stream.bytes_of(first, end) for first, end in windows.scored]
        return Measured(np.column_stack((items, n_bytes)), self.metrics(config))

    def written(self, model: Model, loss: Loss, config: Config) -> WriteOutputs:
        """See `Task.written`: samples."""
        if not config.trainer.valid_samples:
            return write_nothing

        def write(folder: RunFolder, tracker: Tracker, update: int) -> None:
            samples = self.samples(config, folder)
            write_validation_samples(model, loss, samples, config, folder, tracker, update)

        return write

    def samples(self, config: Config, folder: RunFolder) -> Samples[Any]:
        """See `Task.samples`."""
        corpus = open_corpus(config.data, machine_cache_dir())
        tokenizer, options = Tokenizer.load(folder.path / TOKENIZER), config.tokenizer
        samples = SAMPLES[type(config.data)](corpus, tokenizer)
        # every character of the training text has a token: single bytes are not drawn
        if options.kind not in ("byte", "given") and options.character_coverage == 1:
            samples.barred += tuple(lossless(tokenizer).byte_ids.values())
        return samples

    def inspected(
        self, run: TrainedRun, data: PruneDataConfig, max_tokens: int, longest: float
    ) -> Inspected:
        """See `StreamTask.inspected`; with the places of the values."""
        items = super().inspected(run, data, max_tokens, longest)
        return replace(items, places={COLUMN: places_of(run)})

    def items(self, run: TrainedRun, max_items: int, path: Path | None) -> Items:
        """See `Task.items`: windows of text, images, or windows of other values."""
        return (text_items if is_text(run.config) else value_items)(run, max_items, path)

    def readings(self, run: TrainedRun, texts: Sequence[Any]) -> Iterator[tuple[int, Reading]]:
        """See `Task.readings`."""
        return (text_readings if is_text(run.config) else value_readings)(run, texts)

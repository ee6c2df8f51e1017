"""Density modelling: a decoder predicts the next token; evaluated by bits per byte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headwise.analysis.kinds import Places
from headwise.config.density_data import (
    BuiltinTextConfig,
    DensityDataConfig,
    ImageDataConfig,
    MusicDataConfig,
    TextDataConfig,
    WindowsConfig,
)
from headwise.data.loader import Examples
from headwise.data.lossless import lossless
from headwise.data.token_stream import TOKENIZER, PreparedTokens
from headwise.data.tokenizer import BOS, Tokenizer
from headwise.data.windows import EvaluationWindows, TrainingWindows
from headwise.errors import DataError
from headwise.files import machine_cache_dir
from headwise.metrics.metric import Floats, Measured, Metric
from headwise.model.family import Model
from headwise.runs.folder import RunFolder
from headwise.tasks.density_items import (
    SITE,
    given_texts,
    given_values,
    lines_as_windows,
    places_of,
    text_windows,
    value_candidates,
)
from headwise.tasks.reading import Candidates, Given
from headwise.tasks.samples import (
    ImageSamples,
    MusicSamples,
    Samples,
    TextSamples,
    ValidationSamples,
)
from headwise.tasks.stream_task import StreamTask, is_text, scope_of
from headwise.tasks.task import Evaluation, Part
from headwise.train.distributed import Ranks

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

    @property
    def n_outputs(self) -> int:
        """See `Task.n_outputs`: samples."""
        return int(self.config.trainer.valid_samples)

    def metrics(self, data: PreparedTokens | None = None) -> Sequence[Metric]:
        """See `Task.metrics`; bits per byte (or dimension) first if the loss has a nll."""
        (unit,) = {metric.unit for metric in self.loss.metrics}
        value = self.config.data.unit
        names = f"bits_per_{value}", f"bits per {value}"
        counts = {"n_scored": 2, "n_bytes": 3}
        windows: WindowsConfig = self.config.decode
        part = f"|max_windows:{windows.max_windows}" if windows.max_windows else ""
        signature = f"min_context:{windows.min_context}{part}"
        bits = Metric(names[0], "lower", bits_per_value, (1, 3), signature, unit, names[1], counts)
        metrics = [*([bits] if self.loss.measure == "nll" else []), *self.loss.metrics]
        return [replace(metric, scope=scope_of(windows)) for metric in metrics]

    def examples(self, data: PreparedTokens, ranks: Ranks, scratch: Path) -> Examples:
        """See `Task.examples`."""
        stream, trainer = data.stream(self.config.data.train), self.config.trainer
        sizes = self.config.data.window, trainer.max_tokens, self.config.seed, ranks.n_shares
        return TrainingWindows(stream, BOS, *sizes, aligned=self.config.data.aligned)

    def batches(self, data: PreparedTokens, part: Part) -> EvaluationWindows:
        """See `Task.batches`: windows of `decode.min_context`."""
        window, context = self.config.data.window, self.config.decode.min_context
        n_tokens = part.n and window + (part.n - 1) * (window - context)
        sizes = window, self.config.trainer.max_tokens, context, self.config.decode.max_windows
        return EvaluationWindows(data.stream(part.split).first(n_tokens), BOS, *sizes)

    def evaluate(
        self, model: Model, data: PreparedTokens, part: Part, ranks: Ranks, progress: bool = False
    ) -> Evaluation:
        """See `Task.evaluate`; with the number of bytes of each window, and samples."""
        (losses,) = super().evaluate(model, data, part, ranks, progress).measured
        windows = self.batches(data, part)
        n_bytes = [windows.stream.bytes_of(first, end) for first, end in windows.scored]
        measured = Measured(np.column_stack((losses.items, n_bytes)), losses.metrics)
        if not part.n_outputs:
            return Evaluation([measured])
        drawn = model, self.loss, self.samples, part.n_outputs, self.config.seed
        return Evaluation([measured], ValidationSamples(*drawn))

    def samples(self, folder: RunFolder) -> Samples[Any]:
        """Prompts and files of samples of a run."""
        corpus = self.open(machine_cache_dir())
        tokenizer, options = Tokenizer.load(folder.path / TOKENIZER), self.config.tokenizer
        samples = SAMPLES[type(self.config.data)](corpus, tokenizer)
        # every character of the training text has a token: single bytes are not drawn
        if options.kind not in ("byte", "given") and options.character_coverage == 1:
            samples.barred += tuple(lossless(tokenizer).byte_ids.values())
        return samples

    def places(self, model: Model) -> Places | None:
        """See `StreamTask.places`."""
        return places_of(self.config, model)

    def items(self, data: PreparedTokens, split: str) -> Candidates:
        """See `Task.items`: windows of text, images, or windows of other values."""
        ids = data.stream(split).ids
        if is_text(self.config):
            return text_windows(ids, self.config.data.window, data.tokenizer)
        return value_candidates(ids, self.config.data, data.tokenizer, split)

    def items_of_lines(self, saved: Path, lines: Sequence[str]) -> Candidates:
        """See `Task.items_of_lines`: windows of one text."""
        if not is_text(self.config):
            raise DataError(f"sentences= is text, but this run is on data={self.config.data.name}")
        return lines_as_windows(saved, lines, self.config.data.window)

    def given(self, run: Any, inputs: Sequence[Any]) -> Iterator[Given]:
        """See `Task.given`."""
        return (given_texts if is_text(self.config) else given_values)(run, inputs)

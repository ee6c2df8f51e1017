"""Density modelling: a decoder predicts the next token; evaluated by bits per byte."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from headwise.analysis.kinds import NEAR, Places
from headwise.config.data import ImageDataConfig
from headwise.config.instantiate import target_class
from headwise.data.lossless import ids_text, lossless
from headwise.data.tokenizer import BOS, COLUMN, TOKENIZER, Tokenizer
from headwise.metrics.metric import Measured, Metric
from headwise.model.build import parts_of
from headwise.model.family import Model
from headwise.runs.folder import RunFolder
from headwise.tasks.shown import Item, Shown
from headwise.tasks.stream.samples import Samples, ValidationSamples
from headwise.tasks.stream.shown import first_window
from headwise.tasks.stream.stream import PreparedTokens, TokenStream, starts_document
from headwise.tasks.stream.task import StreamTask, Windows, bits_per
from headwise.tasks.stream.windows import EvaluationWindows, TrainingWindows
from headwise.tasks.task import Evaluation, Part, TrainedRun
from headwise.train.distributed import Ranks


class Density(StreamTask):
    """Next-token prediction on text, or on other data as a sequence of bytes."""

    site = "decoder_self"
    command = "sample"

    @property
    def n_outputs(self) -> int:
        """See `Task.n_outputs`: samples."""
        return int(self.config.trainer.valid_samples)

    def own_metrics(self, unit: str, part: str) -> Sequence[Metric]:
        """See `StreamTask.own_metrics`: bits per byte or dimension."""
        value, counts = self.config.data.unit, {"n_scored": 2, "n_bytes": 3}
        signature = f"min_context:{self.config.decode.min_context}{part}"
        name, label = f"bits_per_{value}", f"bits per {value}"
        return [Metric(name, "lower", bits_per, (1, 3), signature, unit, label, counts)]

    def windows(self, data: PreparedTokens) -> tuple[Windows, Windows]:
        return partial(TrainingWindows, aligned=self.config.data.aligned), EvaluationWindows

    def evaluate(
        self, model: Model, data: PreparedTokens, part: Part, ranks: Ranks, progress: bool = False
    ) -> Evaluation:
        """See `Task.evaluate`; with the number of bytes of each window, and samples."""
        (losses,) = super().evaluate(model, data, part, ranks, progress).measured
        windows: EvaluationWindows = self.batches(data, part)
        n_bytes = [windows.stream.bytes_of(first, end) for first, end in windows.scored]
        measured = Measured(np.column_stack((losses.items, n_bytes)), losses.metrics)
        if not part.n_outputs:
            return Evaluation([measured])
        drawn = model, self.loss, self.samples, part.n_outputs, self.config.seed
        return Evaluation([measured], ValidationSamples(*drawn))

    def samples(self, folder: RunFolder) -> Samples[Any]:
        """Prompts and files of samples of a run."""
        corpus = self.open(self.cache)
        tokenizer, options = Tokenizer.load(folder.path / TOKENIZER), self.config.tokenizer
        kind = target_class({"_target_": corpus.samples}, "data.samples")
        samples: Samples[Any] = kind(corpus, tokenizer)
        # every character of the training text has a token: single bytes are not drawn
        if options.kind not in ("byte", "given") and options.character_coverage == 1:
            samples.barred += tuple(lossless(tokenizer).byte_ids.values())
        return samples

    def places(self, model: Model) -> Places | None:
        """See `StreamTask.places`; None if windows do not start at rows of images.

        Rows of a sequence are strides of its pattern.
        """
        data, n_start = self.config.data, 1
        if isinstance(data, ImageDataConfig):
            row, channels, size = math.prod(data.shape[1:]), data.shape[2], math.prod(data.shape)
            is_whole = data.window % row == 0
            return Places(data.window, row, channels, n_start, size) if is_whole else None
        patterns = [getattr(attention, "pattern", None) for _, _, attention in model.attentions()]
        strides = [getattr(pattern, "stride", 0) for pattern in patterns]
        row = max([*strides, getattr(parts_of(self.config).positions, "width", 0)])
        return Places(data.window, row if row > 2 * NEAR else None, 0, n_start)

    def shown_texts(self, run: TrainedRun, items: Iterable[Item]) -> Iterator[Shown]:
        corpus, tokenizer = self.open(self.cache), Tokenizer.load(run.folder.path / TOKENIZER)
        for item in items:
            ids = first_window(run, item, tokenizer)
            starts = (starts_document(ids.tolist(), n, corpus, tokenizer) for n in range(len(ids)))
            places, has_mask = np.flatnonzero(list(starts)), self.config.data.document_mask
            stream = TokenStream(ids, None, places, has_mask)
            (batch,) = EvaluationWindows(stream, BOS, len(ids), len(ids))
            names = tokenizer.labels(batch.columns[COLUMN].ids_BN[0].tolist())
            yield Shown(batch, {COLUMN: (names, ids_text(ids, tokenizer))})

"""Masked language models: an encoder predicts masked tokens of a text (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headwise.config.schema import Config
from headwise.data.batch import Batch
from headwise.data.lossless import ids_text
from headwise.data.sources.digest import values_digest
from headwise.data.tokenizer import COLUMN, TOKENIZER, Tokenizer
from headwise.errors import require
from headwise.metrics.metric import Metric, percent
from headwise.model.family import Model
from headwise.tasks.shown import Item, Shown
from headwise.tasks.stream.masking import (
    MaskedEvaluationWindows,
    MaskedTrainingWindows,
    Masking,
    MaskSettings,
)
from headwise.tasks.stream.shown import first_window
from headwise.tasks.stream.stream import PreparedTokens, TokenStream
from headwise.tasks.stream.task import StreamTask, Windows, bits_per
from headwise.tasks.stream.windows import Ints
from headwise.tasks.task import Extra, TrainedRun

NOTE = "The model reads <mask> for a token named <mask:…>."


def is_correct(logits_RV: Tensor, targets_R: Tensor) -> Tensor:
    """Return 1 where the class with the largest logit is the target, else 0."""
    return (logits_RV.argmax(1) == targets_R).float()


class MaskedLM(StreamTask):
    """Prediction of masked tokens of text, from the tokens on both sides.

    Args:
        mlm_probability: share of the tokens of a window that are predicted; at least one is.
        mask_replace_prob: share of these tokens that the mask token replaces.
        random_replace_prob: share that random tokens replace; the others are not replaced.
    """

    name = "masked_lm"
    site = "encoder_self"

    def __init__(
        self,
        config: Config,
        mlm_probability: float = 0.15,
        mask_replace_prob: float = 0.8,
        random_replace_prob: float = 0.1,
    ) -> None:
        super().__init__(config)
        self.settings = MaskSettings(mlm_probability, mask_replace_prob, random_replace_prob)

    def own_metrics(self, unit: str, part: str) -> Sequence[Metric]:
        """See `StreamTask.own_metrics`: bits per masked token, and accuracy."""
        about = f"{self.settings}{part}", unit
        bits = Metric("masked_bits", "lower", bits_per, (1, 2), *about, "bits per masked token")
        accuracy = Metric(
            "masked_accuracy", "higher", percent, (2, 3), *about, "masked accuracy (%)"
        )
        return [replace(metric, counts={"n_scored": 2}) for metric in (bits, accuracy)]

    def check_search(self) -> None:
        """See `StreamTask.check_search`; windows do not overlap."""
        super().check_search()
        context = self.config.decode.min_context
        require(context == 0, "decode.min_context", f"0 with task={self.name}", context)

    def windows(self, data: PreparedTokens) -> tuple[Windows, Windows]:
        """See `StreamTask.windows`: with masks."""
        masking = Masking(self.settings, data.tokenizer)
        kinds = MaskedTrainingWindows, MaskedEvaluationWindows
        return partial(kinds[0], masking=masking), partial(kinds[1], masking=masking)

    def contents(self, data: PreparedTokens, split: str) -> tuple[str, str]:
        """See `StreamTask.contents`; items have masks."""
        content, windows = super().contents(data, split)
        return content, values_digest([windows, str(self.settings)])

    def extra(self, data: PreparedTokens) -> Extra:
        """See `Task.extra`: whether a prediction is correct."""
        return 1, is_correct

    def shown_texts(self, run: TrainedRun, items: Iterable[Item]) -> Iterator[Shown]:
        """See `StreamTask.shown_texts`: all chosen tokens masked, and their predictions."""
        settings = replace(self.settings, mask_replace_prob=1.0, random_replace_prob=0.0)
        tokenizer, start = Tokenizer.load(run.folder.path / TOKENIZER), np.zeros(1, np.int64)
        for seed, item in enumerate(items):
            ids, masking = first_window(run, item, tokenizer), Masking(settings, tokenizer)
            batch = masking.batch(TokenStream(ids), start, len(ids), start, (seed,))
            names = tokenizer.labels(ids.tolist())
            for place in batch.scored_R.tolist():
                names[place] = f"<mask:{names[place]}>"
            filled = ids_text(_filled(run.model, batch.to(run.device), ids), tokenizer)
            labels, outputs = {COLUMN: (names, ids_text(ids, tokenizer))}, {"prediction": filled}
            yield Shown(batch, labels, outputs=outputs, note=NOTE)


@torch.no_grad()
def _filled(model: Model, batch: Batch, ids: Ints) -> Ints:
    """The tokens (N,) of a batch of one window, with the most likely ones at masked places."""
    logits_RV = model.output(batch.scored(model.states(**model.inputs(batch))))
    filled = ids.copy()
    filled[batch.scored_R.cpu().numpy()] = logits_RV.argmax(1).cpu().numpy()
    return filled

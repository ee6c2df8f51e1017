"""Masked language models: an encoder predicts masked tokens of a text (Devlin et al. 2019).

p · n of the n tokens of a window are chosen (at least one), as in section 3.1 of the paper. The
model reads `MASK` for most of them, a random token for some, and the others unchanged.

Axes: B windows, N tokens of a window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headwise.config.schema import Config
from headwise.data.batch import Batch
from headwise.data.lossless import ids_text
from headwise.data.sources.digest import values_digest
from headwise.data.tokenizer import COLUMN, MASK, N_SPECIALS, TOKENIZER, Tokenizer
from headwise.errors import require
from headwise.metrics.metric import Metric, percent
from headwise.model.family import Model
from headwise.tasks.shown import Item, Shown
from headwise.tasks.stream.shown import first_window
from headwise.tasks.stream.stream import PreparedTokens, TokenStream
from headwise.tasks.stream.task import StreamTask, Windows, bits_per
from headwise.tasks.stream.windows import (
    Bools,
    EvaluationWindows,
    Ints,
    TrainingWindows,
    scored_batch,
    window_column,
    window_ids,
)
from headwise.tasks.task import Extra, TrainedRun

Floats = npt.NDArray[np.float64]
FIXED = 0, 0  # seed of the masks of an evaluation; in training, epochs count from 1


@dataclass(frozen=True)
class MaskSettings:
    """How many tokens are chosen, and what replaces them; named as in Hugging Face's collator.

    Attributes:
        mlm_probability: share of the tokens of a window that are chosen.
        mask_replace_prob: share of the chosen ones that `MASK` replaces.
        random_replace_prob: share that random tokens replace.
    """

    mlm_probability: float
    mask_replace_prob: float
    random_replace_prob: float

    def __post_init__(self) -> None:
        share, shares = self.mlm_probability, (self.mask_replace_prob, self.random_replace_prob)
        require(0 < share <= 1, "mlm_probability", "above 0, at most 1", share)
        require(0 <= shares[0] <= 1, "mask_replace_prob", "from 0 to 1", shares[0])
        allowed = f"from 0 to 1 - mask_replace_prob={shares[0]}"
        require(
            shares[1] >= 0 and sum(shares) <= 1 + 1e-9, "random_replace_prob", allowed, shares[1]
        )

    def n_chosen(self, n_tokens: Ints) -> Ints:
        """Number of tokens to choose from n tokens."""
        n_chosen: Ints = np.maximum(1, np.rint(self.mlm_probability * n_tokens)).astype(np.int64)
        return n_chosen

    def __str__(self) -> str:
        """The settings as a part of a metric's signature."""
        shares = f"mask:{self.mask_replace_prob}|random:{self.random_replace_prob}"
        return f"mlm_probability:{self.mlm_probability}|{shares}"


@dataclass(frozen=True)
class Masking:
    """Chooses and replaces tokens; each window depends on its position and a seed alone."""

    settings: MaskSettings
    tokenizer: Tokenizer

    def batch(
        self, stream: TokenStream, starts_B: Ints, window: int, rows: Ints, seed: Sequence[int]
    ) -> Batch:
        """The batch of the windows at these positions, which predicts the chosen tokens."""
        positions_BN, ids_BN, is_real_BN = window_ids(stream, starts_B, window)
        draws = [np.random.default_rng([*seed, int(i)]).random((3, window)) for i in starts_B]
        draws_BKN = np.reshape(draws, (-1, 3, window))[..., : ids_BN.shape[1]]
        order_BN, kinds_BN, others_BN = np.moveaxis(draws_BKN, 1, 0)
        is_chosen_BN = self._chosen(is_real_BN, order_BN)
        inputs_BN = self._replaced(ids_BN, is_chosen_BN, kinds_BN, others_BN)
        column = window_column(stream, inputs_BN, positions_BN, is_real_BN)
        return scored_batch(column, is_chosen_BN, ids_BN, rows)

    def _chosen(self, is_real_BN: Bools, order_BN: Floats) -> Bools:
        """Whether a token is chosen: in each window, those that are first in the order."""
        last_BN = np.where(is_real_BN, order_BN, np.inf)
        ranks_BN = last_BN.argsort(1, kind="stable").argsort(1)
        return ranks_BN < self.settings.n_chosen(is_real_BN.sum(1))[:, None]

    def _replaced(
        self, ids_BN: Ints, is_chosen_BN: Bools, kinds_BN: Floats, others_BN: Floats
    ) -> Ints:
        """What the model reads."""
        settings, n_tokens = self.settings, self.tokenizer.vocab_size - N_SPECIALS
        is_masked_BN = is_chosen_BN & (kinds_BN < settings.mask_replace_prob)
        n_changed = settings.mask_replace_prob + settings.random_replace_prob
        is_random_BN = is_chosen_BN & ~is_masked_BN & (kinds_BN < n_changed)
        random_BN = N_SPECIALS + (others_BN * n_tokens).astype(np.int64)
        return np.where(is_masked_BN, MASK, np.where(is_random_BN, random_BN, ids_BN))


@dataclass(kw_only=True)
class MaskedTrainingWindows(TrainingWindows):
    """Windows with masks drawn by seed, epoch and position."""

    masking: Masking

    def n_targets(self, epoch: int, rows: Ints) -> int:
        return len(rows) * int(self.masking.settings.n_chosen(np.array(self.window)))

    def collate(self, epoch: int, rows: Ints) -> Batch:
        starts, seed = self.starts(epoch, rows), (self.seed, epoch)
        return self.masking.batch(self.stream, starts, self.window, rows, seed)


@dataclass(frozen=True, kw_only=True)
class MaskedEvaluationWindows(EvaluationWindows):
    """Windows side by side, with masks drawn by position alone: the same for all runs."""

    masking: Masking

    def batch(self, starts_B: Ints, rows: Ints) -> Batch:
        return self.masking.batch(self.stream, starts_B, self.window, rows, FIXED)


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

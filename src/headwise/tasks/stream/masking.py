"""Windows of a stream of tokens, some of which are masked and predicted (Devlin et al. 2019).

p · n of the n tokens of a window are chosen (at least one), as in section 3.1 of the paper. The
model reads `MASK` for most of them, a random token for some, and the others unchanged.

Axes: B windows, N tokens of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headwise.data.batch import Batch
from headwise.data.tokenizer import MASK, N_SPECIALS, Tokenizer
from headwise.errors import require
from headwise.tasks.stream.stream import TokenStream
from headwise.tasks.stream.windows import (
    Bools,
    EvaluationWindows,
    Ints,
    TrainingWindows,
    scored_batch,
    window_column,
    window_ids,
)

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

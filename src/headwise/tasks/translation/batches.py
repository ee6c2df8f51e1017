"""Batches of ids under a budget of padded tokens.

Axes: B batch, S source length, T target length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headwise.data.batch import Batch, Column
from headwise.data.loader import BatchPlan, longest_first, plan_epoch
from headwise.data.tokenizer import BOS, EOS
from headwise.errors import ConfigError
from headwise.tasks.translation.corpus import EncodedSplit


def collate(
    split: EncodedSplit, rows: npt.NDArray[np.integer[Any]], widths: Sequence[int] = (0, 0)
) -> Batch:
    """The batch of `rows` in the given order, padded to its longest row, or to widths (S, T).

    The source ends with eos; the target begins with bos, and each of its positions is scored on
    the next token, the last on eos.
    """
    n_source, n_target = widths
    source_BS, source_lengths_B = split.source.gather(rows, suffix=EOS, width=n_source)
    target_BT, target_lengths_B = split.target.gather(rows, prefix=BOS, width=n_target)
    following_BT, _ = split.target.gather(rows, suffix=EOS, width=n_target)
    is_real_BT = np.arange(target_BT.shape[1]) < target_lengths_B[:, None]
    scored_R = torch.from_numpy(np.flatnonzero(is_real_BT))
    tensor = torch.from_numpy
    columns = {
        "source": Column(tensor(source_BS), tensor(source_lengths_B), n_end=1),
        "target": Column(tensor(target_BT), tensor(target_lengths_B), n_begin=1),
    }
    targets_R = torch.from_numpy(following_BT[is_real_BT])
    return Batch(columns, scored_R, targets_R, rows.tolist(), len(targets_R))


@dataclass
class TrainingPairs:
    """Pairs of similar length in batches under a budget (`headwise.data.loader.Examples`).

    Args:
        split: the pairs, or a function from epoch to pairs (`headwise.tasks.translation.prepare`).
        max_tokens: padded tokens of the longer side in a rank's batch, with bos or eos.
        seed: with the epoch, determines the batches and their order.
        world_size: number of ranks.
        row_multiple: batches of more rows than this are rounded down to a multiple of it.
        length_multiple: lengths of both sides are padded to a multiple of it, within the budget:
            fewer shapes are fewer graphs for torch.compile. Never padded beyond the longest
            sentence, so that no row exceeds the maximum length of a model.

    Raises:
        ConfigError: a pair is longer than `max_tokens`; raised by `plan`.
    """

    split: EncodedSplit | Callable[[int], EncodedSplit]
    max_tokens: int
    seed: int
    world_size: int = 1
    row_multiple: int = 8
    length_multiple: int = 1

    def __post_init__(self) -> None:
        self._latest: tuple[int, EncodedSplit] | None = None

    def plan(self, epoch: int) -> BatchPlan:
        split = self._split(epoch)
        if not len(split):
            raise ValueError("training needs at least one pair")
        longest = max(self._longest(split))
        if longest > self.max_tokens:
            raise ConfigError(
                f"trainer.max_tokens={self.max_tokens} is less than the longest training "
                f"sentence ({longest} tokens with its end): raise trainer.max_tokens, or "
                "lower tokenizer.max_sentence_tokens"
            )
        budget = self.max_tokens * self.world_size
        source, target = self._padded(split, np.arange(len(split)))
        return plan_epoch(source, target, budget, self.seed, epoch, self.row_multiple)

    def n_targets(self, epoch: int, rows: npt.NDArray[np.integer[Any]]) -> int:
        """See `Examples.n_targets`: tokens of the target, and eos."""
        return int(self._split(epoch).target.lengths[rows].sum()) + len(rows)

    def collate(self, epoch: int, rows: npt.NDArray[np.integer[Any]]) -> Batch:
        split = self._split(epoch)
        return collate(split, rows, [int(n.max(initial=0)) for n in self._padded(split, rows)])

    def identity(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "budget": self.max_tokens * self.world_size,
            "row_multiple": self.row_multiple,
            "length_multiple": self.length_multiple,
        }

    def _split(self, epoch: int) -> EncodedSplit:
        if isinstance(self.split, EncodedSplit):
            return self.split
        if self._latest is None or self._latest[0] != epoch:
            self._latest = epoch, self.split(epoch)
        return self._latest[1]

    def _longest(self, split: EncodedSplit) -> list[int]:
        return [int(side.longest) + 1 for side in (split.source, split.target)]

    def _padded(
        self, split: EncodedSplit, rows: npt.NDArray[np.integer[Any]]
    ) -> list[npt.NDArray[np.int32]]:
        """Padded lengths of rows of both sides, with bos or eos."""
        multiple, sides = self.length_multiple, (split.source, split.target)
        lengths = [-(-(side.lengths[rows] + 1) // multiple) * multiple for side in sides]
        return [np.minimum(*both) for both in zip(lengths, self._longest(split), strict=True)]


def evaluation_batches(split: EncodedSplit, max_tokens: int) -> list[Batch]:
    """All pairs in batches of at most `max_tokens` padded tokens of the longer side.

    `Batch.rows` are the numbers in the split.
    """
    longer = np.maximum(split.source.lengths, split.target.lengths) + 1
    return [collate(split, rows) for rows in longest_first(longer, max_tokens)]

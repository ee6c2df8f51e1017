"""Batches of ids under a budget of padded tokens.

Shapes: B batch, S source length, T target length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from headwise.data.batch import Batch, Column
from headwise.data.batch_order import BatchPlan, plan_epoch
from headwise.data.store import EncodedSplit, IdStore
from headwise.data.tokenizer import BOS, EOS
from headwise.errors import ConfigError, RunError


def collate(
    split: EncodedSplit, rows: npt.NDArray[np.int32], widths: Sequence[int] = (0, 0)
) -> Batch:
    """The batch of `rows` in the given order, padded to its longest row, or to widths (S, T).

    The source ends in eos; the target begins with bos, and each of its positions is scored against
    the piece that follows, the last against eos.
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
class BatchLoader:
    """Training batches without end, the same for the same seed, from any position.

    The batches of an epoch are planned for all ranks together under a budget of `max_tokens`
    padded tokens of the longer side a rank; each rank takes every `world_size`-th row. So two
    ranks train on what one rank with twice `max_tokens` trains on.

    Args:
        split: the pairs, or what gives the pairs of an epoch (`headwise.data.bpe_dropout_epochs`).
        max_tokens: budget a rank, bos or eos counted on both sides.
        seed: with the epoch, decides the batches and their order.
        rank: this process.
        world_size: number of processes.
        row_multiple: batches of more rows than this are cut to a multiple of it.
        length_multiple: lengths of both sides are padded up to a multiple of it, which the budget
            counts: few different shapes are few different graphs for torch.compile. The longest
            sentence is not padded, so that nothing gets longer than a model takes.

    Raises:
        ConfigError: a pair alone is longer than `max_tokens`; at the first batch of an epoch.
    """

    split: EncodedSplit | Callable[[int], EncodedSplit]
    max_tokens: int
    seed: int
    rank: int = 0
    world_size: int = 1
    row_multiple: int = 8
    length_multiple: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} of {self.world_size} ranks")
        self._next_epoch, self._next_batch = 1, 0
        self._begun: _Epoch | None = None

    @property
    def n_batches(self) -> int:
        """Batches of this epoch."""
        return len(self._epoch().plan)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """This rank's share of the next batch; it may have no rows."""
        epoch = self._epoch()
        if self._next_batch >= len(epoch.plan):
            self._next_epoch, self._next_batch = self._next_epoch + 1, 0
            epoch = self._epoch()
        rows = epoch.plan[self._next_batch]
        self._next_batch += 1
        own = rows[self.rank :: self.world_size]
        lengths = (side.lengths[own] + 1 for side in (epoch.split.source, epoch.split.target))
        padded = map(self._padded, lengths, epoch.longest)
        batch = collate(epoch.split, own, [int(side.max(initial=0)) for side in padded])
        n_targets = int(epoch.split.target.lengths[rows].sum()) + len(rows)
        return replace(batch, global_targets=n_targets)

    def state(self) -> dict[str, int]:
        """The position: `batch` batches of `epoch` were given. The rest is for `restore`."""
        return {"epoch": self._next_epoch, "batch": self._next_batch, **self._identity()}

    def restore(self, state: dict[str, int]) -> None:
        """Go on after the batch before `state()` was called, on any rank of that run.

        Raises:
            RunError: the state is of a loader with other batches.
        """
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise RunError(
                    f"cannot go on in the data of this run: its {key} was {state.get(key)}, now "
                    f"it is {value} (budget is trainer.max_tokens times the number of processes); "
                    "set it back, or start another run"
                )
        self._next_epoch, self._next_batch = state["epoch"], state["batch"]

    def _identity(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "budget": self.max_tokens * self.world_size,
            "row_multiple": self.row_multiple,
            "length_multiple": self.length_multiple,
        }

    def _epoch(self) -> _Epoch:
        number = self._next_epoch
        if self._begun is None or self._begun.number != number:
            self._begun = self._begin(number)
        return self._begun

    def _begin(self, number: int) -> _Epoch:
        split = self.split if isinstance(self.split, EncodedSplit) else self.split(number)
        if not len(split):
            raise ValueError("a loader needs at least one pair")
        lengths = split.source.lengths + 1, split.target.lengths + 1
        longest = [int(side.max()) for side in lengths]
        if max(longest) > self.max_tokens:
            raise ConfigError(
                f"trainer.max_tokens={self.max_tokens} is less than the longest training "
                f"sentence ({max(longest)} pieces with its end): raise trainer.max_tokens, or "
                "lower tokenizer.max_sentence_pieces"
            )
        budget = self.max_tokens * self.world_size
        source, target = map(self._padded, lengths, longest)
        plan = plan_epoch(source, target, budget, self.seed, number, self.row_multiple)
        return _Epoch(number, split, plan, longest)

    def _padded(self, lengths: npt.NDArray[np.int32], longest: int) -> npt.NDArray[np.int32]:
        """The lengths that batches of such rows are padded to."""
        multiple = self.length_multiple
        return np.minimum(-(-lengths // multiple) * multiple, longest)


@dataclass(frozen=True)
class _Epoch:
    """What the batches of one epoch are made from."""

    number: int
    split: EncodedSplit
    plan: BatchPlan
    longest: Sequence[int]  # source and target, with bos or eos


def evaluation_batches(
    split: EncodedSplit | Sequence[Sequence[int]], max_tokens: int
) -> Iterator[Batch]:
    """All pairs in batches of at most `max_tokens` padded tokens of the longer side.

    Longest first, so that a lack of memory shows at once; `Batch.rows` tells the places in the
    split. A longer pair makes a batch of its own, nothing is dropped. A list of id lists is
    source text to be translated: its targets are empty (bos in, eos out).
    """
    if not isinstance(split, EncodedSplit):
        nothing = IdStore(np.zeros(0, np.int32), np.zeros(len(split) + 1, np.int64))
        split = EncodedSplit(IdStore.from_lists(split), nothing)
    longer = np.maximum(split.source.lengths, split.target.lengths) + 1
    order = np.argsort(-longer, kind="stable").astype(np.int32)
    start = 0
    while start < len(order):
        n_rows = max(max_tokens // int(longer[order[start]]), 1)
        yield collate(split, order[start : start + n_rows])
        start += n_rows

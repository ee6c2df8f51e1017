"""Labelled texts and pictures as batches of one class per row.

Axes: N examples, B rows, L positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwise.data.batch import Batch
from headwise.data.loader import Rows
from headwise.data.plan import BatchPlan, longest_first, plan_epoch
from headwise.errors import ConfigError
from headwise.tasks.classification.inputs import Classes, LabelledSplit


@dataclass(frozen=True)
class TrainingClasses:
    """Examples of similar length in batches under a budget (`headwise.data.loader.Examples`).

    Args:
        split: of training.
        kept: numbers of the examples to train on.
        max_tokens: padded positions of a batch of a rank.
        seed: with the epoch, determines the batches, their order and random changes.
        world_size: number of ranks.
    """

    split: LabelledSplit
    kept: Rows
    max_tokens: int
    seed: int
    world_size: int = 1

    def plan(self, epoch: int) -> BatchPlan:
        lengths = self.split.inputs.lengths[self.kept]
        longest = int(lengths.max())
        if longest > self.max_tokens:
            raise ConfigError(
                f"trainer.max_tokens={self.max_tokens} is less than the {longest} positions of the "
                "longest training example: raise it"
            )
        return plan_epoch(lengths, lengths, self.max_tokens * self.world_size, self.seed, epoch)

    def n_targets(self, epoch: int, rows: Rows) -> int:
        return len(rows)

    def collate(self, epoch: int, rows: Rows) -> Batch:
        """See `Examples.collate`; rows count the examples that are kept."""
        return self.split.batch(self.kept[rows], [self.seed, epoch])

    def identity(self) -> dict[str, int]:
        budget = self.max_tokens * self.world_size
        return {"seed": self.seed, "budget": budget, "examples": len(self.kept)}


def evaluation_batches(
    split: LabelledSplit, max_tokens: int, n_items: int | None = None
) -> list[Batch]:
    """The first examples in batches of at most `max_tokens` padded positions, longest first."""
    return [split.batch(rows) for rows in longest_first(split.inputs.lengths[:n_items], max_tokens)]


def stratified(classes: Classes, share: float, seed: int) -> Rows:
    """Numbers, increasing, of a share of the examples of each class, at least one of each.

    Smaller shares with one seed are subsets of larger ones.
    """
    generator, chosen = np.random.default_rng(seed), []
    for label in np.unique(classes):
        members = generator.permutation(np.flatnonzero(classes == label))
        chosen.append(members[: max(1, round(share * len(members)))])
    return np.sort(np.concatenate(chosen))

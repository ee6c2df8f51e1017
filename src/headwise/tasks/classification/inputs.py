"""Labelled examples: where they are, their inputs (ids of texts, or patches of images), batches.

Axes: N examples, B rows, L positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from headwise.config.data import ImageDataConfig
from headwise.data.batch import Batch, Column
from headwise.data.file_corpus import Corpus
from headwise.data.images import augmented, grid_of, patches
from headwise.data.loader import BatchPlan, Rows, longest_first, plan_epoch
from headwise.data.store import IdStore
from headwise.data.tokenizer import COLUMN
from headwise.errors import ConfigError

Classes = npt.NDArray[np.int64]


class ClassCorpus(Corpus, Protocol):
    """Labelled examples that are located but not encoded yet.

    Attributes:
        cache_dir: folder of encoded data, downloads and file hashes.
    """

    cache_dir: Path

    def path(self, split: str) -> Path:
        """The file or folder of a split, which error messages name."""
        ...

    def rows(self, split: str) -> Iterator[tuple[Any, str]]:
        """The examples of a split: one or two texts, or an image (H, W, C); and the label."""
        ...

    def names(self, split: str) -> Iterator[str]:
        """The file of each example of a split, and its place in it, for messages."""
        ...


@dataclass(frozen=True)
class TextInputs:
    """Texts as tokens, each with an end token."""

    store: IdStore

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Positions of each text, (N,)."""
        return self.store.lengths

    def column(self, rows: Rows, seed: Sequence[int] | None) -> Column:
        """The column of some rows; texts are never changed at random."""
        ids_BL, lengths_B = self.store.gather(rows)
        return Column(torch.from_numpy(ids_BL), torch.from_numpy(lengths_B), n_end=1)


@dataclass(frozen=True)
class ImageInputs:
    """Images (N, H, W, C) as patches (`headwise.data.images`)."""

    images: npt.NDArray[np.uint8]
    config: ImageDataConfig

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Patches of each image, (N,)."""
        return np.full(len(self.images), self._n_patches, np.int32)

    @property
    def _n_patches(self) -> int:
        return prod(grid_of(self.config.shape, self.config.patch))

    def column(self, rows: Rows, seed: Sequence[int] | None) -> Column:
        """The values (B, N, P) of the patches of some images.

        Args:
            rows: numbers of the images.
            seed: with the row, of random changes of training images; None: no changes.
        """
        images_BHWC = self.images[rows]
        if seed is not None:
            changes = self.config.shift, self.config.flip
            images_BHWC = augmented(images_BHWC, *changes, seed, rows)
        ids_BNP = torch.from_numpy(patches(images_BHWC, self.config.patch))
        return Column(ids_BNP, torch.full((len(rows),), self._n_patches))


@dataclass(frozen=True)
class LabelledSplit:
    """Inputs and their classes, (N,)."""

    inputs: TextInputs | ImageInputs
    classes: Classes

    def __len__(self) -> int:
        return len(self.classes)

    def batch(self, rows: Rows, seed: Sequence[int] | None = None) -> Batch:
        """The batch of some rows, each scored once; `seed` as of `ImageInputs.column`."""
        columns = {COLUMN: self.inputs.column(rows, seed)}
        targets_R = torch.from_numpy(self.classes[rows])
        return Batch(columns, torch.arange(len(rows)), targets_R, rows.tolist(), len(rows))


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

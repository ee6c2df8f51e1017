"""A model with known probabilities, for tests of search."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from headwise.model.transformer import Memory

Prefix = tuple[int, ...]
PAD, UNK, BOS, EOS = 0, 1, 2, 3


class PrefixCache:
    """Cache of the prefixes of the rows of a batch."""

    def __init__(self) -> None:
        self.prefixes: Tensor | None = None

    def reorder(self, rows: Tensor) -> None:
        assert self.prefixes is not None
        self.prefixes = self.prefixes[rows]

    def reorder_memory(self, rows: Tensor) -> None:
        """The sources are part of the memory."""


class RandomModel:
    """A model with random logits, seeded by (source, prefix).

    `logits` may be replaced by a function of (source, prefix).
    """

    def __init__(self, sharpness: float = 2.0, vocab_size: int = 7) -> None:
        self.sharpness, self.vocab_size = sharpness, vocab_size
        self.batch_sizes: list[int] = []

    def logits(self, source: Prefix, prefix: Prefix) -> list[float]:
        generator = random.Random(str((source, prefix)))
        return [self.sharpness * generator.gauss(0, 1) for _ in range(self.vocab_size)]

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> Memory:
        return Memory(source_BS[:, :, None].float(), source_lengths_B)

    def make_cache(self) -> PrefixCache:
        return PrefixCache()

    def decode(
        self, target_in_BT: Tensor, memory: Memory, cache: PrefixCache | None = None
    ) -> Tensor:
        self.batch_sizes.append(len(target_in_BT))
        n_new = target_in_BT.shape[1]
        prefixes = target_in_BT
        if cache is not None:
            if cache.prefixes is not None:
                prefixes = torch.cat([cache.prefixes, target_in_BT], dim=1)
            cache.prefixes = prefixes
        sources = memory.states_BSD[:, :, 0].long().tolist()
        rows = []
        for ids, states, length in zip(prefixes.tolist(), sources, memory.lengths_B, strict=True):
            source = tuple(states[: int(length)])
            ends = range(len(ids) - n_new + 1, len(ids) + 1)
            rows.append([self.logits(source, tuple(ids[1:end])) for end in ends])
        return torch.tensor(rows)

    def log_probs(self, source: Prefix, prefix: Prefix) -> list[float]:
        return torch.tensor(self.logits(source, prefix)).log_softmax(-1).tolist()

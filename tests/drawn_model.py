"""A model with known probabilities, for tests of search."""

import random

import torch

from headwise.model.transformer import Memory

Prefix = tuple[int, ...]
PAD, UNK, BOS, EOS = 0, 1, 2, 3


class PrefixCache:
    """Cache of the prefixes of the rows of a batch."""

    def __init__(self):
        self.prefixes = None

    def reorder(self, rows):
        assert self.prefixes is not None
        self.prefixes = self.prefixes[rows]

    def reorder_memory(self, rows):
        """The sources are part of the memory."""


class RandomModel:
    """A model with random logits, seeded by (source, prefix).

    `logits` may be replaced by a function of (source, prefix).
    """

    def __init__(self, sharpness=2.0, vocab_size=7):
        self.sharpness, self.vocab_size = sharpness, vocab_size
        self.batch_sizes = []

    def logits(self, source, prefix):
        generator = random.Random(str((source, prefix)))
        return [self.sharpness * generator.gauss(0, 1) for _ in range(self.vocab_size)]

    def encode(self, source_BS, source_lengths_B):
        return Memory(source_BS[:, :, None].float(), source_lengths_B)

    def make_cache(self):
        return PrefixCache()

    def decode(self, target_in_BT, memory, cache=None):
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

    def log_probs(self, source, prefix):
        return torch.tensor(self.logits(source, prefix)).log_softmax(-1).tolist()

"""A model with known probabilities, for tests of search."""

import functools
import math
import random

import torch

from headwise.losses.output_map import SOFTMAX
from headwise.model.transformer import Memory

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

    `logits` may be replaced by a function of (source, prefix). `shapes` has the (rows, tokens) of
    every call of the decoder.
    """

    def __init__(self, sharpness=2.0, vocab_size=7, output=SOFTMAX):
        self.sharpness, self.vocab_size, self.output = sharpness, vocab_size, output
        self.shapes = []

    @functools.cache  # noqa: B019
    def logits(self, source, prefix):
        generator = random.Random(str((source, prefix)))
        return [self.sharpness * generator.gauss(0, 1) for _ in range(self.vocab_size)]

    def encode(self, source_BS, source_lengths_B):
        return Memory(source_BS[:, :, None].float(), source_lengths_B)

    def make_cache(self):
        return PrefixCache()

    def decode(self, target_in_BT, memory, cache=None):
        assert not torch.is_grad_enabled()
        self.shapes.append(tuple(target_in_BT.shape))
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

    @functools.cache  # noqa: B019
    def log_probs(self, source, prefix):
        return self.output.log_probs(torch.tensor(self.logits(source, prefix))).tolist()

    def possible(self, source, prefix):
        """Log probability of every token that may follow and has a probability."""
        log_probs = self.log_probs(source, prefix)
        return {p: log_probs[p] for p in range(EOS, self.vocab_size) if log_probs[p] > -math.inf}

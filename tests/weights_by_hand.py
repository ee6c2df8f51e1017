"""Attention weights written row by row, as observations of an analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headwise.analysis.collect import HeadMeans
from headwise.analysis.observe import Observation
from headwise.attention.place import Place
from headwise.tasks.translation.batches import collate
from headwise.tasks.translation.store import EncodedSplit

Rows = Sequence[Sequence[float]]
COLUMNS = {
    "encoder_self": ("source", "source"),
    "decoder_self": ("target", "target"),
    "cross": ("target", "source"),
}


@dataclass
class _Placed:
    place: Place


class Model:
    """The part of a Transformer that tables need: attentions of `n_heads` heads in one layer."""

    def __init__(self, n_heads):
        self.n_heads = n_heads

    def attentions(self):
        for site in ("encoder_self", "decoder_self", "cross"):
            yield site, 1, _Placed(Place(site, 1, self.n_heads, 4))


class Means:
    """Means of one measure of heads; further arguments are passed to the measure."""

    def __init__(self, measure, *arguments):
        self._measure, self._arguments, self._means = measure, arguments, HeadMeans()

    def add(self, batch, observation):
        for values, counted in self._measure(batch, observation, *self._arguments):
            self._means.add(observation, values, counted)

    def tables(self):
        model = Model(1)
        return self._means.tables(model)

    def of(self, name, site="encoder_self"):
        table = self.tables().get(name, {})
        return table[site][0][0] if site in table else None


def batch_of(source_lengths, target_lengths=None):
    """Sentences of these numbers of tokens, special tokens not counted, in this order."""
    target_lengths = source_lengths if target_lengths is None else target_lengths
    sides = [[[4] * n for n in lengths] for lengths in (source_lengths, target_lengths)]
    return collate(EncodedSplit.from_lists(*sides), np.arange(len(source_lengths), dtype=np.int32))


def observation(site, weights, lengths, causal=False, is_distribution=True):
    """One attention of one head: weights (B, Q, K) of sentences of these lengths."""
    weights_BHQK = torch.tensor(weights)[:, None]
    n_queries, n_keys = weights_BHQK.shape[2:]
    queries_BQ = torch.arange(n_queries) < torch.tensor(lengths)[:, None]
    keys_BK = torch.arange(n_keys) < torch.tensor(lengths)[:, None]
    allowed_BHQK = (queries_BQ[:, :, None] & keys_BK[:, None])[:, None]
    if causal:
        allowed_BHQK = allowed_BHQK & torch.ones(n_queries, n_keys, dtype=torch.bool).tril()
    queries, keys = COLUMNS[site]
    return Observation(
        site, queries, keys, 1, queries_BQ, head_numbers=(1,), allowed_BHQK=allowed_BHQK,
        weights_BHQK=weights_BHQK.masked_fill(~allowed_BHQK, 0.0),
        distribution_heads=(is_distribution,),
    )  # fmt: skip

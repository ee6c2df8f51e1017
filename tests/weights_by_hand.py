"""Attention weights written row by row, as observations of an analysis."""

from dataclasses import dataclass

import numpy as np
import torch

from headwise.analysis.collect import HeadMeans
from headwise.analysis.observe import Observation
from headwise.attention.place import Place
from headwise.tasks.translation.batches import collate
from headwise.tasks.translation.corpus import EncodedSplit

COLUMNS = {
    "encoder_self": ("source", "source"),
    "decoder_self": ("target", "target"),
    "cross": ("target", "source"),
}


@dataclass
class _Placed:
    place: Place


class Model:
    """The part of a Transformer that tables need: attentions of one head in one layer."""

    def attentions(self):
        for site in COLUMNS:
            yield site, 1, _Placed(Place(site, 1, 1, 4))


def measured(measure, argument, batch, obs):
    """Name -> mean of each measure of the only head; without those that are not measured."""
    means = HeadMeans()
    for values, counted in measure(batch, obs, argument):
        means.add(obs, values, counted)
    tables = means.tables(Model())
    return {name: table[obs.site][0][0] for name, table in tables.items()}


def batch_of(source_lengths, target_lengths=None):
    """Sentences of these numbers of tokens, special tokens not counted, in this order."""
    target_lengths = source_lengths if target_lengths is None else target_lengths
    sides = [[[4] * n for n in lengths] for lengths in (source_lengths, target_lengths)]
    return collate(EncodedSplit.from_lists(*sides), np.arange(len(source_lengths), dtype=np.int32))


def observation(site, weights, lengths, causal=False, is_distribution=True):
    """One attention of one head: weights (Q, K) of each sentence, of these lengths."""
    sentences = [torch.as_tensor(rows) for rows in weights]
    shapes = torch.tensor([rows.shape for rows in sentences])
    weights_BHQK = torch.zeros(len(sentences), 1, *shapes.amax(0).tolist())
    for number, rows in enumerate(sentences):
        weights_BHQK[number, 0, : len(rows), : rows.shape[1]] = rows
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

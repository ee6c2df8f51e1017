"""Models for the statistics of heads, and the statistics computed without tensors.

Sentence by sentence, hence without padding, with Python numbers and loops.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from headwise.attention.attention import ScoreAttention
from headwise.attention.normaliser import Normaliser
from headwise.attention.pattern import Pattern
from headwise.attention.recorder import recorded_weights
from headwise.config.schema import ModelConfig
from headwise.data.batch import Batch, Column
from headwise.model.transformer import Transformer

CPU = torch.device("cpu")
LAYERS, HEADS = 2, 2
SENTENCES = [  # source ids, target ids with bos in front; lengths differ, so batches are padded
    ([5, 6, 7, 8, 9], [2, 4, 5]),
    ([6, 4], [2, 7, 8, 9, 5, 6]),
    ([9], [2]),
    ([4, 4, 8, 7], [2, 9, 9, 4]),
]


class Dense(Normaliser):
    """Softmax, written out."""

    def forward(self, scores_BHQK, context):
        mask = context.dense_mask(scores_BHQK)
        if mask is not None:
            scores_BHQK = scores_BHQK.masked_fill(~mask, -math.inf)
        return scores_BHQK.softmax(-1).nan_to_num(0.0)  # padded queries may have no key


class Thresholded(Dense):
    """Weights far below the largest are exactly zero: sparsity that differs between queries."""

    def forward(self, scores_BHQK, context):
        weights = super().forward(3 * scores_BHQK, context)
        weights = weights.where(weights > 0.8 * weights.amax(-1, keepdim=True), 0.0)
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


class NegativeWeights(Dense):
    """Declared a distribution, but the second head has negative weights."""

    def forward(self, scores_BHQK, context):
        weights = super().forward(scores_BHQK, context).clone()
        weights[:, 1] -= 0.2
        return weights


class Signed(Dense):
    """No distribution: weights of both signs, some exactly zero, in some rows all."""

    is_distribution = False

    def forward(self, scores_BHQK, context):
        weights = torch.tanh(2 * scores_BHQK)
        weights = weights.where(weights.abs() > 0.6, 0.0)
        mask = context.dense_mask(scores_BHQK)
        return weights if mask is None else weights * mask


class Window(Pattern):
    """Head 1 attends to keys at most one position away, head 2 at most two."""

    def allowed(self, query_positions_Q, n_keys, causal, key_lengths_B):
        distance_QK = (query_positions_Q[:, None] - torch.arange(n_keys)).abs()
        return torch.stack((distance_QK <= 1, distance_QK <= 2))[None]


def all_visible(head, query, key):
    return True


def in_window(head, query, key):
    return abs(query - key) <= head + 1


class Weightless(ScoreAttention):
    """An attention that forms no weight matrix."""

    def record(self, weights_BHQK):
        pass


MODEL = ModelConfig("test", LAYERS, LAYERS, 8, HEADS, 8)


def build(make_attention, **settings):
    """A model in float64, so that sums agree to its precision."""
    config = replace(MODEL, **settings)
    torch.manual_seed(1)
    return Transformer(config, 12, 12, True, make_attention, seed=3).double()


def with_normaliser(kind, pattern=None):
    def make(place):
        site_pattern = None if pattern is None or place.site == "cross" else pattern(place)
        return ScoreAttention(place, kind(place), site_pattern, dropout=0.5)

    return make


def collate(sentences, extra=0):
    def pad(rows):
        width = max(map(len, rows)) + extra
        padded_batches = [row + [0] * (width - len(row)) for row in rows]
        return torch.tensor(padded_batches), torch.tensor([len(row) for row in rows])

    source, target = (pad(list(rows)) for rows in zip(*sentences, strict=True))
    columns = {"source": Column(*source), "target": Column(*target)}
    nothing = torch.zeros(0, dtype=torch.long)
    return Batch(columns, nothing, nothing, list(range(len(sentences))), 0)


Visible = Callable[[int, int, int], bool]  # head, query, key, from 0


def statistics_by_hand(model, is_visible=all_visible, n_cls=0):
    """Loop over queries, heads and keys; only self-attention has patterns."""
    statistics = {}
    model.eval()
    for sentence in SENTENCES:
        batch = collate([sentence])
        with torch.no_grad(), recorded_weights(model) as weights:
            model(**model.inputs(batch))
        for site, layers in weights.items():
            first_query = n_cls if site == "encoder_self" else 0
            first_key = 0 if site == "decoder_self" else n_cls
            for number, weights_BHQK in layers.items():
                layer = number - 1
                for head in range(HEADS if first_query else 0):
                    rows = [row[first_key:] for row in weights_BHQK[0, head, :n_cls].tolist()]
                    if all(map(any, rows)):
                        divergence = divergence_of(list(map(shares, rows)))
                        of_head = "cls_divergence", site, layer, head
                        statistics.setdefault(of_head, []).append(divergence)
                for query in range(first_query, weights_BHQK.shape[2]):
                    rows = weights_BHQK[0, :, query].tolist()
                    for head, row in enumerate(rows):
                        keys = [
                            key
                            for key in range(first_key, len(row))
                            if (site != "decoder_self" or key <= query)
                            and (site == "cross" or is_visible(head, query, key))
                        ]
                        for name, value in row_statistics(row, keys, first_key).items():
                            statistics.setdefault((name, site, layer, head), []).append(value)
                    if all(any(row[first_key:]) for row in rows):
                        divergence = divergence_of([shares(row[first_key:]) for row in rows])
                        statistics.setdefault(("diversity", site, layer, 0), []).append(divergence)
    return averaged(statistics)


def row_statistics(row, keys, n_cls):
    visible = [row[key] for key in keys]
    values = {"density": sum(weight != 0 for weight in visible) / len(visible)}
    if any(visible):
        values["entropy"] = shannon(shares(visible))
    if n_cls and any(row):
        values["cls_mass"] = math.fsum(shares(row)[:n_cls])
    return values


def shares(weights):
    total = math.fsum(map(abs, weights))
    return [abs(weight) / total for weight in weights]


def divergence_of(rows):
    """Jensen-Shannon, with the logarithm to the base of the number of rows."""
    mean = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    each = math.fsum(map(shannon, rows)) / len(rows)
    return (shannon(mean) - each) / math.log(len(rows))


def averaged(statistics):
    tables = {}
    for name, site, layer, head in sorted(statistics):
        layers = tables.setdefault(name, {}).setdefault(site, [[] for _ in range(LAYERS)])
        values = statistics[name, site, layer, head]
        layers[layer].append(math.fsum(values) / len(values))
    return dict(tables)


def shannon(row):
    return -math.fsum(share * math.log(share) for share in row if share)


def flat(table):
    return [value for site in sorted(table) for layer in table[site] for value in layer]


def assert_same(values, expected):
    for name, table in expected.items():
        assert values[name].keys() == table.keys(), name
        measured = [value for value in flat(values[name]) if value is not None]
        assert measured == pytest.approx(flat(table), abs=1e-10), name


def padded_batches():
    return [collate(SENTENCES[:3], extra=3), collate(SENTENCES[3:])]

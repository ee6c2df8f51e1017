"""Models for the statistics of heads, and the statistics counted by hand.

Sentence by sentence, hence without padding, with plain numbers and loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.attention.parts import Normaliser, ScoreContext
from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.attention.protocol import Attention
from headwise.attention.recorder import recorded_weights
from headwise.attention.scores import ScoreAttention
from headwise.config.schema import ModelConfig
from headwise.data.batch import Batch, Column
from headwise.model.transformer import Transformer
from headwise.track.base import HeadValues

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

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        mask = context.dense_mask(scores_BHQK)
        if mask is not None:
            scores_BHQK = scores_BHQK.masked_fill(~mask, -math.inf)
        return scores_BHQK.softmax(-1).nan_to_num(0.0)  # padded queries may see nothing


class Thresholded(Dense):
    """Keys far below the largest weight get exactly zero: sparse, unlike from query to query."""

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        weights = super().forward(3 * scores_BHQK, context)
        weights = weights.where(weights > 0.8 * weights.amax(-1, keepdim=True), 0.0)
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


class Untrue(Dense):
    """Declared a distribution, with weights below zero at the second head."""

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        weights = super().forward(scores_BHQK, context).clone()
        weights[:, 1] -= 0.2
        return weights


class Signed(Dense):
    """No distribution: weights of both signs, some exactly zero, in some rows all."""

    is_distribution = False

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        weights = torch.tanh(2 * scores_BHQK)
        weights = weights.where(weights.abs() > 0.6, 0.0)
        mask = context.dense_mask(scores_BHQK)
        return weights if mask is None else weights * mask


class Window(Pattern):
    """Head 1 sees what is at most one position away, head 2 at most two."""

    def allowed(
        self, query_positions_Q: Tensor, n_keys: int, causal: bool, key_lengths_B: Tensor | None
    ) -> Tensor | None:
        distance_QK = (query_positions_Q[:, None] - torch.arange(n_keys)).abs()
        return torch.stack((distance_QK <= 1, distance_QK <= 2))[None]


def everywhere(head: int, query: int, key: int) -> bool:
    return True


def in_window(head: int, query: int, key: int) -> bool:
    return abs(query - key) <= head + 1


class Weightless(ScoreAttention):
    """An attention that forms no weight matrix."""

    def record(self, weights_BHQK: Tensor) -> None:
        pass


MODEL = ModelConfig("test", LAYERS, LAYERS, 8, HEADS, 8)


def build(make_attention: Callable[[Place], Attention], **settings: Any) -> Transformer:
    """In float64, so that sums by hand agree to its precision."""
    config = replace(MODEL, **settings)
    torch.manual_seed(1)
    return Transformer(config, 12, 12, True, make_attention, seed=3).double()


def with_normaliser(
    kind: type[Normaliser], pattern: type[Pattern] | None = None
) -> Callable[[Place], Attention]:
    def make(place: Place) -> Attention:
        own = None if pattern is None or place.site == "cross" else pattern(place)
        return ScoreAttention(place, kind(place), own, dropout=0.5)

    return make


def collate(sentences: list[tuple[list[int], list[int]]], extra: int = 0) -> Batch:
    def pad(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        width = max(map(len, rows)) + extra
        padded = [row + [0] * (width - len(row)) for row in rows]
        return torch.tensor(padded), torch.tensor([len(row) for row in rows])

    source, target = (pad(list(rows)) for rows in zip(*sentences, strict=True))
    columns = {"source": Column(*source), "target": Column(*target)}
    nothing = torch.zeros(0, dtype=torch.long)
    return Batch(columns, nothing, nothing, list(range(len(sentences))), 0)


Sees = Callable[[int, int, int], bool]  # head, query, key, from 0


def by_hand(
    model: Transformer, sees: Sees = everywhere, n_registers: int = 0
) -> dict[str, HeadValues]:
    """Query by query, head by head, key by key; patterns stand in self-attention only."""
    found: dict[tuple[str, str, int, int], list[float]] = {}
    model.eval()
    for sentence in SENTENCES:
        batch = collate([sentence])
        with torch.no_grad(), recorded_weights(model) as weights:
            model(**model.inputs(batch))
        for site, layers in weights.items():
            first_query = n_registers if site == "encoder_self" else 0
            first_key = 0 if site == "decoder_self" else n_registers
            for number, weights_BHQK in layers.items():
                layer = number - 1
                for query in range(first_query, weights_BHQK.shape[2]):
                    rows = weights_BHQK[0, :, query].tolist()
                    for head, row in enumerate(rows):
                        keys = [
                            key
                            for key in range(first_key, len(row))
                            if (site != "decoder_self" or key <= query)
                            and (site == "cross" or sees(head, query, key))
                        ]
                        for name, value in of_row(row, keys, first_key).items():
                            found.setdefault((name, site, layer, head), []).append(value)
                    if all(any(row[first_key:]) for row in rows):
                        divergence = divergence_of([shares(row[first_key:]) for row in rows])
                        found.setdefault(("diversity", site, layer, 0), []).append(divergence)
    return averaged(found)


def of_row(row: list[float], keys: list[int], n_registers: int) -> dict[str, float]:
    seen = [row[key] for key in keys]
    values = {"density": sum(weight != 0 for weight in seen) / len(seen)}
    if any(seen):
        values["entropy"] = shannon(shares(seen))
    if n_registers and any(row):
        values["register_mass"] = math.fsum(shares(row)[:n_registers])
    return values


def shares(weights: list[float]) -> list[float]:
    total = math.fsum(map(abs, weights))
    return [abs(weight) / total for weight in weights]


def divergence_of(rows: list[list[float]]) -> float:
    """Jensen-Shannon, with the logarithm to the base of the number of rows."""
    mean = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    each = math.fsum(map(shannon, rows)) / len(rows)
    return (shannon(mean) - each) / math.log(len(rows))


def averaged(found: dict[tuple[str, str, int, int], list[float]]) -> dict[str, HeadValues]:
    tables: dict[str, dict[str, list[list[float]]]] = {}
    for name, site, layer, head in sorted(found):
        layers = tables.setdefault(name, {}).setdefault(site, [[] for _ in range(LAYERS)])
        values = found[name, site, layer, head]
        layers[layer].append(math.fsum(values) / len(values))
    return dict(tables)


def shannon(row: list[float]) -> float:
    return -math.fsum(share * math.log(share) for share in row if share)


def flat(table: HeadValues) -> list[float | None]:
    return [value for site in sorted(table) for layer in table[site] for value in layer]


def assert_same(found: Mapping[str, HeadValues], expected: Mapping[str, HeadValues]) -> None:
    for name, table in expected.items():
        assert found[name].keys() == table.keys(), name
        assert flat(found[name]) == pytest.approx(flat(table), abs=1e-10), name


def padded() -> list[Batch]:
    return [collate(SENTENCES[:3], extra=3), collate(SENTENCES[3:])]

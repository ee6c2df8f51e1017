"""One look at all heads of a model over a text: every statistic from the same pass.

Results are rows of the tables in `headwise.analysis.tables`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from headwise.analysis.collect import HeadMeans, add_statistics, alphas, filled, own_statistics
from headwise.analysis.density import DensityHistograms, SentenceDensities
from headwise.analysis.observe import Seen, observed, passes
from headwise.analysis.positions import Positions
from headwise.analysis.pruning import present_heads
from headwise.analysis.questions import Asking, Interrogation, asking, has_words
from headwise.analysis.rarity import Rarity, rarest
from headwise.analysis.roles import NAMED
from headwise.analysis.tables import HEADS
from headwise.analysis.words import Merging, Surface, clusters, surface
from headwise.languages import has_spaces

if TYPE_CHECKING:
    from headwise.data.batching import Batch
    from headwise.model.transformer import Transformer
    from headwise.track.base import HeadValues

Row = dict[str, Any]
Key = tuple[str, int, int]  # site, layer, number of a head
DIVERSITIES = {"diversity_heads": "heads", "diversity_keys": "keys"}
LEAST_EXISTING = 0.5  # share of the tokens that must have something at an offset that names a head


@dataclass(frozen=True)
class TextSide:
    """One side of a text as pieces.

    Attributes:
        language: its code, with or without a region.
        ids: of each sentence, without marks.
        surfaces: of each sentence.
    """

    language: str
    ids: Sequence[Sequence[int]]
    surfaces: Sequence[Surface]

    @classmethod
    def of(
        cls, language: str, ids: Sequence[Sequence[int]], pieces: Sequence[Sequence[str]]
    ) -> TextSide:
        """The side whose pieces are spelt as `pieces`."""
        return cls(language, ids, [surface(sentence) for sentence in pieces])

    def clusters(self) -> list[list[int]] | None:
        """Cluster of every piece; None where pieces show no words."""
        if not has_spaces(self.language):
            return None
        return [clusters(sentence) for sentence in self.surfaces]


@dataclass(frozen=True)
class Survey:
    """Rows of the tables of an analysis, and what they were counted over.

    Attributes:
        counts: tokens and words, by name; what could not be looked for is absent.
    """

    heads: list[Row]
    others: list[Row]
    layers: list[Row]
    density: list[Row]
    offsets: list[Row]
    sentences: list[Row]
    counts: dict[str, int]


def survey(
    model: Transformer,
    batches: Iterable[Batch],
    device: torch.device,
    source: TextSide,
    target: TextSide,
    furthest: int = 5,
) -> Survey:
    """Look at every head over a text, once.

    Args:
        model: on `device`; left as it was found.
        batches: the sentences of both sides, which the decoder reads; their `indices` are places
            in `source` and `target`.
        source, target: both sides of the text.
        furthest: the offsets -furthest to furthest are looked at.
    """
    means, positions = HeadMeans(), Positions(furthest)
    histograms, densities = DensityHistograms(), SentenceDensities(len(source.ids))
    source_clusters, target_clusters = source.clusters(), target.clusters()
    merging = Merging(source_clusters, target_clusters)
    rarity = Rarity(rarest(source.ids))
    questions = Interrogation(_asking(source))
    for batch, calls in passes(model, batches, device):
        for call in calls:
            seen = Seen.of(call, batch, model.n_registers)
            add_statistics(means, call, seen, DIVERSITIES)
            if call.weights_BHQK is None:
                continue
            observation = observed(call, seen)
            for part in (positions, histograms, densities, merging, rarity, questions):
                part.take(batch, observation)
    measured = means.tables(model)
    # the mean of an α that depends on the query stands for that of its head
    alpha = filled(alphas(model), measured.pop("alpha", {}))
    tables = {"alpha": alpha, **own_statistics(model), **measured}
    others = [name for name in tables if name not in (*HEADS.columns, *DIVERSITIES)]
    for part in (positions, merging, rarity, questions):
        tables |= part.tables(model)
    by_head = _by_head(model, tables)
    counts = {
        "source_tokens": sum(map(len, source.ids)),
        "target_tokens": sum(map(len, target.ids)),
    }
    for name, found in (("source", source_clusters), ("target", target_clusters)):
        if found is not None:
            counts |= _n_words(name, found)
    if has_words(source.language):
        counts |= {f"{name}_word_tokens": n for name, n in questions.n_tokens().items()}
    return Survey(
        heads=[_head_row(key, found, positions.offsets) for key, found in by_head.items()],
        others=[
            {**_placed(key), "statistic": name, "value": found[name]}
            for key, found in by_head.items()
            for name in others
            if name in found
        ],
        layers=_layer_rows(model, tables),
        density=histograms.rows(),
        offsets=[
            row
            for key, found in by_head.items()
            for row in _offset_rows(key, found, positions.offsets)
        ],
        sentences=densities.rows(),
        counts=counts,
    )


def _asking(source: TextSide) -> list[Asking | None]:
    if not has_words(source.language):
        return [None] * len(source.ids)
    return [asking(sentence, source.language) for sentence in source.surfaces]


def _n_words(side: str, found: Sequence[Sequence[int]]) -> dict[str, int]:
    """Numbers of clusters, and of those of several pieces."""
    n_all = sum(len(set(sentence)) for sentence in found)
    n_split = sum(sentence.count(c) > 1 for sentence in found for c in set(sentence))
    return {f"{side}_words": n_all, f"{side}_split_words": n_split}


def _by_head(model: Transformer, tables: Mapping[str, HeadValues]) -> dict[Key, dict[str, float]]:
    """What was measured of every head; heads have the numbers of the unpruned model."""
    found: dict[Key, dict[str, float]] = {}
    for site, layers in present_heads(model).items():
        for layer, numbers in enumerate(layers, start=1):
            for index, number in enumerate(numbers):
                known = {
                    name: table[site][layer - 1][index]
                    for name, table in tables.items()
                    if name not in DIVERSITIES and site in table and table[site][layer - 1]
                }
                found[site, layer, number] = {n: v for n, v in known.items() if v is not None}
    return found


def _placed(key: Key) -> Row:
    return dict(zip(("site", "layer", "head"), key, strict=True))


def _head_row(key: Key, found: Mapping[str, float], offsets: Sequence[int]) -> Row:
    row = {**_placed(key), **{n: v for n, v in found.items() if n in HEADS.columns}}
    for offset, name in NAMED.items():
        row[f"{name}_share"] = found.get(f"share{offset}")
        row[f"{name}_weight"] = found.get(f"weight{offset}")
    known = [o for o in offsets if f"share{o}" in found and found[f"exists{o}"] >= LEAST_EXISTING]
    if known:
        best = max(known, key=lambda offset: (found[f"share{offset}"], -abs(offset)))
        row["offset"] = best
        row["offset_share"] = found[f"share{best}"]
        row["offset_weight"] = found[f"weight{best}"]
    return row


def _offset_rows(key: Key, found: Mapping[str, float], offsets: Sequence[int]) -> list[Row]:
    return [
        {
            **_placed(key),
            "offset": offset,
            "max_share": found[f"share{offset}"],
            "mean_weight": found[f"weight{offset}"],
        }
        for offset in offsets
        if f"share{offset}" in found
    ]


def _layer_rows(model: Transformer, tables: Mapping[str, HeadValues]) -> list[Row]:
    rows = []
    for site, layer, _ in model.attentions():
        row: Row = {"site": site, "layer": layer}
        for name in DIVERSITIES:
            layers = tables.get(name, {}).get(site, [])
            row[name] = layers[layer - 1][0] if layers and layers[layer - 1] else None
        rows.append(row)
    return rows

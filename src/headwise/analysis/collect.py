"""Statistics of the heads of a model: learned α, density, entropy, diversity, output norm.

Axes: B batch, H heads, Q queries, K keys, E head width, S source length, T target length.

Results are `site -> layers -> heads`. A missing value is absent, never zero: None for a head, an
empty list for a layer, no key for a site.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.analysis.diversity import as_distributions, entropies, jensen_shannon
from headwise.analysis.observe import Call, QueryBlock, for_each_block, valid_heads
from headwise.errors import ConfigError
from headwise.track.base import HeadValues

if TYPE_CHECKING:
    from headwise.attention.attention import Attention
    from headwise.data.batch import Batch
    from headwise.model.family import Model

# Statistic -> values (B or 1, H, Q), and the mask of counted queries; see `HeadMeans.add`.
Measures = Iterator[tuple[Mapping[str, Tensor], Tensor]]
RESERVED = ("update", "nonfinite", "role")  # other keys of records and pages
HeadTable = dict[str, list[list[float]]]  # every head has a value; else `HeadValues`


def alphas(model: Model) -> HeadValues:
    """Return α of every head that has one (Correia et al. 2019).

    An α that depends on the query is not included; `head_statistics` has its mean.
    """
    return reported(model).get("alpha", {})


def filled(values: HeadValues, others: HeadValues) -> HeadValues:
    """Return `values` with missing heads filled from `others`."""
    table: dict[str, list[list[float | None]]] = {}
    for site in dict.fromkeys((*values, *others)):
        pairs = zip_longest(values.get(site, ()), others.get(site, ()), fillvalue=())
        table[site] = [
            [other if value is None else value for value, other in zip_longest(layer, other_layer)]
            for layer, other_layer in pairs
        ]
    return table


def head_statistics(
    model: Model,
    batches: Iterable[Batch],
    device: torch.device,
) -> dict[str, HeadValues]:
    """Return statistics of every head, averaged over the queries of all batches.

    Padding is excluded; CLS tokens count in `cls_mass` only.

    - density: share of a query's visible keys with a weight other than exactly 0 (Correia et al.
      2019, section 5). Keys masked by padding, causality or the pattern are not visible.
    - entropy: -Σ p ln p in nats, with p = |w| / Σ |w| over tokens other than CLS tokens. Queries
      without any weight are excluded.
    - diversity: `diversity.jensen_shannon` of the same p over the heads of a layer; one number
      per layer. Queries for which some head has no weight, and layers of one head, are excluded.
    - output_norm: L2 norm of a head's output, after a gate and before the output projection.
    - cls_mass: share of a query's |w| on CLS tokens, if there are any.
    - cls_divergence: `diversity.jensen_shannon` of the same p over the CLS tokens as queries, if
      there are several; 1 if no two of them attend to a common token.
    - scale: the factor on the scores, if there is one.
    - the statistics of `Normaliser.query_stats` and `Attention.stats`, except alpha of the latter.

    Heads that declare distributions but have a negative weight, and heads with non-finite
    weights, are not measured.

    Args:
        model: on `device`; its training mode is restored.
        batches: sources with references, which the decoder reads.
        device: device of `model`.

    Returns:
        statistic -> site -> layers -> heads, only statistics that some head has.
    """
    means = HeadMeans()
    diversities = {"diversity": "heads"}
    for_each_block(model, batches, device, lambda _, call: add_statistics(means, call, diversities))
    return {**stats_except_alpha(model), **means.tables(model)}


def reported(model: Model) -> dict[str, HeadValues]:
    """Return the statistics that attentions report (`Attention.stats`), α included.

    Raises:
        ConfigError: a value is not one number per head, or its name is reserved.
    """
    stats: dict[str, dict[tuple[str, int], Tensor]] = {}
    for site, layer, attention in model.attentions():
        for name, values_H in attention.stats().items():
            _check_reported(attention, name, values_H)
            stats.setdefault(name, {})[site, layer] = values_H
    return {name: table for name, layers in stats.items() if (table := head_table(model, layers))}


def _check_reported(attention: Attention, name: str, values_H: object) -> None:
    parts = [getattr(attention, part, None) for part in ("gate", "normaliser", "scaling")]
    owners = [part for part in parts if part is not None and name in part.stats()]
    source = f"stats() of {type([attention, *owners][-1]).__name__} at {attention.place.site}"
    if name in RESERVED:
        raise ConfigError(f"{source} must not return {name!r}: the name is reserved")
    expected = (attention.place.n_heads,)
    shape = tuple(values_H.shape) if isinstance(values_H, Tensor) else None
    if shape == expected:
        return
    got = repr(values_H) if shape is None else f"of shape {shape}"
    raise ConfigError(
        f"{source} must return one number per head, a tensor of shape {expected}; {name!r} is {got}"
    )


def stats_except_alpha(model: Model) -> dict[str, HeadValues]:
    """Return the statistics that attentions report, α excluded."""
    return {name: table for name, table in reported(model).items() if name != "alpha"}


def add_statistics(means: HeadMeans, call: Call, diversities: Mapping[str, str]) -> None:
    """Add the statistics of a block of queries to `means`; see `head_statistics`.

    Args:
        diversities: name of each diversity -> base of its logarithm.
    """
    means.add(call, _query_stats(call), call.queries_BQ)
    if call.weights_BHQK is not None:
        _add_weights(means, call, diversities)
        if call.first_query > 1:
            _add_cls_divergence(means, call)


def _query_stats(call: Call) -> dict[str, Tensor]:
    """Return the statistics (B or 1, H, Q) that do not use the weights."""
    stats = {name: values[..., call.first_query :] for name, values in call.query_stats.items()}
    if call.joined_BQI is not None:
        place, joined_BQI = call.attention.place, call.joined_BQI[:, call.first_query :].double()
        by_head_BQHE = joined_BQI.view(*joined_BQI.shape[:2], place.n_heads, place.head_dim)
        stats["output_norm"] = by_head_BQHE.norm(dim=-1).transpose(1, 2)
    return stats


def _add_weights(means: HeadMeans, call: Call, diversities: Mapping[str, str]) -> None:
    """Add the statistics of the weights; NaN at heads with invalid weights."""
    assert call.weights_BHQK is not None
    queries_B1Q = call.queries_BQ[:, None]
    allowed_BHQK = call.allowed(call.weights_BHQK)[:, :, call.first_query :]
    weights_BHQK = call.weights_BHQK[:, :, call.first_query :].double()
    weights_BHQK = weights_BHQK.masked_fill(~(allowed_BHQK & queries_B1Q[..., None]), 0.0)
    is_valid_H1 = valid_heads(weights_BHQK, call.attention.distribution_heads())
    weights_BHQK = weights_BHQK.where(is_valid_H1[..., None], torch.nan)

    tokens_BHQK = weights_BHQK[..., call.first_key :]
    visible_BHQK = allowed_BHQK[..., call.first_key :]
    n_visible_BHQ = visible_BHQK.sum(-1)
    n_used_BHQ = (tokens_BHQK != 0).sum(-1).double().where(is_valid_H1, torch.nan)
    rows_BHQK, exists_BHQ = as_distributions(tokens_BHQK)
    means.add(call, {"density": n_used_BHQ / n_visible_BHQ}, queries_B1Q & (n_visible_BHQ > 0))
    means.add(call, {"entropy": entropies(rows_BHQK)}, queries_B1Q & exists_BHQ)
    if rows_BHQK.shape[1] > 1:
        n_keys_BQ = visible_BHQK.any(1).sum(-1)
        is_counted_BQ = call.queries_BQ & exists_BHQ.all(1)
        for name, base in diversities.items():
            diversity_BQ = jensen_shannon(rows_BHQK, n_keys_BQ, base)
            means.add(call, {name: diversity_BQ[:, None]}, is_counted_BQ)
    if call.first_key:
        shares_BHQK, exists_BHQ = as_distributions(weights_BHQK)
        mass_BHQ = shares_BHQK[..., : call.first_key].sum(-1)
        means.add(call, {"cls_mass": mass_BHQ}, queries_B1Q & exists_BHQ)


def _add_cls_divergence(means: HeadMeans, call: Call) -> None:
    """Add how much the weights of the CLS tokens on the other tokens differ."""
    assert call.weights_BHQK is not None
    allowed_BHQK, of_cls = call.allowed(call.weights_BHQK), slice(call.first_query)
    weights_BHQK = call.weights_BHQK.masked_fill(~allowed_BHQK, 0.0)[:, :, of_cls]
    is_valid_H1 = valid_heads(weights_BHQK, call.attention.distribution_heads())
    tokens_BHQK = weights_BHQK[..., call.first_key :].double()
    rows_BHQK, exists_BHQ = as_distributions(tokens_BHQK.where(is_valid_H1[..., None], torch.nan))
    divergence_BH = jensen_shannon(rows_BHQK.transpose(1, 2), exists_BHQ.sum(2))
    counted_BH1 = exists_BHQ.all(2, keepdim=True)
    means.add(call, {"cls_divergence": divergence_BH[..., None]}, counted_BH1)


class HeadMeans:
    """Running means over queries of any statistic, by layer and head, in float64."""

    def __init__(self) -> None:
        # statistic -> (site, layer) -> sums and numbers of queries, (2, H)
        self._sums: dict[str, dict[tuple[str, int], Tensor]] = {}

    def add(self, place: QueryBlock, stats: Mapping[str, Tensor], counted: Tensor) -> None:
        """Add values (B or 1, H, Q) where `counted`, (B, Q) or (B, H or 1, Q), is True.

        A NaN among them makes the mean of its head NaN: not measured.
        """
        if counted.dim() == 2:
            counted = counted[:, None]
        for name, values_BHQ in stats.items():
            is_counted_BHQ = counted & torch.ones_like(values_BHQ, dtype=torch.bool)
            sum_H = values_BHQ.double().where(is_counted_BHQ, 0.0).sum((0, 2))
            sums = torch.stack((sum_H, is_counted_BHQ.sum((0, 2)).double()))
            layers = self._sums.setdefault(name, {})
            key = place.site, place.layer
            layers[key] = layers[key] + sums if key in layers else sums

    def tables(self, model: Model) -> dict[str, HeadValues]:
        """Return statistic -> site -> layers -> heads."""
        return {
            name: table
            for name, sums in self._sums.items()
            if (table := head_table(model, {place: s[0] / s[1] for place, s in sums.items()}))
        }


def head_table(model: Model, by_layer: dict[tuple[str, int], Tensor]) -> HeadValues:
    """Convert (site, layer) -> values (H,) to a table; non-finite values become None."""
    table: dict[str, list[list[float | None]]] = {}
    for site, layer, _ in model.attentions():
        values = by_layer[site, layer].tolist() if (site, layer) in by_layer else []
        finite = [value if math.isfinite(value) else None for value in values]
        is_any = any(value is not None for value in finite)
        table.setdefault(site, []).append(finite if is_any else [])
    return {site: layers for site, layers in table.items() if any(layers)}

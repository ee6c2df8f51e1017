"""Looking at the heads of a model: what each learned, and how it spreads its weights.

Letters: B batch, H heads, Q queries, K keys, E head width, S source length, T target length.

Results are `site -> one list a layer -> one number a head`. What cannot be measured is absent,
never zero: a head without the statistic is None, a layer without it an empty list, a site
without it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.analysis.diversity import as_distributions, entropies, jensen_shannon
from headwise.analysis.observe import Call, Observation, passes, sound_heads
from headwise.errors import ConfigError
from headwise.track.base import HeadValues

if TYPE_CHECKING:
    from headwise.attention.protocol import Attention
    from headwise.data.batch import Batch
    from headwise.model.family import Model

# Values (B or 1, H, Q) by the names of their statistics, and where they count; see `HeadMeans.add`.
Measures = Iterator[tuple[Mapping[str, Tensor], Tensor]]
RESERVED = ("update", "nonfinite", "role")  # beside statistics in records and on pages
HeadTable = dict[str, list[list[float]]]  # where every head was measured; else `HeadValues`


def alphas(model: Model) -> HeadValues:
    """α of every head that has one of its own (Correia et al. 2019).

    Where α depends on the query, its mean is among `head_statistics`.
    """
    return reported(model).get("alpha", {})


def filled(values: HeadValues, others: HeadValues) -> HeadValues:
    """`values`, and for each head without one that of `others`."""
    table: dict[str, list[list[float | None]]] = {}
    for site in dict.fromkeys((*values, *others)):
        pairs = zip_longest(values.get(site, ()), others.get(site, ()), fillvalue=())
        table[site] = [
            [own if own is not None else other for own, other in zip_longest(layer, of_others)]
            for layer, of_others in pairs
        ]
    return table


def head_statistics(
    model: Model,
    batches: Iterable[Batch],
    device: torch.device,
) -> dict[str, HeadValues]:
    """Statistics of every head, averaged over the queries of all batches.

    Queries and keys are those of real tokens: padding takes no part, and neither do register
    tokens but for the last statistic below.

    - density: the share of the keys a query may see that get a weight other than exactly 0
      (Correia et al. 2019, section 5). What it may see is what padding, causality and the
      pattern leave: in the decoder's self-attention no later position, under a sparse pattern
      only the keys of that pattern.
    - entropy: -Σ p ln p in nats, with p = |w| / Σ |w|. For heads whose weights are distributions
      these are the weights; with registers, the share of each token in what the tokens get. A
      query without any weight is left out.
    - diversity: how much the heads of a layer disagree, `diversity.jensen_shannon` of the same p.
      One number a layer, as if it had one head; queries for which some head has no weight are
      left out, layers of one head have none.
    - output_norm: L2 norm of a head's output, after a gate and before the output projection; of
      every kind of attention.
    - register_mass: share of a query's |w| that lies on register tokens, where there are any.
    - scale: the factor on the scores, where there is one.
    - whatever `Normaliser.query_stats` reports (such as an α that depends on the query), and
      what `Attention.stats` does beside alpha.

    Heads that are declared distributions but have a weight below zero, and weights that are not
    finite, are not measured.

    Args:
        model: left as it was found, training flags included.
        batches: sources with their references, which the decoder reads.
        device: where `model` is.

    Returns:
        statistic -> site -> layers -> heads, without statistics that no head has.
    """
    means = HeadMeans()
    for _, calls in passes(model, batches, device):
        for call in calls:
            add_statistics(means, call, {"diversity": "heads"})
    return {**own_statistics(model), **means.tables(model)}


def reported(model: Model) -> dict[str, HeadValues]:
    """What the attentions report of themselves (`Attention.stats`), α among it.

    Raises:
        ConfigError: other than one number for each head, or a name that means something else.
    """
    found: dict[str, dict[tuple[str, int], Tensor]] = {}
    for site, layer, attention in model.attentions():
        for name, values_H in attention.stats().items():
            _check_reported(attention, name, values_H)
            found.setdefault(name, {})[site, layer] = values_H
    return {name: table for name, of in found.items() if (table := _table(model, of))}


def _check_reported(attention: Attention, name: str, values_H: object) -> None:
    parts = [getattr(attention, part, None) for part in ("gate", "normaliser", "scaling")]
    owners = [part for part in parts if part is not None and name in part.stats()]
    whose = f"stats() of {type([attention, *owners][-1]).__name__} at {attention.place.site}"
    if name in RESERVED:
        raise ConfigError(f"{whose} calls something {name!r}, which is a name of our own")
    wanted = (attention.place.n_heads,)
    shape = tuple(values_H.shape) if isinstance(values_H, Tensor) else None
    if shape == wanted:
        return
    got = repr(values_H) if shape is None else f"of the shape {shape}"
    raise ConfigError(
        f"{whose} must give one number for each head, a tensor of the shape {wanted}; "
        f"{name!r} is {got}"
    )


def own_statistics(model: Model) -> dict[str, HeadValues]:
    """What the attentions report of themselves beside α."""
    return {name: table for name, table in reported(model).items() if name != "alpha"}


def add_statistics(means: HeadMeans, call: Call, diversities: Mapping[str, str]) -> None:
    """Take the statistics of `head_statistics` of one call into `means`.

    Args:
        diversities: name of each kind of diversity wanted -> base of its logarithm.
    """
    means.add(call, _of_queries(call), call.queries_BQ)
    if call.weights_BHQK is not None:
        _add_weights(means, call, diversities)


def _of_queries(call: Call) -> dict[str, Tensor]:
    """Statistics (B or 1, H, Q) that do not come from the weights."""
    found = {name: values[..., call.first_query :] for name, values in call.of_queries.items()}
    if call.joined_BQI is not None:
        place, joined_BQI = call.attention.place, call.joined_BQI[:, call.first_query :].double()
        by_head_BQHE = joined_BQI.view(*joined_BQI.shape[:2], place.n_heads, place.head_dim)
        found["output_norm"] = by_head_BQHE.norm(dim=-1).transpose(1, 2)
    return found


def _add_weights(means: HeadMeans, call: Call, diversities: Mapping[str, str]) -> None:
    """Statistics of the weights, of heads that are what they say."""
    assert call.weights_BHQK is not None
    queries_B1Q = call.queries_BQ[:, None]
    allowed_BHQK = call.allowed(call.weights_BHQK)[:, :, call.first_query :]
    weights_BHQK = call.weights_BHQK[:, :, call.first_query :].double()
    weights_BHQK = weights_BHQK.masked_fill(~(allowed_BHQK & queries_B1Q[..., None]), 0.0)
    is_sound_H1 = sound_heads(weights_BHQK, call.attention.distribution_heads())
    weights_BHQK = weights_BHQK.where(is_sound_H1[..., None], torch.nan)

    tokens_BHQK = weights_BHQK[..., call.first_key :]
    seen_BHQK = allowed_BHQK[..., call.first_key :]
    n_seen_BHQ = seen_BHQK.sum(-1)
    n_used_BHQ = (tokens_BHQK != 0).sum(-1).double().where(is_sound_H1, torch.nan)
    rows_BHQK, exists_BHQ = as_distributions(tokens_BHQK)
    means.add(call, {"density": n_used_BHQ / n_seen_BHQ}, queries_B1Q & (n_seen_BHQ > 0))
    means.add(call, {"entropy": entropies(rows_BHQK)}, queries_B1Q & exists_BHQ)
    if rows_BHQK.shape[1] > 1:
        n_keys_BQ = seen_BHQK.any(1).sum(-1)
        is_counted_BQ = call.queries_BQ & exists_BHQ.all(1)
        for name, base in diversities.items():
            diversity_BQ = jensen_shannon(rows_BHQK, n_keys_BQ, base)
            means.add(call, {name: diversity_BQ[:, None]}, is_counted_BQ)
    if call.first_key:
        shares_BHQK, exists_BHQ = as_distributions(weights_BHQK)
        mass_BHQ = shares_BHQK[..., : call.first_key].sum(-1)
        means.add(call, {"register_mass": mass_BHQ}, queries_B1Q & exists_BHQ)


class HeadMeans:
    """Running means over queries of any statistic, by layer and head, in float64."""

    def __init__(self) -> None:
        # statistic -> (site, layer) -> sums and numbers of queries, (2, H)
        self._sums: dict[str, dict[tuple[str, int], Tensor]] = {}

    def add(self, place: Call | Observation, found: Mapping[str, Tensor], counted: Tensor) -> None:
        """Take in values (B or 1, H, Q) where `counted`, (B, Q) or (B, H or 1, Q), is True.

        A value that is NaN there makes its head one that was not measured.
        """
        if counted.dim() == 2:
            counted = counted[:, None]
        for name, values_BHQ in found.items():
            is_in_BHQ = counted & torch.ones_like(values_BHQ, dtype=torch.bool)
            sum_H = values_BHQ.double().where(is_in_BHQ, 0.0).sum((0, 2))
            sums = torch.stack((sum_H, is_in_BHQ.sum((0, 2)).double()))
            layers = self._sums.setdefault(name, {})
            key = place.site, place.layer
            layers[key] = layers[key] + sums if key in layers else sums

    def tables(self, model: Model) -> dict[str, HeadValues]:
        """Every statistic as a table."""
        return {
            name: table
            for name, sums in self._sums.items()
            if (table := _table(model, {place: s[0] / s[1] for place, s in sums.items()}))
        }


def _table(model: Model, found: dict[tuple[str, int], Tensor]) -> HeadValues:
    """Values a head by place; what is not finite was not measured."""
    table: dict[str, list[list[float | None]]] = {}
    for site, layer, _ in model.attentions():
        values = found[site, layer].tolist() if (site, layer) in found else []
        known = [value if math.isfinite(value) else None for value in values]
        is_any = any(value is not None for value in known)
        table.setdefault(site, []).append(known if is_any else [])
    return {site: layers for site, layers in table.items() if any(layers)}

"""Looking at the heads of a model: what each learned, and how it spreads its weights.

Letters: B batch, H heads, Q queries, K keys, E head width, S source length, T target length.

Results are `site -> one list a layer -> one number a head`. What cannot be measured is absent,
never zero: a head without the statistic is None, a layer without it an empty list, a site
without it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.analysis.diversity import BASES, as_distributions, entropies, jensen_shannon
from headwise.attention.base import Attention, AttentionOutput, Mask, Normaliser, Scaling
from headwise.attention.heads import MultiHeadAttention
from headwise.errors import refuse
from headwise.track.base import HeadValues

if TYPE_CHECKING:
    from headwise.data.batching import Batch
    from headwise.model.transformer import Transformer

PARTS = ("normaliser", "scaling")  # attributes of an attention, where it has them
HeadTable = dict[str, list[list[float]]]  # where every head was measured; else `HeadValues`


def alphas(model: Transformer) -> HeadValues:
    """α of every head that has one of its own (Correia et al. 2019, section 3).

    Where α depends on the query, its mean is among `head_statistics`.
    """
    return _own_statistics(model).get("alpha", {})


def head_statistics(
    model: Transformer,
    batches: Iterable[Batch],
    device: torch.device,
    diversity_base: str = "heads",
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
        diversity_base: "heads" or "keys"; see `diversity.jensen_shannon`.

    Returns:
        statistic -> site -> layers -> heads, without statistics that no head has.
    """
    if diversity_base not in BASES:
        raise refuse("diversity_base", diversity_base, BASES)
    means = _Means()
    with _evaluating(model), torch.no_grad(), _listening(model) as calls:
        for batch in batches:
            batch = batch.to(device)
            model(batch.source_BS, batch.source_lengths_B, batch.target_in_BT, need_weights=True)
            for call in calls:
                seen = _Seen.of(call, batch, model.n_registers)
                means.add(call, _of_queries(call, seen), seen.queries_BQ)
                if call.weights_BHQK is not None:
                    _add_weights(means, call, seen, diversity_base)
            calls.clear()
    own = _own_statistics(model)
    own.pop("alpha", None)
    return {**own, **means.tables(model)}


@dataclass
class _Call:
    """One pass of one attention, as its hooks heard it.

    Attributes:
        joined_BQI: outputs of the heads side by side, (B, Q, H * E).
        of_queries: what differs between queries, (B or 1, H, Q).
    """

    site: str
    layer: int
    attention: Attention
    mask: Mask
    weights_BHQK: Tensor | None = None
    joined_BQI: Tensor | None = None
    of_queries: dict[str, Tensor] = field(default_factory=dict)

    def allowed(self, weights_BHQK: Tensor) -> Tensor:
        """True where a query may see a key, (B, H, Q, K)."""
        pattern = getattr(self.attention, "pattern", None)
        mask = self.mask if pattern is None else self.mask.restricted(pattern)
        n_queries, n_keys = weights_BHQK.shape[-2:]
        dense = mask.dense(n_queries, n_keys, weights_BHQK.device)
        if dense is None:
            return torch.ones_like(weights_BHQK, dtype=torch.bool)
        return dense.expand_as(weights_BHQK)


@contextmanager
def _listening(model: Transformer) -> Iterator[list[_Call]]:
    """The calls of the model's attentions, in a list that grows with each pass."""
    calls: list[_Call] = []

    def begin(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        site, layer = places[attention]
        mask = kwargs["mask"] if "mask" in kwargs else args[3]
        calls.append(_Call(site, layer, attention, mask))

    def end(attention: Any, args: tuple[Any, ...], output: AttentionOutput) -> None:
        calls[-1].weights_BHQK = output.weights_BHQK

    # what calls a part is the attention that began last, also where places share the part
    def normalise(normaliser: Any, args: tuple[Any, ...], weights: Tensor) -> None:
        calls[-1].of_queries.update(normaliser.query_stats(args[1]))

    def scale(scaling: Any, args: tuple[Any, ...], factor: Tensor) -> None:
        calls[-1].of_queries["scale"] = factor.squeeze(-1)

    def join(output: Any, args: tuple[Any, ...]) -> None:
        calls[-1].joined_BQI = args[0]

    places = {attention: (site, layer) for site, layer, attention in model.attentions()}
    parts = {getattr(attention, name, None) for attention in places for name in PARTS}
    with ExitStack() as hooks:
        for attention in places:
            hooks.enter_context(attention.register_forward_pre_hook(begin, with_kwargs=True))
            hooks.enter_context(attention.register_forward_hook(end))
            if isinstance(attention, MultiHeadAttention):
                hooks.enter_context(attention.output.register_forward_pre_hook(join))
        for part in parts:
            if isinstance(part, Normaliser):
                hooks.enter_context(part.register_forward_hook(normalise))
            elif isinstance(part, Scaling):
                hooks.enter_context(part.register_forward_hook(scale))
        yield calls


@dataclass(frozen=True)
class _Seen:
    """Which positions of one call are tokens.

    Attributes:
        queries_BQ: True at queries that are no padding, register queries already left out.
        first_query, first_key: numbers of register tokens in front.
    """

    queries_BQ: Tensor
    first_query: int
    first_key: int

    @classmethod
    def of(cls, call: _Call, batch: Batch, n_registers: int) -> _Seen:
        """Of the site of `call`."""
        of_source = call.site == "encoder_self"
        ids_BN = batch.source_BS if of_source else batch.target_in_BT
        lengths_B = batch.source_lengths_B if of_source else batch.target_lengths_B
        positions = torch.arange(ids_BN.shape[1], device=ids_BN.device)
        return cls(
            positions < lengths_B[:, None],
            n_registers if of_source else 0,
            0 if call.site == "decoder_self" else n_registers,
        )


def _of_queries(call: _Call, seen: _Seen) -> dict[str, Tensor]:
    """Statistics (B or 1, H, Q) that do not come from the weights."""
    found = {name: values[..., seen.first_query :] for name, values in call.of_queries.items()}
    if call.joined_BQI is not None:
        place, joined_BQI = call.attention.place, call.joined_BQI[:, seen.first_query :].double()
        by_head_BQHE = joined_BQI.view(*joined_BQI.shape[:2], place.n_heads, place.head_dim)
        found["output_norm"] = by_head_BQHE.norm(dim=-1).transpose(1, 2)
    return found


def _add_weights(means: _Means, call: _Call, seen: _Seen, diversity_base: str) -> None:
    """Statistics of the weights, of heads that are what they say."""
    assert call.weights_BHQK is not None
    queries_B1Q = seen.queries_BQ[:, None]
    allowed_BHQK = call.allowed(call.weights_BHQK)[:, :, seen.first_query :]
    weights_BHQK = call.weights_BHQK[:, :, seen.first_query :].double()
    weights_BHQK = weights_BHQK.masked_fill(~(allowed_BHQK & queries_B1Q[..., None]), 0.0)
    may_be_negative_H = ~torch.tensor(call.attention.distribution_heads())
    is_sound_BHQK = (weights_BHQK >= 0) | may_be_negative_H.to(weights_BHQK.device)[:, None, None]
    is_sound_H11 = (is_sound_BHQK & weights_BHQK.isfinite()).all(3).all(2).all(0)[:, None]
    weights_BHQK = weights_BHQK.where(is_sound_H11[..., None], torch.nan)

    tokens_BHQK = weights_BHQK[..., seen.first_key :]
    seen_BHQK = allowed_BHQK[..., seen.first_key :]
    n_seen_BHQ = seen_BHQK.sum(-1)
    n_used_BHQ = (tokens_BHQK != 0).sum(-1).double().where(is_sound_H11, torch.nan)
    rows_BHQK, exists_BHQ = as_distributions(tokens_BHQK)
    means.add(call, {"density": n_used_BHQ / n_seen_BHQ}, queries_B1Q & (n_seen_BHQ > 0))
    means.add(call, {"entropy": entropies(rows_BHQK)}, queries_B1Q & exists_BHQ)
    if rows_BHQK.shape[1] > 1:
        n_keys_BQ = seen_BHQK.any(1).sum(-1)
        diversity_BQ = jensen_shannon(rows_BHQK, n_keys_BQ, diversity_base)
        is_counted_BQ = seen.queries_BQ & exists_BHQ.all(1)
        means.add(call, {"diversity": diversity_BQ[:, None]}, is_counted_BQ)
    if seen.first_key:
        shares_BHQK, exists_BHQ = as_distributions(weights_BHQK)
        mass_BHQ = shares_BHQK[..., : seen.first_key].sum(-1)
        means.add(call, {"register_mass": mass_BHQ}, queries_B1Q & exists_BHQ)


class _Means:
    """Running means over queries of every statistic, layer and head, in float64."""

    def __init__(self) -> None:
        # statistic -> (site, layer) -> sums and numbers of queries, (2, H)
        self._sums: dict[str, dict[tuple[str, int], Tensor]] = {}

    def add(self, call: _Call, found: dict[str, Tensor], counted: Tensor) -> None:
        """Take in values (B or 1, H, Q) where `counted`, (B, Q) or (B, H or 1, Q), is True."""
        if counted.dim() == 2:
            counted = counted[:, None]
        for name, values_BHQ in found.items():
            is_in_BHQ = counted & torch.ones_like(values_BHQ, dtype=torch.bool)
            sum_H = values_BHQ.double().where(is_in_BHQ, 0.0).sum((0, 2))
            sums = torch.stack((sum_H, is_in_BHQ.sum((0, 2)).double()))
            layers = self._sums.setdefault(name, {})
            place = call.site, call.layer
            layers[place] = layers[place] + sums if place in layers else sums

    def tables(self, model: Transformer) -> dict[str, HeadValues]:
        """Every statistic as a table."""
        return {
            name: table
            for name, sums in self._sums.items()
            if (table := _table(model, {place: s[0] / s[1] for place, s in sums.items()}))
        }


def _own_statistics(model: Transformer) -> dict[str, HeadValues]:
    """What the attentions report of themselves."""
    found: dict[str, dict[tuple[str, int], Tensor]] = {}
    for site, layer, attention in model.attentions():
        for name, values_H in attention.stats().items():
            found.setdefault(name, {})[site, layer] = values_H
    return {name: table for name, of in found.items() if (table := _table(model, of))}


def _table(model: Transformer, found: dict[tuple[str, int], Tensor]) -> HeadValues:
    """Values a head by place; what is not finite was not measured."""
    table: dict[str, list[list[float | None]]] = {}
    for site, layer, _ in model.attentions():
        values = found[site, layer].tolist() if (site, layer) in found else []
        known = [value if math.isfinite(value) else None for value in values]
        is_any = any(value is not None for value in known)
        table.setdefault(site, []).append(known if is_any else [])
    return {site: layers for site, layers in table.items() if any(layers)}


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each module in the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode

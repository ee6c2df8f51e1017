"""Record the attention weights of a model during its forward pass.

Axes: B batch, H heads, Q queries, K keys, E head width, S source length, T target length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.attention.heads import MultiHeadAttention
from headwise.attention.mask import Mask
from headwise.attention.parts import Normaliser, Scaling
from headwise.attention.place import Site
from headwise.attention.protocol import Attention
from headwise.attention.recorder import recording
from headwise.model.family import evaluating

if TYPE_CHECKING:
    from headwise.data.batch import Batch
    from headwise.model.family import Model

PARTS = ("normaliser", "scaling")  # optional attributes of an attention
TIE = 1e-4  # relative difference below which two weights count as equal


@dataclass(frozen=True)
class Observation:
    """The weights of one attention on a batch, register tokens excluded.

    Attributes:
        site: name of the site.
        queries: column of the batch that the queries come from.
        keys: column of the batch that the keys come from.
        layer: number of the layer, from 1.
        head_numbers: numbers of its heads in the unpruned model.
        weights_BHQK: as applied to the values; 0 at masked keys and at padding queries. In the
            decoder's self-attention query t is the input of step t: the begin-of-sentence token,
            then the target tokens.
        allowed_BHQK: True where a query of a real token may attend to a key.
        queries_BQ: True at real tokens.
        distribution_heads: whether the rows of each head are declared non-negative with sum 1,
            register tokens included.
    """

    site: str
    queries: str
    keys: str
    layer: int
    head_numbers: tuple[int, ...]
    weights_BHQK: Tensor
    allowed_BHQK: Tensor
    queries_BQ: Tensor
    distribution_heads: tuple[bool, ...]

    @property
    def is_self(self) -> bool:
        """Whether queries and keys come from the same column."""
        return self.queries == self.keys

    @cached_property
    def is_valid_H1(self) -> Tensor:
        """See `valid_heads`."""
        return valid_heads(self.weights_BHQK, self.distribution_heads)

    @cached_property
    def shares_BHQK(self) -> Tensor:
        """The weights of heads that are distributions, else |w| / Σ |w|.

        Zeros at invalid heads.
        """
        weights = self.weights_BHQK.where(self.is_valid_H1[..., None], 0.0)
        is_distribution_H = torch.tensor(self.distribution_heads, device=weights.device)
        if bool(is_distribution_H.all()):
            return weights
        magnitude = weights.abs()
        total = magnitude.sum(-1, keepdim=True)
        return weights.where(
            is_distribution_H[:, None, None], magnitude / total.where(total != 0, 1.0)
        )

    @cached_property
    def peaks_BHQ(self) -> Tensor:
        """The key with the largest share of each query; -1 for a tie or a row of zeros."""
        best = self.shares_BHQK.topk(min(2, self.shares_BHQK.shape[-1]), dim=-1)
        largest_BHQ = best.values[..., 0]
        second_BHQ = best.values[..., 1] if best.values.shape[-1] > 1 else 0.0 * largest_BHQ
        # equal weights can differ by rounding
        is_unique = largest_BHQ > (1 + TIE) * second_BHQ
        return best.indices[..., 0].where(is_unique, -1)

    def measured(self, values_BHQ: Tensor) -> Tensor:
        """Return the values, NaN at invalid heads."""
        return values_BHQ.double().where(self.is_valid_H1, torch.nan)


def valid_heads(weights_BHQK: Tensor, distribution_heads: Sequence[bool]) -> Tensor:
    """Return (H, 1): False at heads with non-finite weights, or negative ones in distributions."""
    may_be_negative_H = ~torch.tensor(distribution_heads, device=weights_BHQK.device)
    is_valid_BHQK = (weights_BHQK >= 0) | may_be_negative_H[:, None, None]
    return (is_valid_BHQK & weights_BHQK.isfinite()).all(3).all(2).all(0)[:, None]


def observations(
    model: Model, batches: Iterable[Batch], device: torch.device
) -> Iterator[tuple[Batch, list[Observation]]]:
    """Yield every batch with the observations of all attentions that form weights.

    The forward pass runs in evaluation mode; the training mode is restored afterwards.

    Args:
        model: on `device`.
        batches: sources with references, which the decoder reads.
        device: device of `model` and of the yielded tensors.
    """
    for batch, calls in passes(model, batches, device):
        yield (
            batch,
            [observation(call) for call in calls if call.weights_BHQK is not None],
        )


def passes(
    model: Model, batches: Iterable[Batch], device: torch.device
) -> Iterator[tuple[Batch, list[Call]]]:
    """Yield every batch with the calls of all attentions; see `observations`."""
    for batch in batches:
        batch = batch.to(device)
        with evaluating(model), torch.no_grad(), recorded_calls(model, batch) as calls:
            model(**model.inputs(batch))
        yield batch, calls
        calls.clear()  # hold one batch at a time


def observation(call: Call) -> Observation:
    """Return the observation of a call that recorded weights."""
    assert call.weights_BHQK is not None
    allowed_BHQK = call.allowed(call.weights_BHQK)[:, :, call.first_query :, call.first_key :]
    allowed_BHQK = allowed_BHQK & call.queries_BQ[:, None, :, None]
    weights_BHQK = call.weights_BHQK[:, :, call.first_query :, call.first_key :]
    return Observation(
        call.site,
        call.queries,
        call.keys,
        call.layer,
        call.attention.place.head_numbers,
        weights_BHQK.masked_fill(~allowed_BHQK, 0.0),
        allowed_BHQK,
        call.queries_BQ,
        call.attention.distribution_heads(),
    )


@dataclass
class Call:
    """One call of one attention, as its recorder and hooks report it.

    Attributes:
        queries_BQ: True at real tokens, register queries excluded.
        first_query, first_key: numbers of register tokens before the first token.
        joined_BQI: concatenated outputs of the heads, (B, Q, H * E).
        query_stats: statistics that differ between queries, (B or 1, H, Q).
    """

    site: str
    queries: str
    keys: str
    layer: int
    attention: Attention
    mask: Mask
    queries_BQ: Tensor
    first_query: int
    first_key: int
    weights_BHQK: Tensor | None = None
    joined_BQI: Tensor | None = None
    query_stats: dict[str, Tensor] = field(default_factory=dict)

    def allowed(self, weights_BHQK: Tensor) -> Tensor:
        """Return (B, H, Q, K): True where a query may attend to a key."""
        pattern = getattr(self.attention, "pattern", None)
        mask = self.mask if pattern is None else self.mask.restricted(pattern)
        n_queries, n_keys = weights_BHQK.shape[-2:]
        dense = mask.dense(n_queries, n_keys, weights_BHQK.device)
        if dense is None:
            return torch.ones_like(weights_BHQK, dtype=torch.bool)
        return dense.expand_as(weights_BHQK)


@contextmanager
def recorded_calls(model: Model, batch: Batch) -> Iterator[list[Call]]:
    """Append every call of the model's attentions on a batch to the returned list."""
    calls: list[Call] = []

    def begin(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name, layer = places[attention]
        mask = kwargs["mask"] if "mask" in kwargs else args[3]
        tokens = _tokens(sites[name], batch, model)
        site = sites[name]
        calls.append(Call(name, site.queries, site.keys, layer, attention, mask, *tokens))

    def record(attention: Attention, weights_BHQK: Tensor) -> None:
        calls[-1].weights_BHQK = weights_BHQK

    # attentions can share a part: its values belong to the attention called last
    def normalise(normaliser: Any, args: tuple[Any, ...], weights: Tensor) -> None:
        calls[-1].query_stats.update(normaliser.query_stats(args[1]))

    def scale(scaling: Any, args: tuple[Any, ...], factor: Tensor) -> None:
        calls[-1].query_stats["scale"] = factor.squeeze(-1)

    def join(output: Any, args: tuple[Any, ...]) -> None:
        calls[-1].joined_BQI = args[0]

    sites = {site.name: site for site in model.sites}
    places = {attention: (site, layer) for site, layer, attention in model.attentions()}
    parts = {getattr(attention, name, None) for attention in places for name in PARTS}
    with ExitStack() as hooks:
        hooks.enter_context(recording(model, record))
        for attention in places:
            hooks.enter_context(attention.register_forward_pre_hook(begin, with_kwargs=True))
            if isinstance(attention, MultiHeadAttention):
                hooks.enter_context(attention.output.register_forward_pre_hook(join))
        for part in parts:
            if isinstance(part, Normaliser):
                hooks.enter_context(part.register_forward_hook(normalise))
            elif isinstance(part, Scaling):
                hooks.enter_context(part.register_forward_hook(scale))
        yield calls


def _tokens(site: Site, batch: Batch, model: Model) -> tuple[Tensor, int, int]:
    """Return the mask of real queries, and the numbers of registers before queries and keys."""
    is_real_BQ = batch.columns[site.queries].is_real_BN
    return is_real_BQ, model.n_prefix(site.queries), model.n_prefix(site.keys)

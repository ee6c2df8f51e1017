"""Record the attention weights of a model during its forward pass.

Long sequences are computed in blocks of queries, so that their weights are never in memory at once.

Axes: B batch, H heads, Q queries, K keys, E head width, S source length, T target length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.attention.attention import Attention, MultiHeadAttention
from headwise.attention.cache import AttentionCache
from headwise.attention.mask import Mask
from headwise.attention.normaliser import Normaliser, Scaling
from headwise.attention.recorder import recording
from headwise.model.family import evaluating

if TYPE_CHECKING:
    from headwise.data.batch import Batch
    from headwise.model.family import Model

PARTS = ("normaliser", "scaling")  # optional attributes of an attention
TIE = 1e-4  # relative difference below which two weights count as equal
# Sequences of more than MAX_QUERIES are computed in blocks of about MAX_WEIGHTS, of all rows and
# heads together, and of at least MIN_QUERIES.
MAX_QUERIES, MAX_WEIGHTS, MIN_QUERIES = 1024, 2**23, 64


@dataclass
class QueryBlock:
    """One block of queries of one attention on a batch, all queries of short sequences.

    Attributes:
        site: name of the site.
        queries: column of the batch that the queries come from.
        keys: column of the batch that the keys come from.
        layer: number of the layer, from 1.
        queries_BQ: True at real tokens.
        first: number of the first query.
        is_last: whether no block of queries follows.
        parts: of `Observation.whole`, by name.
    """

    site: str
    queries: str
    keys: str
    layer: int
    queries_BQ: Tensor
    first: int = 0
    is_last: bool = True
    parts: dict[str, list[Tensor]] = field(default_factory=dict)


@dataclass(kw_only=True)
class Observation(QueryBlock):
    """The weights of one attention on a batch, CLS tokens excluded by default.

    In long sequences, of one block of queries; causal attention then ends at the last of them.

    Attributes:
        head_numbers: numbers of its heads in the unpruned model.
        weights_BHQK: as applied to the values; 0 at masked keys and at padding queries. In the
            decoder's self-attention query t is the input of step t: the begin-of-sentence token,
            then the target tokens.
        allowed_BHQK: True where a query of a real token may attend to a key.
        distribution_heads: whether the rows of each head are declared non-negative with sum 1,
            CLS tokens included.
    """

    head_numbers: tuple[int, ...]
    weights_BHQK: Tensor
    allowed_BHQK: Tensor
    distribution_heads: tuple[bool, ...]

    def of_queries(self, values_BN: Tensor) -> Tensor:
        """Select the values of the queries."""
        return values_BN[:, self.first : self.first + self.weights_BHQK.shape[2]]

    def of_keys(self, values_BN: Tensor) -> Tensor:
        """Select the values of the keys."""
        return values_BN[:, : self.weights_BHQK.shape[3]]

    def whole(self, name: str, values_BHQ: Tensor) -> Tensor | None:
        """Return the values of all blocks of queries at the last one, before it None."""
        self.parts.setdefault(name, []).append(values_BHQ)
        return torch.cat(self.parts.pop(name), 2) if self.is_last else None

    @property
    def is_self(self) -> bool:
        """Whether queries and keys come from the same column."""
        return self.queries == self.keys

    @cached_property
    def is_valid_H1(self) -> Tensor:
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


OnBlock = Callable[["Batch", "Call"], None]


def for_each_block(
    model: Model, batches: Iterable[Batch], device: torch.device, on_block: OnBlock
) -> None:
    """Call `on_block` with every batch and call of an attention, in order, during the forward pass.

    The forward pass runs in evaluation mode; the training mode is restored afterwards.

    Args:
        model: on `device`.
        batches: sources with references, which the decoder reads.
        device: device of `model` and of the batches that `on_block` gets.
        on_block: called for each block of queries; see `MAX_QUERIES`.
    """
    for batch in batches:
        batch = batch.to(device)
        with evaluating(model), torch.no_grad(), hooked(model, batch, on_block):
            model(**model.inputs(batch))


def observations(
    model: Model,
    batches: Iterable[Batch],
    device: torch.device,
    queries: Sequence[int] | None = None,
    with_cls: bool = False,
) -> Iterator[tuple[Batch, list[Observation]]]:
    """Yield every batch with the observations of all attentions that form weights.

    Args:
        model: see `for_each_block`.
        batches: see `for_each_block`.
        device: see `for_each_block`.
        queries: numbers of the queries to observe; all by default.
        with_cls: include the CLS tokens of self-attention: the first queries and keys.
    """
    for batch in batches:
        blocks: dict[tuple[str, int], list[Observation]] = {}

        def on_block(batch: Batch, call: Call, blocks: Any = blocks) -> None:
            if call.weights_BHQK is not None:
                n_keys = batch.columns[call.keys].ids_BN.shape[1] + with_cls * call.first_key
                rows = _rows(observation(call, with_cls), queries, n_keys)
                blocks.setdefault((call.site, call.layer), []).append(rows)

        for_each_block(model, [batch], device, on_block)
        yield batch.to(device), [_joined(parts) for parts in blocks.values()]


def _rows(obs: Observation, queries: Sequence[int] | None, n_keys: int) -> Observation:
    """Keep some queries, or all; keys after a block are masked."""
    n_queries, missing = obs.weights_BHQK.shape[2], (0, n_keys - obs.weights_BHQK.shape[3])
    if queries is None and not any(missing):
        return obs
    numbers = range(obs.first, obs.first + n_queries)
    rows = [i for i, number in enumerate(numbers) if queries is None or number in queries]
    weights, allowed = (
        pad(values[:, :, rows], missing) for values in (obs.weights_BHQK, obs.allowed_BHQK)
    )
    is_real = obs.queries_BQ[:, rows]
    return replace(obs, weights_BHQK=weights, allowed_BHQK=allowed, queries_BQ=is_real)


def _joined(blocks: Sequence[Observation]) -> Observation:
    """Join blocks of queries."""
    if len(blocks) == 1:
        return blocks[0]
    axes = {"weights_BHQK": 2, "allowed_BHQK": 2, "queries_BQ": 1}
    joined: Any = {n: torch.cat([getattr(b, n) for b in blocks], axis) for n, axis in axes.items()}
    return replace(blocks[0], **joined)


def observation(call: Call, with_cls: bool = False) -> Observation:
    """Return the observation of a call that recorded weights; see `observations`."""
    assert call.weights_BHQK is not None
    first = (0, 0) if with_cls else (call.first_query, call.first_key)
    queries_BQ = pad(call.queries_BQ, (call.first_query - first[0], 0), value=True)
    allowed_BHQK = call.allowed(call.weights_BHQK)[:, :, first[0] :, first[1] :]
    allowed_BHQK = allowed_BHQK & queries_BQ[:, None, :, None]
    weights_BHQK = call.weights_BHQK[:, :, first[0] :, first[1] :]
    block = {part.name: getattr(call, part.name) for part in fields(QueryBlock)}
    if with_cls:
        block["first"] += call.first_key - call.first_query
    return Observation(
        **block | {"queries_BQ": queries_BQ},
        head_numbers=call.attention.place.head_numbers,
        weights_BHQK=weights_BHQK.masked_fill(~allowed_BHQK, 0.0),
        allowed_BHQK=allowed_BHQK,
        distribution_heads=call.attention.distribution_heads(),
    )


@dataclass(kw_only=True)
class Call(QueryBlock):
    """One block of queries of one attention, as its recorder and hooks report it.

    Attributes:
        queries_BQ: without the queries of CLS tokens.
        mask: of the block.
        first_query, first_key: numbers of CLS tokens before the first token.
        joined_BQI: concatenated outputs of the heads, (B, Q, H * E).
        query_stats: statistics that differ between queries, (B or 1, H, Q).
    """

    attention: Attention
    mask: Mask
    first_query: int = 0
    first_key: int = 0
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
def hooked(model: Model, batch: Batch, on_block: OnBlock) -> Iterator[None]:
    """Call `on_block` with every block of queries of the model's attentions on a batch."""
    calls: list[Call] = []  # the current one
    sites = {site.name: site for site in model.sites}
    places = {attention: (sites[name], layer) for name, layer, attention in model.attentions()}

    def observed(attention: Attention, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        site, layer = places[attention]
        n_before = model.n_prefix(site.queries), model.n_prefix(site.keys)
        is_real_BN = batch.columns[site.queries].is_real_BN

        def in_blocks(
            query_BQD: Tensor,
            key_BKD: Tensor,
            value_BKD: Tensor,
            mask: Mask,
            cache: AttentionCache | None = None,
        ) -> Tensor:
            parts: dict[str, list[Tensor]] = {}
            contexts, n = [], query_BQD.shape[1]
            for start, end in _blocks(attention, query_BQD, key_BKD):
                states = query_BQD, key_BKD, value_BKD
                if end - start < n:
                    keys = slice(end if mask.causal else None)
                    states = query_BQD[:, start:end], key_BKD[:, keys], value_BKD[:, keys]
                block = replace(mask, query_offset=start) if end - start < n else mask
                first, n_cls = max(0, start - n_before[0]), max(0, n_before[0] - start)
                call = Call(
                    site.name, site.queries, site.keys, layer,
                    is_real_BN[:, first : max(0, end - n_before[0])], first, end == n, parts,
                    attention=attention, mask=block, first_query=n_cls, first_key=n_before[1],
                )  # fmt: skip
                calls[:] = [call]
                contexts.append(forward(*states, block, cache))
                on_block(batch, calls.pop())
            return torch.cat(contexts, 1) if len(contexts) > 1 else contexts[0]

        return in_blocks

    def record(attention: Attention, weights_BHQK: Tensor) -> None:
        calls[-1].weights_BHQK = weights_BHQK

    # attentions can share a part: its values belong to the attention called last
    def normalise(normaliser: Any, args: tuple[Any, ...], weights: Tensor) -> None:
        calls[-1].query_stats.update(normaliser.query_stats(args[1]))

    def scale(scaling: Any, args: tuple[Any, ...], factor: Tensor) -> None:
        calls[-1].query_stats["scale"] = factor.squeeze(-1)

    def join(output: Any, args: tuple[Any, ...]) -> None:
        calls[-1].joined_BQI = args[0]

    observed_parts = {getattr(attention, name, None) for attention in places for name in PARTS}
    with ExitStack() as hooks:
        hooks.enter_context(recording(model, record))
        for attention in places:
            hooks.callback(attention.__dict__.pop, "forward", None)
            attention.__dict__["forward"] = observed(attention, attention.forward)
            if isinstance(attention, MultiHeadAttention):
                hooks.enter_context(attention.output.register_forward_pre_hook(join))
        for part in observed_parts:
            if isinstance(part, Normaliser):
                hooks.enter_context(part.register_forward_hook(normalise))
            elif isinstance(part, Scaling):
                hooks.enter_context(part.register_forward_hook(scale))
        yield


def _blocks(attention: Attention, query_BQD: Tensor, key_BKD: Tensor) -> list[tuple[int, int]]:
    """Return the blocks [start, end) of queries that are computed together."""
    n_rows, n, _ = query_BQD.shape
    per_query = n_rows * max(1, attention.place.n_heads) * key_BKD.shape[1]
    size = n if n <= MAX_QUERIES else max(MIN_QUERIES, MAX_WEIGHTS // per_query)
    return [(start, min(start + size, n)) for start in range(0, n, max(1, size))]

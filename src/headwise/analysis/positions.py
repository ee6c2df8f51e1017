"""Heads that attend to a fixed offset (Voita et al. 2019, section 5.1; Correia et al. 2019).

The end-of-sentence token is excluded as a query, as the key at an offset and from the confidence.
It stays a candidate for the largest weight of a query. Queries with a single visible key are
excluded.

Axes: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from headwise.analysis.collect import Measures
from headwise.analysis.observe import Observation

if TYPE_CHECKING:
    from headwise.data.batch import Batch


def counted_queries(obs: Observation, batch: Batch) -> Tensor:
    """Return (B, H, Q): True at tokens with two or more visible keys, except ends of sentences."""
    queries_BQ = obs.queries_BQ
    if obs.is_self:
        queries_BQ = queries_BQ & ~obs.of_queries(batch.columns[obs.queries].is_end_BN)
    return queries_BQ[:, None] & (obs.allowed_BHQK.sum(-1) > 1)


def positions(batch: Batch, obs: Observation, offsets: Iterable[int]) -> Measures:
    """Yield the confidence of each head, and its share and weight at each offset o.

    - confidence: mean largest weight on a token.
    - share<o>: of the queries for which offset o is in the sentence, the share with their
      largest weight there. A tie counts for no key.
    - weight<o>: mean weight at o of the same queries.
    - exists<o>: share of the queries for which o is in the sentence.
    """
    counted_BHQ = counted_queries(obs, batch)
    yield {"confidence": _confidence(obs, batch)}, counted_BHQ
    if not obs.is_self:
        return
    ends_BK = obs.of_keys(batch.columns[obs.keys].is_end_BN)
    allowed_BHQK = obs.allowed_BHQK & ~ends_BK[:, None, None]
    queries_Q = torch.arange(allowed_BHQK.shape[2], device=allowed_BHQK.device) + obs.first
    for offset in offsets:
        exists_BHQ = counted_BHQ & at_offset(allowed_BHQK, obs.first + offset)
        share_BHQ = obs.measured(obs.peaks_BHQ == queries_Q + offset)
        weight_BHQ = obs.measured(at_offset(obs.shares_BHQK, obs.first + offset))
        yield {f"share{offset}": share_BHQ, f"weight{offset}": weight_BHQ}, exists_BHQ
        yield {f"exists{offset}": exists_BHQ.double()}, counted_BHQ


def _confidence(obs: Observation, batch: Batch) -> Tensor:
    ends_BK = obs.of_keys(batch.columns[obs.keys].is_end_BN)
    shares_BHQK = obs.shares_BHQK.masked_fill(ends_BK[:, None, None], 0.0)
    return obs.measured(shares_BHQK.amax(-1))


def at_offset(values_BHQK: Tensor, offset: int) -> Tensor:
    """Return the value of each query at key q + offset, (B, H, Q); 0 without such a key."""
    n_queries = values_BHQK.shape[2]
    if offset <= -n_queries or offset >= values_BHQK.shape[3]:
        return torch.zeros_like(values_BHQK[..., 0])
    diagonal_BHN = torch.diagonal(values_BHQK, offset, 2, 3)
    before = max(0, -offset)
    return functional.pad(diagonal_BHN, (before, n_queries - before - diagonal_BHN.shape[-1]))

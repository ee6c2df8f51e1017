"""Heads that attend to the rarest token of a sentence (after Voita et al. 2019, section 5.3).

Voita et al. count the sentences whose rarest token is not among the 500 most frequent, and also
report how often a head attends to one of the two rarest. Here every sentence counts, and a head
attends to a token if most tokens of the sentence have their largest weight there.

Frequencies are those of the analysed source text, since the training text may be unavailable. Of
equally rare tokens, the one with the larger id is the rarest: the vocabulary is roughly in
order of frequency.

Axes: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from headwise.analysis.collect import Measures
from headwise.analysis.observe import Observation
from headwise.analysis.positions import counted_queries
from headwise.analysis.text.words import aligned

if TYPE_CHECKING:
    from headwise.data.batch import Batch

MIN_TOKENS = 3  # shorter sentences are not measured


def rarest(sentences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return, for every sentence, 1 at each occurrence of its rarest token and 0 elsewhere.

    Empty for sentences of fewer than `MIN_TOKENS` tokens.
    """
    counts = Counter(token for sentence in sentences for token in sentence)
    flags: list[list[int]] = []
    for sentence in sentences:
        if len(sentence) < MIN_TOKENS:
            flags.append([])
            continue
        rare = min(sentence, key=lambda token: (counts[token], -token))
        flags.append([int(token == rare) for token in sentence])
    return flags


def rarity(
    batch: Batch, obs: Observation, flags_of: Mapping[str, Sequence[Sequence[int]]]
) -> Measures:
    """Yield how often each head of self-attention attends to the rarest token.

    rare_share: share of the sentences in which most tokens have their largest weight there.

    Args:
        flags_of: column -> result of `rarest` for the text; columns that are not measured are
            absent.
    """
    flags = flags_of.get(obs.keys)
    if flags is None or not obs.is_self:
        return
    rows = [flags[index] for index in batch.rows]
    column = batch.columns[obs.keys]
    rare_BK = aligned(rows, column.n_begin, column.is_real_BN) > 0
    points_BHQ = _flags_at(rare_BK, obs.peaks_BHQ) & (obs.peaks_BHQ >= 0)
    queries_BHQ = counted_queries(obs, batch)
    balance_BHQ = (2 * points_BHQ.long() - 1).where(queries_BHQ, 0)
    balance_BHN = obs.whole("rare", balance_BHQ)
    if balance_BHN is None:
        return
    is_most_BH1 = (balance_BHN.sum(-1) > 0)[..., None]
    yield {"rare_share": obs.measured(is_most_BH1)}, rare_BK.any(1)[:, None]


def _flags_at(flags_BK: Tensor, keys_BHQ: Tensor) -> Tensor:
    flags_BHK = flags_BK[:, None].expand(-1, keys_BHQ.shape[1], -1)
    return flags_BHK.gather(2, keys_BHQ.clamp(min=0).flatten(2)).view_as(keys_BHQ)

"""Heads that look at the rarest token of a sentence (after Voita et al. 2019, section 5.3).

Voita et al. count the sentences whose rarest token is not among the 500 most frequent, and tell
also how often a head points at one of the two rarest. Here every sentence counts, and a head points
at a token where most tokens of the sentence have their largest weight.

How rare a piece is, is counted over the source text that is looked at: the training text need not
be at hand any more. Of pieces that are equally rare there, the one that stands later in the
vocabulary, where the tokenizer put what its training text has less of, counts as the rarest.

Letters: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from headwise.analysis.collect import Measures
from headwise.analysis.observe import Observation
from headwise.analysis.positions import choosing_queries
from headwise.analysis.text.words import aligned

if TYPE_CHECKING:
    from headwise.data.batch import Batch

FEWEST_TOKENS = 3  # in shorter sentences there is little to choose from


def rarest(sentences: Sequence[Sequence[int]]) -> list[list[int]]:
    """By sentence of ids, 1 at each occurrence of its rarest piece and 0 elsewhere.

    Empty for sentences of fewer than three tokens.
    """
    counts = Counter(piece for sentence in sentences for piece in sentence)
    found: list[list[int]] = []
    for sentence in sentences:
        if len(sentence) < FEWEST_TOKENS:
            found.append([])
            continue
        rare = min(sentence, key=lambda piece: (counts[piece], -piece))
        found.append([int(piece == rare) for piece in sentence])
    return found


def rarity(
    batch: Batch, seen: Observation, flags_of: Mapping[str, Sequence[Sequence[int]]]
) -> Measures:
    """In how many sentences each head of self-attention points at the rarest token.

    rare_share: of the sentences, those in which most tokens have their peak there.

    Args:
        flags_of: column -> what `rarest` gives for every sentence, by its place in the text;
            without columns that are not looked at.
    """
    flags = flags_of.get(seen.keys)
    if flags is None or not seen.is_self:
        return
    rows = [flags[index] for index in batch.rows]
    rare_BK = aligned(rows, batch.columns[seen.keys].n_begin, seen.queries_BQ) > 0
    points_BHQ = _at(rare_BK, seen.peaks_BHQ) & (seen.peaks_BHQ >= 0)
    queries_BHQ = choosing_queries(seen, batch)
    n_BH = (points_BHQ & queries_BHQ).sum(-1)
    is_most_BH1 = (2 * n_BH > queries_BHQ.sum(-1))[..., None]
    yield {"rare_share": seen.measured(is_most_BH1)}, rare_BK.any(1)[:, None]


def _at(flags_BK: Tensor, keys_BHQ: Tensor) -> Tensor:
    flags_BHK = flags_BK[:, None].expand(-1, keys_BHQ.shape[1], -1)
    return flags_BHK.gather(2, keys_BHQ.clamp(min=0).flatten(2)).view_as(keys_BHQ)

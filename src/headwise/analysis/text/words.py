"""Words of several tokens, and merging heads (Correia et al. 2019, section 5.2).

A cluster is the tokens of one word; a hyphenated compound is one word, as are parts joined by an
apostrophe. A punctuation mark is a separate cluster, although SentencePiece puts no ▁ before it.
Languages written without spaces are not measured: their tokens do not mark words.

Axes: B batch, H heads, Q queries, K keys, N positions, C clusters of a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.analysis.collect import Measures
from headwise.analysis.observe import Observation

if TYPE_CHECKING:
    from headwise.data.batch import Batch

SPACE = "\u2581"  # a space in a SentencePiece token
UNKNOWN = "\ufffd"  # an unknown character, which may be a letter
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
LETTER = rf"(?:[^\W_]|{UNKNOWN})"
WORD = re.compile(rf"{LETTER}+(?:[-\u2010\u2011'’]{LETTER}+)*")


@dataclass(frozen=True)
class Surface:
    """A detokenised sentence, and the spans of its tokens.

    Attributes:
        text: the sentence.
        spans: [start, end) of each token in characters, a leading space included. Tokens that are
            bytes of one character share the span of that character.
    """

    text: str
    spans: Sequence[tuple[int, int]]

    def tokens_of(self, start: int, end: int) -> list[int]:
        """Return the indices of the tokens with a character in [start, end)."""
        return [i for i, (a, b) in enumerate(self.spans) if a < end and start < b]


def surface(tokens: Sequence[str]) -> Surface:
    """Join tokens to a sentence."""
    spelt = [_spelling(token) for token in tokens]
    ends = [0, *accumulate(map(len, spelt))]
    text = b"".join(spelt).decode(errors="surrogateescape")
    character_of = [
        i for i, c in enumerate(text) for _ in range(len(c.encode(errors="surrogateescape")))
    ]
    spans = [
        (character_of[a], character_of[b - 1] + 1) if b > a else (0, 0) for a, b in pairwise(ends)
    ]
    return Surface(text, spans)


def _spelling(token: str) -> bytes:
    byte = BYTE.fullmatch(token)
    if byte:
        return bytes([int(byte[1], 16)])
    return (UNKNOWN if token == "<unk>" else token.replace(SPACE, " ")).encode()


def clusters(sentence: Surface) -> list[int]:
    """Return the cluster of each token, numbered from 0 in the order of the sentence."""
    owners: list[int | None] = [None] * len(sentence.spans)
    for number, word in enumerate(WORD.finditer(sentence.text)):
        for token in sentence.tokens_of(*word.span()):
            if owners[token] is None:
                owners[token] = number
    numbers: list[int] = []
    labels: dict[tuple[str, int], int] = {}
    for token, owner in enumerate(_with_spaces(sentence, owners)):
        key = ("token", token) if owner is None else ("word", owner)
        numbers.append(labels.setdefault(key, len(labels)))
    return numbers


def _with_spaces(sentence: Surface, owners: Sequence[int | None]) -> list[int | None]:
    """Assign a token that is only a space to the word after it."""
    following = [*owners, None][1:]
    return [
        after if owner is None and sentence.text[slice(*span)].isspace() else owner
        for owner, after, span in zip(owners, following, sentence.spans, strict=True)
    ]


def merging(
    batch: Batch, obs: Observation, clusters_of: Mapping[str, Sequence[Sequence[int]] | None]
) -> Measures:
    """Yield the share of weight of each head of self-attention that stays within a word.

    - merge_score: mean over clusters. The score of a cluster is the highest weight of any of its
      tokens on the others; for a cluster of one token, its weight on itself.
    - split_merge_score: the same over clusters of several tokens only.
    - cluster_mass: mean over tokens of the weight within their cluster.

    Args:
        clusters_of: column -> the cluster of every token of every sentence; None or absent for
            columns without words.
    """
    sentences = clusters_of.get(obs.keys)
    if sentences is None or not obs.is_self:
        return
    rows = [sentences[index] for index in batch.rows]
    column = batch.columns[obs.keys]
    clusters_BN = aligned(rows, column.n_begin, column.is_real_BN)
    is_word_BN = clusters_BN >= 0
    queries_BQ, keys_BK = obs.of_queries(clusters_BN), obs.of_keys(clusters_BN)
    inside_BQK = (queries_BQ[:, :, None] == keys_BK[:, None]) & (queries_BQ >= 0)[..., None]
    mass_BHQ = (obs.shares_BHQK * inside_BQK[:, None]).sum(-1)
    self_BHQ = torch.diagonal(obs.shares_BHQK, obs.first, 2, 3)
    yield {"cluster_mass": obs.measured(mass_BHQ)}, queries_BQ >= 0
    n_clusters = int(clusters_BN.max()) + 1
    mass_BHN, self_BHN = obs.whole("in a word", mass_BHQ), obs.whole("current", self_BHQ)
    if not n_clusters or mass_BHN is None or self_BHN is None:
        return
    # positions without a token go into an extra cluster
    index_BN = clusters_BN.where(is_word_BN, n_clusters)
    size_BC = torch.zeros_like(clusters_BN[:, :1]).expand(-1, n_clusters + 1)
    size_BC = size_BC.scatter_add(1, index_BN, is_word_BN.long())
    is_long_BN = size_BC.gather(1, index_BN) > 1
    scores_BHN = (mass_BHN - self_BHN).where(is_long_BN[:, None], self_BHN)
    best_BHC = scores_BHN.new_zeros(*scores_BHN.shape[:2], n_clusters + 1).scatter_reduce(
        2, index_BN[:, None].expand_as(scores_BHN), scores_BHN, "amax"
    )[..., :-1]
    scores, size_BC = obs.measured(best_BHC), size_BC[..., :-1]
    yield {"merge_score": scores}, size_BC > 0
    yield {"split_merge_score": scores}, size_BC > 1


def aligned(rows: Sequence[Sequence[int]], first: int, like_BN: Tensor) -> Tensor:
    """Return one number per token at its position, (B, N); -1 at special tokens and padding.

    Args:
        rows: one number per token of each sentence.
        first: position of the first token.
        like_BN: tensor of the same shape and device.
    """
    numbers_BN = torch.full(like_BN.shape, -1, dtype=torch.long)
    for row, numbers in enumerate(rows):
        numbers_BN[row, first : first + len(numbers)] = torch.tensor(numbers, dtype=torch.long)
    return numbers_BN.to(like_BN.device)

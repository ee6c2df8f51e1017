"""Words made of several pieces, and heads that hold them together (Correia et al. 2019, 5.2).

A cluster is the pieces of one word; a hyphenated compound is one word, as is what an apostrophe
joins. Punctuation stands alone, though SentencePiece sets no mark of a word's beginning before it.
In languages written without spaces pieces show no words: there nothing is measured.

Letters: B batch, H heads, Q queries, K keys, N positions, C clusters of a sentence.
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

SPACE = "\u2581"  # how SentencePiece spells one inside of a piece
UNKNOWN = "\ufffd"  # a character that no piece spells; it may be a letter
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
LETTER = rf"(?:[^\W_]|{UNKNOWN})"
WORD = re.compile(rf"{LETTER}+(?:[-\u2010\u2011'’]{LETTER}+)*")


@dataclass(frozen=True)
class Surface:
    """A sentence as it is read, and where its pieces stand.

    Attributes:
        text: the sentence.
        spans: first and last-but-one character of each piece, a leading space included. Pieces
            that are bytes of one character have that character in common.
    """

    text: str
    spans: Sequence[tuple[int, int]]

    def pieces_of(self, start: int, end: int) -> list[int]:
        """Indices of the pieces with a character among those from `start` to before `end`."""
        return [i for i, (a, b) in enumerate(self.spans) if a < end and start < b]


def surface(pieces: Sequence[str]) -> Surface:
    """The sentence that pieces spell."""
    spelt = [_spelling(piece) for piece in pieces]
    ends = [0, *accumulate(map(len, spelt))]
    text = b"".join(spelt).decode(errors="surrogateescape")
    character_of = [
        i for i, c in enumerate(text) for _ in range(len(c.encode(errors="surrogateescape")))
    ]
    spans = [
        (character_of[a], character_of[b - 1] + 1) if b > a else (0, 0) for a, b in pairwise(ends)
    ]
    return Surface(text, spans)


def _spelling(piece: str) -> bytes:
    byte = BYTE.fullmatch(piece)
    if byte:
        return bytes([int(byte[1], 16)])
    return (UNKNOWN if piece == "<unk>" else piece.replace(SPACE, " ")).encode()


def clusters(sentence: Surface) -> list[int]:
    """Which cluster each piece is of, from 0 in the order of the sentence."""
    owners: list[int | None] = [None] * len(sentence.spans)
    for number, word in enumerate(WORD.finditer(sentence.text)):
        for piece in sentence.pieces_of(*word.span()):
            if owners[piece] is None:
                owners[piece] = number
    found: list[int] = []
    labels: dict[tuple[str, int], int] = {}
    for piece, owner in enumerate(_with_spaces(sentence, owners)):
        key = ("piece", piece) if owner is None else ("word", owner)
        found.append(labels.setdefault(key, len(labels)))
    return found


def _with_spaces(sentence: Surface, owners: Sequence[int | None]) -> list[int | None]:
    """A piece that is nothing but the space in front of a word belongs to the word."""
    following = [*owners, None][1:]
    return [
        after if owner is None and sentence.text[slice(*span)].isspace() else owner
        for owner, after, span in zip(owners, following, sentence.spans, strict=True)
    ]


def merging(
    batch: Batch, seen: Observation, clusters_of: Mapping[str, Sequence[Sequence[int]] | None]
) -> Measures:
    """How much each head of self-attention keeps inside of the current word, in shares of 1.

    - merge_score: mean over clusters. A cluster of one piece scores that piece's weight on
      itself; a larger one the highest weight that any of its pieces puts on the others.
    - split_merge_score: the same over clusters of several pieces alone.
    - cluster_mass: mean over tokens of the weight inside of the token's own cluster.

    Args:
        clusters_of: column -> the cluster of every piece of every sentence, by their places in
            the text; without columns whose words cannot be seen.
    """
    known = clusters_of.get(seen.keys)
    if known is None or not seen.is_self:
        return
    rows = [known[index] for index in batch.rows]
    clusters_BN = aligned(rows, batch.columns[seen.keys].n_begin, seen.queries_BQ)
    is_word_BN = clusters_BN >= 0
    inside_BNN = (clusters_BN[:, :, None] == clusters_BN[:, None]) & is_word_BN[..., None]
    mass_BHQ = (seen.shares_BHQK * inside_BNN[:, None]).sum(-1)
    own_BHQ = torch.diagonal(seen.shares_BHQK, 0, 2, 3)
    yield {"cluster_mass": seen.measured(mass_BHQ)}, is_word_BN
    n_clusters = int(clusters_BN.max()) + 1
    if not n_clusters:
        return
    size_BN = inside_BNN.sum(-1)
    scores_BHN = (mass_BHQ - own_BHQ).where(size_BN[:, None] > 1, own_BHQ)
    # what is no token is put into a cluster too many
    index_BN = clusters_BN.where(is_word_BN, n_clusters)
    best_BHC = scores_BHN.new_zeros(*scores_BHN.shape[:2], n_clusters + 1).scatter_reduce(
        2, index_BN[:, None].expand_as(scores_BHN), scores_BHN, "amax"
    )[..., :-1]
    size_BC = size_BN.new_zeros(len(size_BN), n_clusters + 1).scatter_reduce(
        1, index_BN, size_BN, "amax"
    )[..., :-1]
    scores = seen.measured(best_BHC)
    yield {"merge_score": scores}, size_BC > 0
    yield {"split_merge_score": scores}, size_BC > 1


def aligned(rows: Sequence[Sequence[int]], first: int, like_BN: Tensor) -> Tensor:
    """Numbers of pieces at their positions in a batch, (B, N); -1 at marks and padding.

    Args:
        rows: one number a piece of each sentence.
        first: position of the first piece.
        like_BN: of the size and on the device of the batch.
    """
    found_BN = torch.full(like_BN.shape, -1, dtype=torch.long)
    for row, numbers in enumerate(rows):
        found_BN[row, first : first + len(numbers)] = torch.tensor(numbers, dtype=torch.long)
    return found_BN.to(like_BN.device)

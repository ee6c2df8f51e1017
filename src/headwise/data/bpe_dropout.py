"""BPE-dropout (Provilkov et al. 2020, Algorithm 1), for all words of a batch at once.

SentencePiece has it too, but seeds its generator differently in every process, so a resumed run
could not repeat the encoding of an epoch. Here a sample depends on the text and the generator
alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import sentencepiece

Ints = npt.NDArray[np.int64]

UNK = 1
WORD_START = 0x2581  # "▁", a space in SentencePiece
NONE = np.int64(1) << 30  # a rank worse than every merge


class DropoutSegmenter:
    """Segments text with the merges of a SentencePiece BPE model, dropping some at random."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor) -> None:
        self._processor = processor
        self._n_pieces = int(processor.get_piece_size())
        ids = {
            str(processor.id_to_piece(i)): i
            for i in range(self._n_pieces)
            if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))
        }
        self._byte_ids = [i for i in range(self._n_pieces) if processor.is_byte(i)]
        self._id_of_character = np.full(0x110000, UNK, np.int64)
        pairs: dict[int, int] = {}
        for piece, number in ids.items():
            if len(piece) == 1:
                self._id_of_character[ord(piece)] = number
            for cut in range(1, len(piece)):
                left, right = ids.get(piece[:cut]), ids.get(piece[cut:])
                if left is not None and right is not None:
                    pairs[left * self._n_pieces + right] = number
        # a sentinel as the last key, so that each search returns a valid index
        self._pair_keys = np.array([*sorted(pairs), self._n_pieces**2], np.int64)
        self._pair_pieces = np.array([pairs[key] for key in sorted(pairs)], np.int64)
        # SentencePiece scores BPE pieces by minus the order in which they were learnt.
        scores = np.array([processor.get_score(i) for i in range(self._n_pieces)])
        self._ranks = (-scores).astype(np.int64)

    def encode(
        self, sentences: list[str], dropout: float, generator: np.random.Generator
    ) -> list[list[int]]:
        """Ids of each sentence; with `dropout` 0 the same as those of SentencePiece."""
        normalised: list[str] = self._processor.normalize(sentences)
        lengths = np.array([len(text) for text in normalised], np.int64)
        characters = np.frombuffer("".join(normalised).encode("utf-32-le"), np.uint32)
        ends = np.cumsum(lengths)
        if not characters.size:
            return [[] for _ in sentences]
        symbols = self._id_of_character[characters]
        starts = characters == WORD_START
        starts[(ends - lengths)[lengths > 0]] = True
        pieces = self._merge(symbols, np.cumsum(starts) - 1, dropout, generator)
        origins = np.flatnonzero(pieces >= 0)
        bounds = np.searchsorted(origins, ends)
        return [
            self._finish(pieces[span], characters[span]) for span in np.split(origins, bounds[:-1])
        ]

    def _merge(
        self, symbols: Ints, words: Ints, dropout: float, generator: np.random.Generator
    ) -> Ints:
        """The pieces, each at the position of its first character, and -1 elsewhere.

        Each round drops every possible merge with probability `dropout`, then applies the best
        remaining merge of each word; a word without one is finished.
        """
        positions, pieces = np.arange(len(symbols)), np.full(len(symbols), -1, np.int64)
        # symbols of unfinished words in reading order: piece, number of its word, position of its
        # first character, and the piece of the merge with its right neighbour, or -1
        live = np.stack([symbols, words, positions, pieces])
        self._set_merges(live, positions)
        while live.shape[1]:
            symbols, words, origins, merges = live
            ranks = np.where(merges >= 0, self._ranks[merges], NONE)
            if dropout > 0:
                ranks[generator.random(len(ranks)) < dropout] = NONE
            first = np.diff(words, prepend=-1) != 0
            # The lower half of the key selects the leftmost of equal merges.
            keys = (ranks << 32) | np.arange(len(ranks))
            best = np.minimum.reduceat(keys, np.flatnonzero(first))
            ongoing = (best >> 32) < NONE
            index = best[ongoing] & 0xFFFFFFFF
            stays = ongoing[np.cumsum(first) - 1]
            pieces[origins[~stays]] = symbols[~stays]
            symbols[index] = merges[index]
            stays[index + 1] = False
            index = (np.cumsum(stays) - 1)[index]
            live = live[:, stays]
            self._set_merges(live, index)
            self._set_merges(live, index[index > 0] - 1)
        return pieces

    def _set_merges(self, live: Ints, indices: Ints) -> None:
        """Set the merge of each symbol at `indices` with its right neighbour in the same word."""
        symbols, words, _, merges = live
        merges[indices] = -1
        indices = indices[indices < len(symbols) - 1]
        indices = indices[words[indices] == words[indices + 1]]
        keys = symbols[indices] * self._n_pieces + symbols[indices + 1]
        nearest = np.searchsorted(self._pair_keys, keys)
        hit = self._pair_keys[nearest] == keys
        merges[indices[hit]] = self._pair_pieces[nearest[hit]]

    def _finish(self, pieces: Ints, characters: npt.NDArray[np.uint32]) -> list[int]:
        """Ids with unknown characters as bytes if the model has them, else each run as one unk."""
        unknown = pieces == UNK
        if not self._byte_ids:
            pieces = pieces[~unknown | ~np.append(False, unknown[:-1])]
        row: list[int] = pieces.tolist()
        if not unknown.any() or not self._byte_ids:
            return row
        row = []
        for piece, character in zip(pieces.tolist(), characters.tolist(), strict=True):
            spelt = [self._byte_ids[byte] for byte in chr(character).encode()]
            row.extend(spelt if piece == UNK else [piece])
        return row

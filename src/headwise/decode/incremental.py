"""Prefixes that grow by one token per step, with or without a key/value cache.

Which rows continue is a matter of lists, which cost less than tensors of so few numbers; model,
caches and probabilities are tensors.

Axes: R rows (live hypotheses of all sentences), S source length, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from headwise.data.tokenizer import BOS, NO_TEXT, PAD
from headwise.errors import RunError
from headwise.losses.output_map import SOFTMAX, OutputMap
from headwise.model.stack import Memory


class DecoderCache(Protocol):
    """What a model stores of the prefixes and of the memory; see `StackCache`."""

    def reorder(self, rows_B: Tensor) -> None:
        """Move row `rows_B[i]` of the prefixes to row i; rows may repeat or be dropped."""
        ...

    def reorder_memory(self, rows_B: Tensor) -> None:
        """Reorder what is stored of the memory in the same way."""
        ...


class TranslationModel(Protocol):
    """Interface of a model for search; see `headwise.model.transformer.Transformer`.

    A model with `shares_memory = True` takes a memory with fewer rows than targets: each source
    is stored once and read by an equal number of consecutive targets.
    """

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> Memory:
        """Encode the source."""
        ...

    def decode(self, target_in_BT: Tensor, memory: Memory, cache: Any = None) -> Tensor:
        """Logits (B, T, V); `cache` is one of `make_cache`."""
        ...

    def make_cache(self) -> DecoderCache:
        """An empty cache."""
        ...


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return id lists as one tensor (B, longest) padded on the right, and their lengths (B,)."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    filled = [list(row) + [PAD] * (longest - len(row)) for row in rows]
    return torch.tensor(filled, device=device), torch.tensor(lengths, device=device)


class IncrementalDecoder:
    """The live prefixes of a batch of sentences, with the model's memory and cache of them.

    Starts with one row per sentence, without a token. `select` makes the rows of the next step
    from the current ones; rows may repeat (a hypothesis continued in two ways) and be left out (a
    sentence that is done).

    Args:
        model: in evaluation mode.
        sources: ids of each sentence as the encoder reads them; none is empty.
        cached: False runs the whole prefix through the decoder at each step, for comparison.
        output: maps the model's logits to log probabilities.

    Attributes:
        prefixes: the tokens of each row, without bos.
    """

    def __init__(
        self,
        model: TranslationModel,
        sources: Sequence[Sequence[int]],
        device: torch.device,
        cached: bool = True,
        output: OutputMap = SOFTMAX,
    ) -> None:
        self.model, self._output, self._device = model, output, device
        source_NS, lengths_N = padded(sources, device)
        self._memory = model.encode(source_NS, lengths_N)
        self._cache = model.make_cache() if cached else None
        self.prefixes: list[list[int]] = [[] for _ in sources]
        self._width = 1  # rows of a sentence
        # off without a cache, so that the two modes can be compared
        self._shared = cached and getattr(model, "shares_memory", False)

    def log_probs(self) -> Tensor:
        """Return log probabilities (R, V) of the next token, at least float32; -inf: pad, unk, bos.

        They are masked after normalising: the other values equal those of forced decoding.

        Raises:
            RunError: non-finite logits.
        """
        if self._cache is None:
            read = [[BOS, *prefix] for prefix in self.prefixes]
        else:
            read = [prefix[-1:] or [BOS] for prefix in self.prefixes]
        new_RT = torch.tensor(read, device=self._device)
        logits_RV = self.model.decode(new_RT, self._memory, cache=self._cache)[:, -1]
        log_probs_RV = self._output.log_probs(logits_RV)
        # false for NaN too, which any NaN logit makes of its whole row
        if not bool((log_probs_RV.amax(-1) > -torch.inf).all()):
            raise RunError(
                "non-finite logits (NaN): the checkpoint has diverged; use an earlier checkpoint"
            )
        for token in NO_TEXT:
            log_probs_RV[:, token] = -torch.inf
        return log_probs_RV

    def select(self, rows: list[int], tokens: list[int], places: list[int]) -> None:
        """Set row i to prefix `rows[i]` followed by `tokens[i]`.

        Args:
            rows, tokens: the same number of consecutive rows for each sentence.
            places: the previous place of each sentence. `fill_gaps` moves few of them.
        """
        n_rows_before = len(self.prefixes)
        self.prefixes = [
            [*self.prefixes[row], token] for row, token in zip(rows, tokens, strict=True)
        ]
        width, width_before = len(rows) // len(places), self._width
        self._width = width
        source_rows = rows
        if self._shared:
            source_rows = places
        elif width == width_before:  # within a sentence all rows have the same source
            source_rows = [place * width + i for place in places for i in range(width)]
        if self._cache is not None and rows != list(range(n_rows_before)):
            self._cache.reorder(torch.tensor(rows, device=self._device))
        if source_rows == list(range(len(self._memory.lengths_B))):
            return
        source_rows_R = torch.tensor(source_rows, device=self._device)
        self._memory = self._memory.index_select(source_rows_R)
        if self._cache is not None:
            self._cache.reorder_memory(source_rows_R)


def fill_gaps(places: Sequence[int]) -> list[int]:
    """Return the remaining places with the fewest moves: the last ones fill the gaps.

    Args:
        places: ascending.
    """
    last = iter(place for place in places if place >= len(places))
    remaining = set(places)
    return [place if place in remaining else next(last) for place in range(len(places))]

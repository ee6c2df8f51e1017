"""Samples of a decoder-only model, token by token.

Axes: S samples of a batch, N tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.data.tokenizer import BOS
from headwise.errors import RunError, require
from headwise.losses.output_map import OutputMap
from headwise.model.family import evaluating
from headwise.model.single import SingleStack

READ_AT_ONCE = 512  # positions


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from the model's distribution; the defaults draw from all of it.

    Applied in the order of Hugging Face's `generate`: temperature, top_k, top_p.

    Args:
        temperature: p^(1/temperature), normalised; under a sparse loss zeros stay zeros.
        top_k: only the k most probable tokens, and those equal to the k-th; None: all.
        top_p: only the fewest most probable tokens that have this probability together.
        seed: of the random numbers; each sample has its own, see `uniforms`.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        temperature, top_k, top_p = self.temperature, self.top_k, self.top_p
        is_positive = 0 < temperature < float("inf")
        require(is_positive, "temperature", "above 0 (top_k=1 is greedy)", temperature)
        require(top_k is None or top_k >= 1, "top_k", "null or at least 1", top_k)
        require(0 < top_p <= 1, "top_p", "above 0 and at most 1", top_p)
        require(self.seed >= 0, "seed", "at least 0", self.seed)

    def probabilities(self, log_probs_SV: Tensor) -> Tensor:
        """Return the probabilities (S, V) that tokens are drawn with, in float64.

        Args:
            log_probs_SV: float64, -inf for a token that is never drawn; others need not sum to 1.
        """
        # from 0 down: a low temperature would make all of them -inf
        scores_SV = (log_probs_SV - log_probs_SV.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None:
            best_SK = scores_SV.topk(min(self.top_k, scores_SV.shape[1])).values
            scores_SV = scores_SV.masked_fill(scores_SV < best_SK[:, -1:], -torch.inf)
        probs_SV = scores_SV.softmax(-1)
        if self.top_p == 1:
            return probs_SV
        sorted_SV, order_SV = probs_SV.sort(dim=-1, descending=True, stable=True)
        before_SV = sorted_SV.cumsum(-1) - sorted_SV
        kept_SV = sorted_SV * (before_SV < self.top_p)
        return torch.zeros_like(probs_SV).scatter(1, order_SV, kept_SV)

    def uniforms(self, numbers: Sequence[int], n_tokens: int) -> Tensor:
        """Return numbers in [0, 1) of each sample and token (S, N), on the CPU, in float64.

        They depend on the seed, the number of the sample and the place of the token alone.
        """
        streams = [np.random.default_rng([self.seed, number]) for number in numbers]
        return torch.from_numpy(np.stack([stream.random(n_tokens) for stream in streams]))


def drawn(probs_SV: Tensor, uniforms_S: Tensor) -> Tensor:
    """Return the tokens (S,) at quantiles of the distributions; one of probability 0 never.

    Args:
        probs_SV: not negative, with a positive sum, which need not be 1.
        uniforms_S: in [0, 1).
    """
    ends_SV = probs_SV.cumsum(-1)
    total_S1 = ends_SV[:, -1:]
    # a product that rounds to the total would be after the last token
    below_S1 = torch.nextafter(total_S1, torch.zeros_like(total_S1))
    quantiles_S1 = (uniforms_S[:, None] * total_S1).minimum(below_S1)
    return torch.searchsorted(ends_SV, quantiles_S1, right=True)[:, 0]


class Context:
    """The tokens that the model reads: all so far, at most `window`.

    When there are more, the model starts again from the last half of them, as at the first
    position. So every token is predicted from at least half a window.

    Args:
        model: in evaluation mode.
        window: most tokens that it reads.
        cached: False reads all of them again for each token, for comparison.
        aligned: start again after each whole window instead, as `TrainingWindows.aligned`.
        masked: a start token hides the tokens before it, as `data.document_mask` does; not cached.
    """

    def __init__(
        self,
        model: SingleStack,
        window: int,
        cached: bool = True,
        aligned: bool = False,
        masked: bool = False,
    ) -> None:
        self._model, self._window, self._is_cached = model, window, cached and not masked
        self._is_aligned, self._is_masked = aligned, masked
        self._start(0)

    def _start(self, first: int) -> None:
        self._first = self._n_read = first
        self._cache = self._model.make_cache() if self._is_cached else None

    def logits(self, ids_SN: Tensor) -> Tensor:
        """Return logits (S, V) of the token after `ids_SN`, which grow from call to call."""
        n_tokens = ids_SN.shape[1]
        if n_tokens - self._first > self._window:
            since_boundary = (n_tokens - 1) % self._window + 1
            n_read_again = since_boundary if self._is_aligned else (self._window + 1) // 2
            self._start(n_tokens - n_read_again)
        # in parts, since attention without a kernel forms the weights of all
        at_once = READ_AT_ONCE if self._is_cached else n_tokens
        for new_SN in torch.split(ids_SN[:, self._n_read :], at_once, dim=1):
            lengths_S = torch.full((len(new_SN),), new_SN.shape[1], device=ids_SN.device)
            segments_SN = (new_SN == BOS).cumsum(1) if self._is_masked else None
            states_SND = self._model.states(new_SN, lengths_S, self._cache, segments_SN)
        if self._is_cached:
            self._n_read = n_tokens
        logits_SV: Tensor = self._model.output(states_SND[:, -1])
        return logits_SV


@torch.no_grad()  # not inference_mode: a position table extended here is used in training later
def draw_samples(
    model: SingleStack,
    output: OutputMap,
    prompts: Sequence[Sequence[int]],
    numbers: Sequence[int],
    n_tokens: int,
    sampling: Sampling,
    window: int,
    barred: Sequence[int],
    advance: Callable[[int], object] = lambda n: None,
    cached: bool = True,
    aligned: bool = False,
    starts: Callable[[Sequence[int], int], bool] = lambda row, position: False,
    masked: bool = False,
) -> list[list[int]]:
    """Return the ids of each sample of a batch: its prompt and `n_tokens` drawn ones.

    A sample depends on the model, its prompt and number, and `sampling`. Products of a batch round
    differently than those of one row; with a model in float64 no draw depends on that in practice.

    Args:
        model: decoder-only, on any device.
        output: maps its logits to log probabilities.
        prompts: of equal length; a start token is read before them.
        numbers: of the samples.
        window: most tokens that the model reads, see `Context`.
        barred: ids that are never drawn; the others have the remaining probability.
        advance: called after each step with the number of drawn tokens.
        cached: see `Context`.
        aligned: see `Context`.
        starts: whether the token at a position of a sample, or after its last, starts a document.
            The model then reads the start token in place of the token before, as in training.
        masked: see `Context`.

    Raises:
        RunError: non-finite logits, or no token that may be drawn has a probability.
    """
    device, rows = model.output.weight.device, [list(prompt) for prompt in prompts]

    def read_before(row: list[int], position: int) -> int:
        return BOS if position == 0 or starts(row, position) else row[position - 1]

    read = [[read_before(row, n) for n in range(len(row) + 1)] for row in rows]
    ids_SN = torch.tensor(read, device=device)
    uniforms_SN = sampling.uniforms(numbers, n_tokens)
    context = Context(model, window, cached, aligned, masked)
    with evaluating(model):
        for uniforms_S in uniforms_SN.unbind(1):
            log_probs_SV = output.log_probs(context.logits(ids_SN)).double().cpu()
            log_probs_SV[:, list(barred)] = -torch.inf
            if not bool((log_probs_SV.amax(-1) > -torch.inf).all()):
                raise RunError(
                    "no token can be drawn: the logits are not finite, or all of the probability "
                    "is on special tokens; use another checkpoint"
                )
            tokens = drawn(sampling.probabilities(log_probs_SV), uniforms_S).tolist()
            for row, token in zip(rows, tokens, strict=True):
                row.append(token)
            read = [[read_before(row, len(row))] for row in rows]
            ids_SN = torch.cat((ids_SN, torch.tensor(read, device=device)), 1)
            advance(len(rows))
    return rows

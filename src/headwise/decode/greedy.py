"""Greedy search: the likeliest token at each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from headwise.data.tokenizer import EOS
from headwise.decode.hypothesis import Hypothesis, SearchRecord, make_hypothesis
from headwise.decode.incremental import IncrementalDecoder, TranslationModel, fill_gaps
from headwise.losses.output_map import SOFTMAX, OutputMap


@torch.no_grad()  # not inference_mode: a position table extended here is used in training later
def greedy_search(
    model: TranslationModel,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    device: torch.device,
    length_penalty: float = 1.0,
    cached: bool = True,
    output: OutputMap = SOFTMAX,
) -> list[Hypothesis]:
    """Return one hypothesis per sentence, in the order of `sources`; ties go to the lower id.

    Args:
        model: in evaluation mode.
        sources: ids of each sentence as the encoder reads them; none is empty.
        limits: maximum number of tokens of each hypothesis, eos included (from 1).
        length_penalty: exponent of the length in the score; it does not change the search.
        cached: False recomputes the whole prefix at each step.
        output: maps the model's logits to log probabilities. Where it is sparse, a search with
            one possible token at every step is exact.
    """
    if not sources:
        return []
    decoder = IncrementalDecoder(model, sources, device, cached, output)
    hypotheses: dict[int, Hypothesis] = {}
    live = list(range(len(sources)))  # the sentence of each row
    total = [0.0] * len(sources)  # log probability so far of each sentence
    widths: list[list[int]] = [[] for _ in sources]  # possible tokens at each step
    n_steps = 0
    while live:
        n_steps += 1
        log_probs_RV = decoder.log_probs()
        gains_R, tokens_R = log_probs_RV.max(dim=-1)
        gains, tokens = gains_R.tolist(), tokens_R.tolist()
        if output.is_sparse:
            n_possible_R = (log_probs_RV > -math.inf).sum(1).tolist()
            for sentence, n_possible in zip(live, n_possible_R, strict=True):
                widths[sentence].append(n_possible)
        remaining = []
        for row, (token, gain) in enumerate(zip(tokens, gains, strict=True)):
            sentence = live[row]
            is_stuck = gain == -math.inf  # no token has a probability
            is_finished = token == EOS and not is_stuck
            if not is_stuck:
                total[sentence] += gain
            if not (is_stuck or is_finished or n_steps == limits[sentence]):
                remaining.append(row)
                continue
            ids = list(decoder.prefixes[row])
            if not (is_stuck or is_finished):
                ids.append(token)
            hypotheses[sentence] = make_hypothesis(
                ids, total[sentence], is_finished, length_penalty
            )
        remaining = fill_gaps(remaining)
        live = [live[row] for row in remaining]
        if live:
            decoder.select(remaining, [tokens[row] for row in remaining], remaining)
    ordered = [hypotheses[sentence] for sentence in range(len(sources))]
    if not output.is_sparse:
        return ordered
    return [
        replace(hypothesis, search=SearchRecord(max(steps) <= 1, sum(steps), len(steps)))
        for hypothesis, steps in zip(ordered, widths, strict=True)
    ]

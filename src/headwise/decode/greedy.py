"""Greedy search: the likeliest token at each step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from headwise.data.tokenizer import EOS
from headwise.decode.hypothesis import Hypothesis, make_hypothesis
from headwise.decode.incremental import IncrementalDecoder, TranslationModel


@torch.no_grad()  # not inference_mode: a position table grown here must serve training later
def greedy_search(
    model: TranslationModel,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    device: torch.device,
    length_penalty: float = 1.0,
    cached: bool = True,
) -> list[Hypothesis]:
    """One hypothesis a sentence, in the order of `sources`; ties go to the lower id.

    Args:
        model: in evaluation mode.
        sources: ids of each sentence as the encoder reads them; none is empty.
        limits: most tokens of each hypothesis, eos included (from 1).
        length_penalty: exponent of the length in the score; it does not change the search.
        cached: False recomputes the whole prefix at each step.
    """
    decoder = IncrementalDecoder(model, sources, device, cached)
    found: dict[int, Hypothesis] = {}
    live = list(range(len(sources)))  # the sentence of each row
    total = [0.0] * len(sources)  # log probability so far of each sentence
    n_steps = 0
    while live:
        n_steps += 1
        log_probs_RV = decoder.log_probs()
        tokens_R = log_probs_RV.argmax(dim=-1)
        gains = log_probs_RV.gather(1, tokens_R[:, None])[:, 0].tolist()
        going_on = []
        for row, (token, gain) in enumerate(zip(tokens_R.tolist(), gains, strict=True)):
            sentence = live[row]
            is_stuck = gain == -math.inf  # every token that may be emitted is impossible
            is_finished = token == EOS and not is_stuck
            if not is_stuck:
                total[sentence] += gain
            if not (is_stuck or is_finished or n_steps == limits[sentence]):
                going_on.append(row)
                continue
            ids = decoder.prefix_RT[row, 1:].tolist()
            if not (is_stuck or is_finished):
                ids.append(token)
            found[sentence] = make_hypothesis(ids, total[sentence], is_finished, length_penalty)
        live = [live[row] for row in going_on]
        if live:
            rows = torch.tensor(going_on, device=device)
            decoder.select(rows, tokens_R[rows])
    return [found[sentence] for sentence in range(len(sources))]

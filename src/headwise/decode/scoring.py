"""Forced decoding: the log probability of given translations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headwise.data.tokenizer import BOS, EOS
from headwise.decode.incremental import TranslationModel, padded
from headwise.losses.output_map import SOFTMAX, OutputMap


@dataclass(frozen=True)
class TargetScore:
    """Log probability of a given translation.

    Attributes:
        log_prob: natural log of the probability of all tokens, eos included; -inf where a sparse
            output map gives a token zero probability.
        n_tokens: their number, eos included.
        token_log_probs: one per token, the last for eos; their sum is `log_prob`.
    """

    log_prob: float
    n_tokens: int
    token_log_probs: tuple[float, ...]


@torch.no_grad()
def score_ids(
    model: TranslationModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    device: torch.device,
    output: OutputMap = SOFTMAX,
) -> list[TargetScore]:
    """Return the scores of one batch.

    Args:
        model: in evaluation mode.
        sources: ids of each sentence as the encoder reads them; none is empty.
        targets: ids of each translation, without bos and eos; may be empty.
        output: maps the model's logits to log probabilities.
    """
    source_BS, source_lengths_B = padded(sources, device)
    target_in_BT, _ = padded([[BOS, *target] for target in targets], device)
    target_out_BT, _ = padded([[*target, EOS] for target in targets], device)
    logits_BTV = model.decode(target_in_BT, model.encode(source_BS, source_lengths_B))
    log_probs_BTV = output.log_probs(logits_BTV)
    # values at padding are dropped below
    log_probs_BT = log_probs_BTV.gather(-1, target_out_BT[:, :, None])[:, :, 0]
    scores = []
    for row, target in zip(log_probs_BT.tolist(), targets, strict=True):
        real = tuple(row[: len(target) + 1])
        scores.append(TargetScore(sum(real), len(real), real))
    return scores

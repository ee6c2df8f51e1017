"""Recording attention weights.

Axes: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from headwise.attention.attention import Attention, Recorder


@contextmanager
def recorded_weights(model: nn.Module) -> Iterator[dict[str, dict[int, Tensor]]]:
    """Yield the weights of the last forward pass: site -> layer -> (B, H, Q, K).

    Attentions without weights are absent; see `Attention.forms_weights` for effective ones.

    Args:
        model: a model, or one attention.
    """
    weights: dict[str, dict[int, Tensor]] = {}

    def record(attention: Attention, weights_BHQK: Tensor) -> None:
        weights.setdefault(attention.place.site, {})[attention.place.layer] = weights_BHQK

    with recording(model, record):
        yield weights


@contextmanager
def recording(model: nn.Module, record: Recorder) -> Iterator[None]:
    """Call `record` with each attention of `model` and its weights, at each forward pass.

    Within the context, attentions form weights instead of using fused kernels.
    """
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for attention in attentions:
        attention.recorders = (*attention.recorders, record)
    try:
        yield
    finally:
        for attention in attentions:
            attention.recorders = tuple(r for r in attention.recorders if r is not record)

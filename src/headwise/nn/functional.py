"""Attention of the entmax family beside `torch.nn.functional.scaled_dot_product_attention`.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.ops import dispatch
from headwise.ops.attention import reference
from headwise.ops.attention.operator import attend, log_once
from headwise.ops.attention.widths import repeated
from headwise.ops.family import POWERS, Power
from headwise.ops.visible import Visible

MAPS = {
    "softmax": Power.EXP,
    "entmax15": Power.SQUARE,
    "sparsemax": Power.LINEAR,
    "alpha_entmax": Power.ANY,
}


@dataclass(frozen=True)
class Scores:
    """From products of queries and keys to scores.

    Attributes:
        visible: which keys.
        scale: factor of the products.
        bias: added, broadcastable to (B, H, Q, K).
        softcap: scores become softcap · tanh(scores / softcap), before the bias.
        sinks_H: score of one more key per head, without a value.
    """

    visible: Visible
    scale: float
    bias: Tensor | None = None
    softcap: float | None = None
    sinks_H: Tensor | None = None

    @property
    def others(self) -> str | None:
        """What else changes the scores, which kernels without weights do not compute."""
        parts = {"a bias": self.bias, "a soft cap": self.softcap, "sinks": self.sinks_H}
        return " and ".join(name for name, part in parts.items() if part is not None) or None


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attention: str = "alpha_entmax",
    alpha: Tensor | float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as `torch.nn.functional.scaled_dot_product_attention`, with maps of the family.

        α-entmax(scale · query · keyᵀ + bias) value

    Without an additive mask and where a kernel is faster, weights are not stored. float64 is
    computed in float64. Under autocast, query, key and value are cast first, as by torch.

    Args:
        query: (..., H, Q, E), floating-point.
        key: (..., H, K, E), of the same dtype. Axes before the last two may have size 1.
        value: (..., H, K, F), likewise.
        attention: "alpha_entmax", or "softmax", "entmax15", "sparsemax": α = 1, 1.5, 2.
        alpha: for "alpha_entmax" alone: α in [1, 2], a number or a tensor (H,), one per head, or a
            tensor that broadcasts to (..., H, Q, 1). With gradients to a tensor.
        attn_mask: broadcastable to (..., H, Q, K): bool, True = may attend, or floating-point,
            added to the scores; -inf excludes a key.
        is_causal: whether query i sees keys 0 to i only, beside `attn_mask`.
        dropout_p: rate of dropout on the weights, in [0, 1). It is applied whenever it is above 0.
        scale: factor of the products; None: E^-0.5.
        enable_gqa: whether H of key and value may be a divisor of H of query; consecutive heads
            share keys and values.

    Returns:
        (..., H, Q, F), of the dtype of query. A query without a visible key gets zeros.

    Raises:
        ValueError: an argument is out of range, or shapes do not match.
        TypeError: dtypes do not match.
    """
    power, row_alpha = _map_of(attention, alpha, query)
    query_BHQE, key_BHKE, value_BHKF = _heads(query, key, value, enable_gqa)
    visible, bias = _visible(query, key, attn_mask, is_causal)
    if isinstance(scale, Tensor):
        raise TypeError("scale must be a number; multiply query by a learned one")
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p must be in [0, 1), got {dropout_p}")
    scores = Scores(visible, query.shape[-1] ** -0.5 if scale is None else float(scale), bias)
    heads = (query_BHQE, key_BHKE, value_BHKF)
    context, _ = attend_heads(*heads, power, row_alpha, scores, dropout_p)
    return context.reshape(*query.shape[:-1], value.shape[-1])


def attend_heads(
    query_BHQE: Tensor,
    key_BHKE: Tensor,
    value_BHKF: Tensor,
    power: Power,
    alpha: Tensor | None,
    scores: Scores,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the context (B, H, Q, F), and the weights (B, H, Q, K) if they were formed.

    Args:
        query_BHQE, key_BHKE, value_BHKF: of one dtype; keys and values may have fewer heads, of
            which each serves as many consecutive heads of queries.
        power: the map.
        alpha: broadcastable to (B, H, Q, 1) for `Power.ANY`, else None.
        scores: scale, mask and what else changes the scores.
        dropout: rate on the weights; those returned are without it.
        need_weights: whether weights must be formed.
    """
    others = scores.others
    if others is not None:
        log_once(dispatch.Choice(dispatch.WEIGHTS, f"scores with {others}"))
    elif not need_weights:
        # kernels on GPUs have one α per head
        is_per_row = alpha is not None and alpha.shape[0] * alpha.shape[2] > 1
        context = attend(
            query_BHQE, key_BHKE, value_BHKF, power, alpha, is_per_row, scores.visible,
            dropout, scale=scores.scale,
        )  # fmt: skip
        if context is not None:
            return context, None
    key_BHKE, value_BHKF = (repeated(x, query_BHQE.shape[1]) for x in (key_BHKE, value_BHKF))
    scores_BHQK = reference.scores(
        query_BHQE, key_BHKE, scores.scale, softcap=scores.softcap, bias=scores.bias
    )
    n_queries, n_keys = scores_BHQK.shape[2:]
    mask = scores.visible.dense(n_queries, n_keys, scores_BHQK.device)
    weights_BHQK = reference.weights(scores_BHQK, power, alpha, mask, scores.sinks_H)
    return reference.context(weights_BHQK, value_BHKF, dropout), weights_BHQK


def in_autocast(*states: Tensor) -> list[Tensor]:
    """Return states in the dtype of autocast, if it is enabled, as torch's attention casts them."""
    device_type = states[0].device.type
    if not torch.is_autocast_enabled(device_type):
        return [*states]
    return [x.to(torch.get_autocast_dtype(device_type)) for x in states]


def _map_of(name: str, alpha: Tensor | float | None, query: Tensor) -> tuple[Power, Tensor | None]:
    """Return the map, and α as four axes (B or 1, H or 1, Q or 1, 1) if the map needs it."""
    if name not in MAPS:
        raise ValueError(f"attention must be one of {', '.join(MAPS)}, got {name!r}")
    if (alpha is None) == (name == "alpha_entmax"):
        needs = "needs alpha, such as 1.5 or a HeadAlpha()" if alpha is None else "takes no alpha"
        raise ValueError(f"attention={name!r} {needs}")
    if alpha is None:
        return MAPS[name], None
    dtype = torch.promote_types(query.dtype, torch.float32)
    if not isinstance(alpha, Tensor):
        if not 1 <= alpha <= 2:
            raise ValueError(f"alpha must be in [1, 2], got {alpha}")
        power = POWERS.get(alpha, Power.ANY)
        is_any = power is Power.ANY
        return power, query.new_full((1,) * 4, alpha, dtype=dtype) if is_any else None
    if not alpha.is_floating_point() or alpha.device != query.device:
        raise TypeError(f"alpha must be floating-point on {query.device}, got {alpha.dtype}")
    if alpha.dim() == 1:  # one per head
        alpha = alpha[:, None, None]
    return Power.ANY, _four_axes("alpha", alpha.to(dtype), (*_rows(query), 1))


def _rows(query: Tensor) -> tuple[int, ...]:
    """Return (..., H, Q), with H = 1 for a matrix."""
    return (1,) * (3 - query.dim()) + tuple(query.shape[:-1])


def _four_axes(name: str, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return values that broadcast to (..., H, Q, K) as values that broadcast to (B, H, Q, K)."""
    padded = values.reshape((1,) * (len(shape) - values.dim()) + tuple(values.shape))
    sizes = zip(padded.shape, shape, strict=False)
    if padded.dim() > len(shape) or any(size not in (1, whole) for size, whole in sizes):
        raise ValueError(f"{name} must broadcast to {shape}, got {tuple(values.shape)}")
    if len(shape) > 4:
        padded = padded.expand(*shape[:-3], *padded.shape[-3:]).flatten(0, -4)
    return padded.reshape((1,) * (4 - padded.dim()) + tuple(padded.shape))


def _heads(query: Tensor, key: Tensor, value: Tensor, is_grouped: bool) -> list[Tensor]:
    """Return query, key and value with four axes and of one dtype.

    Keys and values have as many heads as queries, or both a divisor of that.
    """
    heads = [query, key, value]
    if any(states.is_nested for states in heads):
        raise TypeError("query, key and value must not be nested: pad them, and use attn_mask")
    shapes = [tuple(states.shape) for states in heads]
    if query.dim() < 2 or not query.dim() == key.dim() == value.dim():
        raise ValueError(f"query, key and value must have as many axes, at least 2, got {shapes}")
    heads = in_autocast(*heads)
    if not query.is_floating_point() or len({(x.dtype, x.device) for x in heads}) > 1:
        given = ", ".join(f"{x.dtype} on {x.device}" for x in heads)
        raise TypeError(f"query, key and value must share a floating-point dtype, got {given}")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(f"shapes of query, key and value do not match: {shapes}")
    if not query.shape[-1]:
        raise ValueError(f"heads have a width of 0: {shapes}")
    *batch, n_heads, _ = _rows(query)
    n_shared = max(1, _rows(key)[-2], _rows(value)[-2]) if is_grouped else n_heads
    n_shared = n_heads if n_heads % n_shared else n_shared
    joined = []
    for states, n in zip(heads, (n_heads, n_shared, n_shared), strict=True):
        own = _rows(states)
        states = states.reshape(*own, states.shape[-1])
        if is_grouped and own[-2] and not n % own[-2]:
            states = repeated(states, n)
        whole = (*batch, n, *states.shape[-2:])
        if any(size not in (1, full) for size, full in zip(states.shape, whole, strict=True)):
            advice = "" if is_grouped else "; for grouped keys, enable_gqa=True"
            raise ValueError(f"heads of query, key and value do not match: {shapes}{advice}")
        joined.append(states.expand(whole).reshape(math.prod(batch), *whole[-3:]))
    return joined


def _visible(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool
) -> tuple[Visible, Tensor | None]:
    """Return which keys are visible, and the bias of an additive mask."""
    if mask is None:
        return Visible(causal=causal), None
    if mask.device != query.device or not (mask.dtype is torch.bool or mask.is_floating_point()):
        given = f"{mask.dtype} on {mask.device}"
        raise TypeError(f"attn_mask must be bool or floating-point on {query.device}, got {given}")
    mask = _four_axes("attn_mask", mask, (*_rows(query), key.shape[-2]))
    if mask.dtype is torch.bool:
        return Visible(causal=causal, mask=mask), None
    return Visible(causal=causal), mask

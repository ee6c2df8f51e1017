"""The attention function that sparse models of Transformers call.

Transformers' `AttentionInterface` calls it in place of its own functions, with masks of
`AttentionMaskInterface`: without one registered under the same name, every mask would be None.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask, sdpa_mask

from headwise.nn.functional import MAPS, Keys, Scores, attend_heads, in_autocast, repeated
from headwise.ops.family import ALPHAS

# Names of the attention implementation. The second is for parts whose dense attention is `eager`:
# their masks are additive, always made, and may be read elsewhere; `is_causal` has no effect.
NAME, EAGER = "headwise", "headwise_eager"
NAMES = (NAME, EAGER)
HEAD_ALPHA = "head_alpha"  # attribute of a sparse attention: its `HeadAlpha` or `FixedMap`
# Keyword arguments of attention functions; masks already contain what the last ones restrict.
KNOWN = {
    "query", "key", "value", "attention_mask", "scaling", "dropout", "is_causal", "softcap",
    "s_aux", "position_bias", "output_attentions", "sliding_window", "position_ids",
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "deterministic",
}  # fmt: skip

Recorder = Callable[[nn.Module, Tensor, Keys], None]
# Whether the model that is called was asked for its weights; some models do not tell their layers.
_ASKED: ContextVar[tuple[bool, ...]] = ContextVar("asked", default=())
_MESH: ContextVar[Any] = ContextVar("mesh", default=None)  # of the model that was called last
_RECORDERS: ContextVar[tuple[Recorder, ...]] = ContextVar("recorders", default=())


class FixedMap(nn.Module):
    """The map of an attention without a learned α, by its name; else a `HeadAlpha` is there."""

    def __init__(self, n_heads: int, attention: str) -> None:
        super().__init__()
        self.n_heads, self.attention = n_heads, attention
        if attention != "softmax":  # saved, so that loaders that do not know it name it
            self.register_buffer("alpha", torch.tensor(ALPHAS[MAPS[attention]]))

    def forward(self) -> None:
        """Return None: there is no α."""

    def extra_repr(self) -> str:
        """Return the name of the map, for printing a model."""
        return f"{self.n_heads} heads, {self.attention}"


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the context (B, Q, H, E), and the weights (B, H, Q, K) if they were asked for.

    Args:
        module: the attention that calls.
        query: (B, H, Q, E).
        key, value: (B, H or a divisor, K, E).
        attention_mask: broadcastable to (B, H, Q, K), bool (True = may attend) or added to the
            scores; None: causal if `is_causal` or, by default, `module.is_causal` says so.
        scaling: factor of the products; None: E^-0.5.
        dropout: rate on the weights.
        softcap, s_aux, position_bias: soft bound, sinks (H,) and bias of the scores.
    """
    maps = getattr(module, HEAD_ALPHA, None)
    if maps is None:
        raise ValueError(
            f"this {type(module).__name__} has no sparse heads, though its attn_implementation is "
            f"{NAME!r}: call headwise.hf.sparsify(model)"
        )
    query, key, value = in_autocast(query, key, value)  # rotated queries are float32, values not
    n_queries, bias = query.shape[2], position_bias
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    is_causal = bool(is_causal) and n_queries > 1 and attention_mask is None
    if is_causal and key.shape[2] > n_queries:  # the first call with a static cache
        key, value = key[:, :, :n_queries], value[:, :, :n_queries]
        bias = None if bias is None else bias[..., :n_queries]
    if attention_mask is not None and attention_mask.dtype is not torch.bool:  # a user's own
        bias = attention_mask if bias is None else bias + attention_mask
        attention_mask = attention_mask > torch.finfo(attention_mask.dtype).min / 2
    key, value = repeated(key, query.shape[1]), repeated(value, query.shape[1])  # grouped keys
    keys = Keys(attention_mask, is_causal)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    alpha = maps()  # also of a module that PEFT has wrapped
    if alpha is not None and query.shape[1] != len(alpha):  # tensor parallel
        alpha = of_rank(alpha, query.shape[1], _MESH.get())
    alpha = None if alpha is None else alpha[None, :, None, None]
    recorders: tuple[Recorder, ...] = ()
    is_asked = bool(kwargs.get("output_attentions"))
    if not torch.compiler.is_compiling():
        recorders = _RECORDERS.get()
        is_asked = is_asked or any(_ASKED.get()[-1:])
    context, weights = attend_heads(
        query, key, value, MAPS[maps.attention], alpha, Scores(keys, scale, bias, softcap, s_aux),
        float(dropout), is_asked or bool(recorders),
    )  # fmt: skip
    if weights is not None:
        for recorder in recorders:
            recorder(module, weights, keys)
    # contiguous, as sdpa's: some models view it
    return context.transpose(1, 2).contiguous(), weights if is_asked else None


def eager_attention_forward(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """Return what `attention_forward` does; without a mask, all keys are visible."""
    return attention_forward(*args, **{**kwargs, "is_causal": False})


class _OfRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, alpha: Tensor, n_heads: int, group: Any) -> Tensor:
        ctx.n, ctx.first, ctx.group = len(alpha), group.rank() * n_heads, group
        return alpha[ctx.first : ctx.first + n_heads].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        whole = grad.new_zeros(ctx.n)
        whole[ctx.first : ctx.first + len(grad)] = grad
        torch.distributed.all_reduce(whole, group=ctx.group)
        return whole, None, None


def of_rank(alpha: Tensor, n_heads: int, mesh: Any) -> Tensor:
    """Return α of the heads of this rank under tensor parallelism."""
    group = None if mesh is None else mesh.get_group("tp" if mesh.ndim > 1 else 0)
    if group is None or group.size() * n_heads != len(alpha):
        raise ValueError(f"{len(alpha)} heads have an α, but the attention computes {n_heads}")
    sharded: Tensor = _OfRank.apply(alpha, n_heads, group)  # type: ignore[no-untyped-call]
    return sharded


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Call `recorder` with every attention, its weights (B, H, Q, K) and its keys."""
    token = _RECORDERS.set((*_RECORDERS.get(), recorder))
    try:
        yield
    finally:
        _RECORDERS.reset(token)


def note_call(model: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Before a model is called: note whether it was asked for its weights.

    Raises:
        RuntimeError: its attention implementation was changed, which leaves α without effect.
    """
    if model.config._attn_implementation not in NAMES:
        raise RuntimeError(
            f"attn_implementation={model.config._attn_implementation!r} was set on a sparse model, "
            "whose α would have no effect: call headwise.hf.desparsify before"
        )
    if getattr(model, "_device_mesh", None) is not None:
        _MESH.set(model._device_mesh)
    if not torch.compiler.is_compiling():
        asked = _ASKED.get()
        _ASKED.set((*asked, bool(kwargs.get("output_attentions")) or any(asked[-1:])))


def forget_call(model: Any, args: Any, output: Any) -> None:
    """After a model was called: forget what `note_call` noted."""
    if not torch.compiler.is_compiling():
        _ASKED.set(_ASKED.get()[:-1])


def alpha_of(module: nn.Module) -> Tensor | None:
    """Return α (H,) of a sparse attention, or None if it has no α of its own."""
    alpha: Tensor | None = getattr(module, HEAD_ALPHA)()
    return None if alpha is None else alpha.detach()


AttentionInterface.register(EAGER, eager_attention_forward)
AttentionMaskInterface.register(EAGER, eager_mask)
AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)

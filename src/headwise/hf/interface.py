"""The attention function that sparse models of Transformers call.

Transformers' `AttentionInterface` calls it in place of its own functions, with masks of
`AttentionMaskInterface`: without one registered under the same name, every mask would be None.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask, sdpa_mask

from headwise.hf.masks import UnformedMask, mask_for
from headwise.nn.functional import MAPS, Scores, attend_heads, in_autocast
from headwise.ops.family import ALPHAS
from headwise.ops.visible import Visible

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

Recorder = Callable[[nn.Module, Tensor, Visible], None]
# Whether the model that is called was asked for its weights; some models do not tell their layers.
_ASKED: ContextVar[tuple[bool, ...]] = ContextVar("asked", default=())
_RECORDERS: ContextVar[tuple[Recorder, ...]] = ContextVar("recorders", default=())


class FixedMap(nn.Module):
    """The map of an attention without a learned α, by its name; else a `HeadAlpha` is there."""

    def __init__(self, n_heads: int, attention: str, device: Any = None) -> None:
        super().__init__()
        self.n_heads, self.attention = n_heads, attention
        if attention != "softmax":  # saved, so that loaders that do not know it name it
            self.register_buffer("alpha", torch.tensor(ALPHAS[MAPS[attention]], device=device))

    def reset_parameters(self) -> None:
        """Set α where it is missing in what was loaded."""
        for alpha in self.buffers():
            nn.init.constant_(alpha, ALPHAS[MAPS[self.attention]])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, alpha in self.named_buffers():  # dense states, and those of headwise 0.1.0
            state_dict[f"{prefix}{name}"] = alpha
        super()._load_from_state_dict(state_dict, prefix, *rest)

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
            f"this {type(module).__name__} has no sparse heads, but attn_implementation={NAME!r}, "
            "set by hand or in the config of another model: call headwise.hf.sparsify(model)"
        )
    query, key, value = in_autocast(query, key, value)  # rotated queries are float32, values not
    n_queries, bias = query.shape[2], position_bias
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    is_causal = bool(is_causal) and n_queries > 1 and attention_mask is None
    if is_causal and key.shape[2] > n_queries:  # the first call with a static cache
        key, value = key[:, :, :n_queries], value[:, :, :n_queries]
        bias = None if bias is None else bias[..., :n_queries]
    visible = Visible(causal=is_causal)
    if isinstance(attention_mask, UnformedMask):
        visible, attention_mask = attention_mask.visible, None
    elif attention_mask is not None and attention_mask.dtype is not torch.bool:  # a user's own
        bias = attention_mask if bias is None else bias + attention_mask
        attention_mask = attention_mask > torch.finfo(attention_mask.dtype).min / 2
    if attention_mask is not None:
        visible = replace(visible, mask=attention_mask)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    alpha = maps()  # also of a module that PEFT has wrapped
    mesh = None
    if query.shape[1] != maps.n_heads:  # tensor parallelism: this process has some of the heads
        mesh = next((w.device_mesh for w in module.parameters() if isinstance(w, DTensor)), None)
        alpha = None if alpha is None else _of_process(alpha, query.shape[1], mesh)
    alpha = None if alpha is None else alpha[None, :, None, None]
    is_eager = not torch.compiler.is_compiling()
    recorders = _RECORDERS.get() if is_eager else ()
    is_asked = bool(kwargs.get("output_attentions")) or (is_eager and any(_ASKED.get()[-1:]))
    scores = Scores(visible, scale, bias, softcap, s_aux)
    context, weights = attend_heads(
        query, key, value, MAPS[maps.attention], alpha, scores, float(dropout),
        is_asked or bool(recorders),
    )  # fmt: skip
    if weights is not None and recorders:
        all_heads = weights
        if mesh is not None:
            all_heads = DTensor.from_local(weights, mesh, [Shard(1)]).full_tensor()
        for recorder in recorders:
            recorder(module, all_heads, visible)
    # contiguous, as sdpa's: some models view it
    return context.transpose(1, 2).contiguous(), weights if is_asked else None


def eager_attention_forward(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """Return what `attention_forward` does; without a mask, all keys are visible."""
    return attention_forward(*args, **{**kwargs, "is_causal": False})


def _of_process(alpha: Tensor, n_heads: int, mesh: Any) -> Tensor:
    """Return α of the heads of this process; the gradient is that of all heads."""
    if mesh is None or mesh.size() * n_heads != len(alpha):
        raise ValueError(f"{len(alpha)} heads have an α, but the attention computes {n_heads}")
    whole = DTensor.from_local(alpha, mesh, [Replicate()])
    return whole.redistribute(placements=[Shard(0)]).to_local()


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Call `recorder` with every attention, its weights (B, H, Q, K) and which keys it sees."""
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
    if not torch.compiler.is_compiling():
        asked = _ASKED.get()
        _ASKED.set((*asked, bool(kwargs.get("output_attentions")) or any(asked[-1:])))


def forget_call(model: Any, args: Any, output: Any) -> None:
    """After a model was called: forget what `note_call` noted."""
    if not torch.compiler.is_compiling():
        _ASKED.set(_ASKED.get()[:-1])


AttentionInterface.register(EAGER, eager_attention_forward)
AttentionMaskInterface.register(EAGER, functools.partial(mask_for, eager_mask))
AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, functools.partial(mask_for, sdpa_mask))

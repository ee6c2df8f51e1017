"""Multi-head attention in place of `torch.nn.MultiheadAttention`.

Axes: B batch, H heads, Q and K numbers of queries and keys, D model width, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from torch.nn.modules.module import register_module_module_registration_hook

from headwise.compilation import is_traced
from headwise.nn.alpha import HeadAlpha
from headwise.nn.functional import MAPS, Scores, attend_heads
from headwise.ops.visible import Visible


class MultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with a map of the entmax family in place of softmax.

    Arguments, initial weights and masks are torch's; a boolean mask is True where a key is blocked.
    The weights of `torch.nn.MultiheadAttention` load with `strict=True`: they have no α, which then
    keeps its values. It may take the place of `self_attn` and `multihead_attn` in torch's encoder
    and decoder layers, before or after `torch.nn.TransformerEncoder` is built.

    Args:
        embed_dim: D, width of queries and of the output.
        num_heads: H, a divisor of D.
        dropout: rate on the weights in training, in [0, 1).
        bias: whether the projections have a bias.
        add_bias_kv: whether one learned key and value are appended.
        add_zero_attn: whether one key and value of zeros are appended.
        kdim: width of keys; None: D.
        vdim: width of values; None: D.
        batch_first: whether batched inputs are (B, Q, D); otherwise they are (Q, B, D).
        device: of the weights and α.
        dtype: of the weights; α is float32.
        attention: "alpha_entmax", with one learned α per head in `alpha`, or "softmax",
            "entmax15", "sparsemax".
        alpha_init: initial α of "alpha_entmax", in [1, 2]. At 1 the outputs are those of softmax.
        alpha_lr_factor: see `HeadAlpha`.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        attention: str = "alpha_entmax",
        alpha_init: float = 1.0,
        alpha_lr_factor: float = 10.0,
    ) -> None:
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} must be a multiple of num_heads {num_heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        if attention not in MAPS:
            raise ValueError(f"attention must be one of {', '.join(MAPS)}, got {attention!r}")
        options = (dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device)
        super().__init__(embed_dim, num_heads, *options, dtype=dtype)
        self.attention = attention
        is_learned = attention == "alpha_entmax"
        settings = (num_heads, alpha_init, alpha_lr_factor, True, device)
        self.alpha = HeadAlpha(*settings) if is_learned else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return outputs and weights, as `torch.nn.MultiheadAttention`.

        Args:
            query: (Q, D), or batched, see `batch_first`. A nested tensor is allowed for all three.
            key: (K, kdim), or batched.
            value: (K, vdim), or batched.
            key_padding_mask: (K,) or (B, K): bool, True = blocked, or added to the scores.
            need_weights: whether to return weights. Without them, faster kernels can be used.
            attn_mask: (Q, K) or (B · H, Q, K): bool, True = blocked, or added to the scores.
            average_attn_weights: whether returned weights are the mean over heads.
            is_causal: whether `attn_mask` is causal, or, without it, whether query i sees keys 0 to
                i only. With need_weights=False and no other mask, `attn_mask` is then not read.

        Returns:
            Outputs of the shape of `query`; weights, before dropout, (Q, K) or (B, Q, K), for each
            head (H, Q, K) or (B, H, Q, K), or None. A query without a visible key gets weights 0.

        Raises:
            ValueError: shapes do not match.
            TypeError: a mask is neither bool nor floating-point.
        """
        if query.is_nested or key.is_nested or value.is_nested:
            is_self = query is key and key is value and key_padding_mask is None
            if not is_self or attn_mask is not None:
                raise TypeError("nested tensors are for self-attention without masks alone")
            return self._attend_nested(query, need_weights, average_attn_weights, is_causal)
        is_batched = query.dim() == 3
        states = self._states(query, key, value)
        n_keys = states[1].shape[1]
        query_BHQE, key_BHKE, value_BHKE = (
            x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for x in self._with_appended_keys(*states)
        )
        n_appended = key_BHKE.shape[2] - n_keys
        shape_BHQK = (*query_BHQE.shape[:3], n_keys)
        if attn_mask is not None and is_causal:
            is_causal = not need_weights and key_padding_mask is None
            attn_mask = None if is_causal else attn_mask
        if is_causal and n_appended:  # they are visible to all queries
            attn_mask = query.new_ones(shape_BHQK[2:], dtype=torch.bool).triu(1)
        allowed, bias = _visible(shape_BHQK, key_padding_mask, attn_mask, n_appended)
        visible = Visible(causal=is_causal and not n_appended, mask=allowed)
        alpha = None if self.alpha is None else self.alpha()[None, :, None, None]
        context_BHQE, weights = attend_heads(
            query_BHQE, key_BHKE, value_BHKE, MAPS[self.attention], alpha,
            Scores(visible, self.head_dim**-0.5, bias),
            self.dropout if self.training else 0.0, need_weights,
        )  # fmt: skip
        context = context_BHQE.transpose(1, 2).flatten(2)
        if is_batched and not self.batch_first:
            context = context.transpose(0, 1)
        output = linear(context, self.out_proj.weight, self.out_proj.bias)
        output = output if is_batched else output[0]
        if not need_weights or weights is None:
            return output, None
        weights = weights.mean(1) if average_attn_weights else weights
        return output, weights if is_batched else weights[0]

    def _attend_nested(
        self, states: Tensor, need_weights: bool, average: bool, is_causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend within a nested tensor of (Q, D), as `torch.nn.TransformerEncoder` makes it."""
        lengths = torch.tensor([len(row) for row in states.unbind()], device=states.device)
        padded = states.to_padded_tensor(0.0)
        is_padding_BK = torch.arange(padded.shape[1], device=states.device) >= lengths[:, None]
        inputs = padded if self.batch_first else padded.transpose(0, 1)
        output, weights = self(
            inputs, inputs, inputs, is_padding_BK, need_weights, None, average, is_causal
        )
        output = output if self.batch_first else output.transpose(0, 1)
        rows = [row[:length] for row, length in zip(output, lengths, strict=True)]
        return torch.nested.as_nested_tensor(rows, layout=states.layout), weights

    def _states(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return the projected query (B, Q, D), key and value (B, K, D)."""
        shapes = [tuple(x.shape) for x in (query, key, value)]
        widths = (self.embed_dim, self.kdim, self.vdim)
        batch_axis = 0 if self.batch_first else 1
        if (
            query.dim() not in (2, 3)
            or not query.dim() == key.dim() == value.dim()
            or tuple(shape[-1] for shape in shapes) != widths
            or shapes[1][:-1] != shapes[2][:-1]
            or (query.dim() == 3 and query.shape[batch_axis] != key.shape[batch_axis])
        ):
            raise ValueError(
                f"query, key and value must be (Q, {widths[0]}), (K, {widths[1]}), "
                f"(K, {widths[2]}), or batched, got {', '.join(map(str, shapes))}"
            )
        states = self._project(query, key, value)
        if query.dim() == 2:
            return [x[None] for x in states]
        return [x if self.batch_first else x.transpose(0, 1) for x in states]

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        if not self.embed_dim == self.kdim == self.vdim:
            weights: Sequence[Tensor] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif query is key and key is value:
            return linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [linear(*each) for each in zip((query, key, value), weights, biases, strict=True)]

    def _with_appended_keys(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Append the learned key and value, and those of zeros, to (B, K, D)."""
        if self.bias_k is not None and self.bias_v is not None:
            key, value = (
                torch.cat([x, end.to(x.dtype).expand(len(x), 1, -1)], 1)
                for x, end in ((key, self.bias_k), (value, self.bias_v))
            )
        if self.add_zero_attn:
            key, value = pad(key, (0, 0, 0, 1)), pad(value, (0, 0, 0, 1))
        return [query, key, value]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if self.alpha is not None:
            start = self.alpha
            if start.bias.is_meta:
                start = HeadAlpha(self.num_heads, start.init, start.lr_factor)
            for name, value in start.state_dict(prefix=f"{prefix}alpha.").items():
                state_dict.setdefault(name, value)

    def extra_repr(self) -> str:
        """Return the map, for printing a model."""
        return f"attention={self.attention!r}"


def _set_slow_path(parent: nn.Module, name: str, child: nn.Module | None) -> None:
    """Make torch's encoder layers call `forward`: they would compute softmax from the weights."""
    if isinstance(child, MultiheadAttention) and isinstance(parent, nn.TransformerEncoderLayer):
        child._qkv_same_embed_dim = False  # not of all: PEFT's LoRA needs True


register_module_module_registration_hook(_set_slow_path)


def _visible(
    shape_BHQK: Sequence[int], padding: Tensor | None, pairs: Tensor | None, n_appended: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return which keys are visible, and the sum of additive masks; four axes each, or None.

    Args:
        shape_BHQK: of the scores, without appended keys.
        padding: `key_padding_mask`.
        pairs: `attn_mask`.
        n_appended: number of appended keys, visible to all queries.
    """
    n_batch, n_heads, n_queries, n_keys = shape_BHQK
    masks = []
    if padding is not None:
        shapes = [(n_batch, n_keys), (n_keys,)][: 2 if n_batch == 1 else 1]
        _check_mask("key_padding_mask", padding, shapes)
        padding = _as_bool(padding)
        masks.append(padding.reshape(n_batch, 1, 1, n_keys))
    if pairs is not None:
        _check_mask(
            "attn_mask", pairs, [(n_queries, n_keys), (n_batch * n_heads, n_queries, n_keys)]
        )
        outer = (1, 1) if pairs.dim() == 2 else (n_batch, n_heads)
        masks.append(pairs.reshape(*outer, n_queries, n_keys))
    allowed, bias = None, None
    for mask in (pad(mask, (0, n_appended)) for mask in masks):
        if mask.dtype is torch.bool:
            allowed = ~mask if allowed is None else allowed & ~mask
        else:
            bias = mask if bias is None else bias + mask
    return allowed, bias


def _as_bool(padding: Tensor) -> Tensor:
    """Return an additive mask of 0 and -inf, as torch's encoder makes of a bool one, as bool."""
    if padding.dtype is torch.bool or padding.requires_grad or is_traced():
        return padding
    is_blocked = padding == -torch.inf
    return is_blocked if bool((is_blocked | (padding == 0)).all()) else padding


def _check_mask(name: str, mask: Tensor, shapes: Sequence[tuple[int, ...]]) -> None:
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name} must be bool, True = blocked, or floating-point, got {mask.dtype}")
    if tuple(mask.shape) not in shapes:
        allowed = " or ".join(map(str, shapes))
        raise ValueError(f"{name} must have the shape {allowed}, got {tuple(mask.shape)}")

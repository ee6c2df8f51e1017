"""Fused α-entmax attention on GPU, without Q x K memory, forward or backward.

The Triton kernels serve encoder, decoder and cross-attention, with an α per head, its gradient, and
dropout on the weights. For few keys, scores stay in registers (`triton_forward`); else they are
recomputed in each pass over the keys (`triton_forward_long`), as in AdaSplash (Gonçalves et al.
2025). Saved for the backward pass are two numbers per query, the
context with weights p^(2-α) instead of p, and one byte per block of BLOCK x BLOCK scores, so that
blocks without a weight are skipped. With a sparse pattern (`triton_blocks`), for softmax too, only
blocks with a visible pair are computed.

Triton is imported at the first call. With TRITON_INTERPRET=1 the kernels run on CPU, slowly.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.ops.attention import triton_launch, triton_tiles
from headwise.ops.attention.distances import Distances, slopes_of
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.attention.widths import of_one_width
from headwise.ops.family import POWERS, Power
from headwise.ops.triton.device import DTYPES, unavailable_reason
from headwise.ops.visible import EVERYTHING, Visible

HEAD_DIMS = (8, 256)


def unsupported_reason(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Visible = EVERYTHING,
    alpha_per_query: bool = False,
) -> str | None:
    """Return why the kernels do not support a call, for the log, or None if they do.

    Reads only shapes, dtypes and devices, so it can be called in every step. Sizes that do not fit
    together are an error of the operator.

    Args:
        query, key, value: as for `triton_entmax_attention`.
        visible: which keys, apart from those of a block layout.
        alpha_per_query: whether α differs by query.
    """
    reason = unavailable_reason(query.device)
    if reason is not None:
        return reason
    if visible.has_pattern:
        return "the pattern has no block layout here"
    if visible.mask is not None and visible.key_mask_BK is None:
        return "the mask differs by query or head"
    is_self = query.shape[2] == key.shape[2]
    if not is_self and not (visible.window is None and visible.segments_BN is None):
        return "a window or documents, with keys of earlier queries"
    if alpha_per_query:
        return "α depends on the query"
    if query.dtype not in DTYPES or not query.dtype == key.dtype == value.dtype:
        return (
            "queries, keys and values must share one dtype of float16, bfloat16 and float32, got "
            f"{query.dtype}, {key.dtype}, {value.dtype}"
        )
    low, high = HEAD_DIMS
    head_dim = max(query.shape[3], value.shape[3])
    if not low <= head_dim <= high:
        return f"the head width must be in [{low}, {high}], got {head_dim}"
    if 0 in query.shape or 0 in value.shape:
        return "there are no queries or no keys"
    if query.shape[1] % value.shape[1]:
        return (
            "the number of heads must be a multiple of that of the keys, got "
            f"{query.shape[1]} and {value.shape[1]}"
        )
    return None


def triton_entmax_attention(
    query_BHQE: Tensor,
    key_BHKE: Tensor,
    value_BHKE: Tensor,
    alpha_H: Tensor | float,
    key_lengths_B: Tensor | None = None,
    causal: bool = False,
    query_offset: int = 0,
    dropout: float = 0.0,
    scale: float | None = None,
    distances: Distances | None = None,
    layout: BlockLayout | None = None,
    generator: torch.Generator | None = None,
    keys_BK: Tensor | None = None,
    segments_BN: Tensor | None = None,
) -> Tensor:
    """Return the context Σ p v with p = α-entmax(scale q·k + bias), without forming weights.

    Does not synchronise with the device, and is deterministic. Dropout draws two words per query
    from torch's generator for the device; which weights are dropped depends only on these and the
    index of the key.

    Args:
        query_BHQE, key_BHKE, value_BHKE: one dtype of float16, bfloat16 and float32. Keys and
            values may have fewer heads, of which each serves as many consecutive heads of queries.
            If the stride of the last axis is not 1, or values have another width, they are copied.
        alpha_H: α of every head, (H,) or a scalar tensor, clamped to [1, 2]; or a number in
            [1, 2], without gradient. 1.5 and 2 have specialised kernels, and 1 with a layout.
        key_lengths_B: number of keys of each row of the batch before padding; None: all.
        causal: query i attends to the keys up to i + query_offset.
        query_offset: position of the first query.
        dropout: rate on the weights.
        scale: on the scores; None: 1/sqrt(E).
        distances: the bias, or None. Its slopes get no gradient.
        layout: of a sparse pattern, for self-attention over all positions: further restricts the
            keys, by `BlockLayout.rule`; None: no pattern.
        generator: from which the words of dropout are drawn; None: torch's for the device.
        keys_BK: bool, False for keys that no query sees, for padding on the left and holes. None:
            all, or those of the layout. Lengths and the mask restrict together.
        segments_BN: document of each position, for self-attention: only keys of the query's are
            visible. None: those of the layout, if it has any.

    Returns:
        (B, H, Q, E) in the values' dtype, with memory layout (B, Q, H, E). Queries without a key
        get zeros with zero gradients. Differentiable once in queries, keys, values, α.

    Raises:
        ValueError: unsupported tensors (see `unsupported_reason`), or a number out of range.
    """
    reason = unsupported_reason(query_BHQE, key_BHKE, value_BHKE)
    if reason is not None:
        raise ValueError(reason)
    if layout is not None and segments_BN is None:
        segments_BN = layout.segments_BN
    if layout is not None and keys_BK is None:
        keys_BK = layout.keys_BN
    if query_BHQE.shape[3] != key_BHKE.shape[3]:  # the operator sees them padded to one width
        raise ValueError(
            "queries and keys must have one width, got "
            f"{query_BHQE.shape[3]} and {key_BHKE.shape[3]}"
        )
    if scale is None:
        scale = query_BHQE.shape[-1] ** -0.5
    if scale <= 0:  # the kernels scale after the maximum of a row
        query_BHQE, scale = query_BHQE * (-1.0 if scale < 0 else 0.0), -scale or 1.0
    n_batch, n_heads, n_queries, _ = query_BHQE.shape
    power = Power.ANY
    if isinstance(alpha_H, Tensor):
        alpha_H = alpha_H.float().expand(n_heads).contiguous()
    else:
        if not 1 <= alpha_H <= 2:
            raise ValueError(f"alpha must be in [1, 2], got {alpha_H}")
        if alpha_H > 1 or layout is not None:  # without one there is no specialisation for softmax
            power = POWERS.get(alpha_H, Power.ANY)
        alpha_H = torch.full((n_heads,), alpha_H, device=query_BHQE.device)
    if key_lengths_B is not None:
        key_lengths_B = key_lengths_B.expand(n_batch).contiguous()
    if keys_BK is not None:
        keys_BK = keys_BK.expand(n_batch, -1).contiguous()
    is_self = not query_offset and n_queries == key_BHKE.shape[2]
    if not is_self and not (segments_BN is None and layout is None):
        raise ValueError("documents and patterns are for self-attention over all positions")
    if segments_BN is not None:
        segments_BN = segments_BN.int().expand(n_batch, -1).contiguous()
    row_keys = None
    if dropout:
        row_keys = torch.randint(
            -triton_launch.WORD // 2,
            triton_launch.WORD // 2,
            (2, n_batch, n_heads, n_queries),
            dtype=torch.int32,
            device=query_BHQE.device,
            generator=generator,
        )
    query, key, value = of_one_width(query_BHQE, key_BHKE, value_BHKE)
    slopes, n_prefix = slopes_of(distances)
    pattern: Sequence[Tensor | None] = (None, None, None)
    if layout is not None:
        sizes = (n_queries, query.shape[3], query.element_size())
        pattern = layout.tiles(triton_tiles.blocks(*sizes, has_pattern=True)[1])
    context: Tensor = triton_launch.forward(
        query, key, value, alpha_H, key_lengths_B, keys_BK, segments_BN, row_keys, slopes, *pattern,
        int(power), causal, query_offset, dropout, scale, n_prefix,
    )[0]  # fmt: skip
    return context[..., : value_BHKE.shape[3]]

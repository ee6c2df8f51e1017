"""Masks of Transformers as what they say, made dense only where their values are read.

Transformers makes masks (B, 1, Q, K) from functions of positions: causality, a window, documents,
padding. Kernels that form no weights take these parts instead, in memory of O(Q + K).

Axes: B batch, Q and K numbers of queries and keys, N positions of a self-attention.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import masking_utils
from transformers.masking_utils import eager_mask, sdpa_mask

from headwise.compilation import is_traced
from headwise.ops.visible import Visible

# What a function of Transformers returns has its inner code, and holds its arguments.
_ALL_OF = masking_utils.and_masks().__code__
_WINDOW_BEFORE = masking_utils.sliding_window_overlay(1).__code__
_WINDOW_AROUND = masking_utils.sliding_window_bidirectional_overlay(1).__code__
_SAME_DOCUMENT = masking_utils.packed_sequence_mask_function(torch.empty(0)).__code__
_remap: Any = getattr(masking_utils, "remap_positions_for_packed_sequence", None)  # since 5.24
_IN_DOCUMENT = _remap(print, torch.empty(0)).__code__ if _remap else object()


class UnformedMask(Tensor):
    """A mask (B, 1, Q, K) that is computed where an operation needs its values.

    Models hand it on to `attention_forward`, which reads `visible`; whatever else is done with it
    is done with `formed()`, so that code that changes masks gets what it expects.

    Attributes:
        visible: which keys the mask leaves.
    """

    visible: Visible
    _form: Callable[[], Tensor | None]

    @staticmethod
    def __new__(
        cls, visible: Visible, shape: tuple[int, ...], form: Callable[[], Tensor | None],
        dtype: torch.dtype, device: torch.device,
    ) -> Self:  # fmt: skip
        """Return a mask of a shape, whose values `form` computes."""
        mask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        mask.visible, mask._form = visible, form
        return mask

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map_only(cls, cls.formed, (args, kwargs or {}))
        return operation(*args, **kwargs)

    def formed(self) -> Tensor | None:
        """Return the mask as Transformers makes it."""
        return self._form()


def visible_by(function: Any) -> Visible | None:
    """Return what a mask function of Transformers leaves visible, or None if that is another form.

    The parts are read from the function itself: its code and the arguments that it holds.
    """
    causal, is_in_document, documents_BN = False, False, None
    before: list[int] = []
    around: list[int] = []
    functions = [function]
    while functions:
        one = functions.pop()
        code = getattr(one, "__code__", None)
        held = [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
        if one is masking_utils.causal_mask_function:
            causal = True
        elif code is _ALL_OF:
            functions += held[0]
        elif code is _IN_DOCUMENT:  # positions within documents differ as positions do
            is_in_document = True
            functions.append(held[0])
        elif code is _SAME_DOCUMENT and documents_BN is None:
            documents_BN = held[0]
        elif code is _WINDOW_BEFORE:
            before.append(held[0] - 1)
        elif code is _WINDOW_AROUND:
            around.append(held[0])
        elif one is not masking_utils.bidirectional_mask_function:
            return None
    if (before and not causal) or (is_in_document and documents_BN is None):
        return None
    window = min(before + around, default=None)
    return Visible(causal=causal, window=window, segments_BN=documents_BN)


def mask_for(
    form: Callable[..., Tensor | None], *, q_length: int, kv_length: int, batch_size: int,
    mask_function: Any = masking_utils.causal_mask_function, q_offset: int | Tensor = 0,
    kv_offset: int = 0, attention_mask: Tensor | None = None, use_vmap: bool = False, **rest: Any,
) -> Tensor | None:  # fmt: skip
    """Return the mask that `form` makes, unformed if kernels can read what it says.

    Args:
        form: `sdpa_mask` or `eager_mask` of Transformers, for which the other arguments are.
    """
    call = {
        "q_length": q_length, "kv_length": kv_length, "batch_size": batch_size,
        "mask_function": mask_function, "q_offset": q_offset, "kv_offset": kv_offset,
        "attention_mask": attention_mask, "use_vmap": use_vmap, **rest,
    }  # fmt: skip
    visible = None
    offset = q_offset if isinstance(q_offset, int) else None  # a tensor of static caches
    # one query, in decoding, has a small mask
    if not (is_traced() or use_vmap or kv_offset or q_length == 1):
        visible = visible_by(mask_function)
    if visible is None or offset is None:
        return form(**call)
    dtype = torch.bool
    if form is eager_mask:
        dtype, call["allow_is_causal_skip"] = rest["dtype"], False
    padding = sdpa_mask(**call | {"mask_function": _everything})  # expanded to all queries
    if padding is None:
        return None
    window = visible.window
    if window is not None and window >= max(offset + q_length, kv_length) - 1:
        window = None  # no key is so far away
    visible = replace(visible, query_offset=offset, window=window)
    if attention_mask is not None:
        visible = with_padding(visible, padding[:, 0, 0])
    shape, device = tuple(padding.shape), padding.device
    return UnformedMask(visible, shape, functools.cache(lambda: form(**call)), dtype, device)


def with_padding(visible: Visible, keys_BK: Tensor) -> Visible:
    """Return what is visible among the keys that are True: by lengths if padding is on the right.

    Waits for the device, as Transformers does when it asks whether there is padding.
    """
    lengths_B = keys_BK.sum(1)
    positions_K = torch.arange(keys_BK.shape[1], device=keys_BK.device)
    if bool((keys_BK == (positions_K < lengths_B[:, None])).all()):
        return replace(visible, key_lengths_B=lengths_B)
    return replace(visible, mask=keys_BK[:, None, None])


def _everything(sentence: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
    return query.new_ones((1, 1, 1, 1), dtype=torch.bool)

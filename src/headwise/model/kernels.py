"""Verification and names of the kernels that a model uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention.fused import FusedNormaliser
from headwise.attention.scores import ScoreAttention
from headwise.ops import dispatch, linear, verification
from headwise.ops.maps.operator import REFERENCE

Gather = Callable[[list[Any]], list[Any]]


def kernels_of(
    model: nn.Module, alpha: float | None, matmul_dtype: torch.dtype, gather: Gather = list
) -> dict[str, str]:
    """Return the kernels of a model: part -> kernel (reason).

    Every kernel that decoding or training may use is verified, unless a verdict is cached. A kernel
    that is wrong on one rank is used by none.

    Args:
        model: on its device.
        alpha: of the loss over the vocabulary; None without training.
        matmul_dtype: of matmuls; under autocast, the autocast dtype.
        gather: concatenates the lists of all ranks.
    """
    device = next(model.parameters()).device
    _choices(model, alpha, device, matmul_dtype)
    wrong = verification.rejected()
    for rank_cases in gather([wrong]):
        verification.reject(rank_cases)
    return _choices(model, alpha, device, matmul_dtype)


def _choices(
    model: nn.Module, alpha: float | None, device: torch.device, matmul_dtype: torch.dtype
) -> dict[str, str]:
    """Return the choices of `headwise.ops.dispatch` for the tensors of the model."""

    def empty(*shape: int, dtype: torch.dtype = matmul_dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    kernels: dict[str, set[str]] = defaultdict(set)
    scores = empty(1, 1, 1, 1, dtype=torch.float32)
    for normaliser in model.modules():
        if isinstance(normaliser, FusedNormaliser):
            kernels["maps"].add(str(dispatch.maps(scores, normaliser.power, REFERENCE)))
    for attention in model.modules():
        if not (isinstance(attention, ScoreAttention) and attention.normaliser.is_fused):
            continue
        normaliser = attention.normaliser
        assert isinstance(normaliser, FusedNormaliser)
        keys = empty(1, 1, dispatch.MIN_KEYS, attention.place.key_dim)
        values = empty(1, 1, dispatch.MIN_KEYS, attention.place.head_dim)
        cases = [("attention", keys, 0.0), ("attention of few queries", keys[:, :, :1], 0.0)]
        if alpha is not None:
            cases.append(("attention in training", keys, attention.dropout))
        for part, queries, rate in cases:
            distances = attention.positions and attention.positions.distances(0)
            with torch.set_grad_enabled(part != "attention of few queries"):
                kernel = normaliser.kernel(
                    queries, keys, values, False, rate, distances is not None
                )
            kernels[part].add(str(kernel))
            if attention.pattern is not None and queries is keys:
                options = (rate, normaliser.alpha_per_query, False)
                kernel = dispatch.sparse_attention(
                    keys, values, normaliser.power, *options, REFERENCE
                )
                kernels[f"{part} of long input with a pattern"].add(str(kernel))
    if alpha is not None:
        kernels["losses"] = {str(dispatch.losses(empty(1, 1), alpha, REFERENCE))}
        for dtype in {matmul_dtype, torch.float32}:
            kernels["dropout"].add(str(dispatch.dropout(empty(1, dtype=dtype))))
    is_onednn = device.type == "cpu" and matmul_dtype in linear.DTYPES
    kernels["linear maps"] = {"oneDNN" if is_onednn else "torch"}
    return {part: ", ".join(sorted(names)) for part, names in kernels.items()}

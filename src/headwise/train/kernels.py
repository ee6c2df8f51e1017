"""The kernels that a model uses, by part, for dry runs, `environment.json` and resumed runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention.attention import ScoreAttention
from headwise.attention.normaliser import FusedNormaliser
from headwise.ops import dispatch, linear
from headwise.ops.dispatch import Choice
from headwise.ops.visible import Visible
from headwise.precision import matmul_dtype


def kernels_of(
    model: nn.Module, loss: nn.Module, precision: str, device: torch.device
) -> dict[str, str]:
    """Return the kernels of a model in training: part -> kernel (reason).

    Args:
        model: on any device, meta included.
        loss: over the vocabulary.
        precision: `trainer.precision`.
        device: on which the model is trained.
    """
    dtype = matmul_dtype(precision, device)

    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    kernels: dict[str, set[Choice]] = defaultdict(set)
    scores = empty(1, 1, 1, 1, dtype=torch.float32)
    padded = Visible(empty(1, dtype=torch.int64))
    for module in model.modules():
        if isinstance(module, FusedNormaliser):
            kernels["maps"].add(dispatch.maps(scores, module.power))
        if isinstance(module, ScoreAttention) and isinstance(module.normaliser, FusedNormaliser):
            power, per_query = module.normaliser.power, module.normaliser.alpha_per_query
            keys = empty(1, 1, dispatch.MIN_KEYS, module.place.key_dim)
            heads = (keys, keys, empty(1, 1, dispatch.MIN_KEYS, module.place.head_dim))
            is_biased = bool(module.positions and module.positions.distances(0))
            for part, rate in (("attention", 0.0), ("attention in training", module.dropout)):
                choice = dispatch.attention(
                    *heads, power, padded, dropout=rate, alpha_per_query=per_query,
                    has_bias=is_biased,
                )  # fmt: skip
                kernels[part].add(choice)
            if module.pattern is not None:
                choice = dispatch.sparse_attention(keys, heads[2], power, alpha_per_query=per_query)
                kernels["attention of long input with a pattern"].add(choice)
    kernels["losses"].add(dispatch.losses(empty(1, 1), getattr(loss, "alpha", 1.0)))
    kernels["dropout"].add(dispatch.dropout(empty(1)))
    is_onednn = device.type == "cpu" and dtype in linear.DTYPES
    kernels["linear maps"].add(Choice("oneDNN" if is_onednn else "torch", str(dtype)))
    return {part: ", ".join(sorted(map(str, used))) for part, used in kernels.items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how torch, the kernels, the GPU and the threads of two `environment.json` differ."""
    pairs = {"torch": [str(one.get("versions", {}).get("torch")) for one in (before, now)]}
    for part, kernel in now.get("kernels", {}).items():
        pairs[part] = [before.get("kernels", {}).get(part, kernel), kernel]
    for key in ["gpu"] if now["gpu"] else ["gpu", "threads"]:
        pairs[key] = [before.get(key, now[key]), now[key]]
    return [f"{name}: {old} -> {new}" for name, (old, new) in pairs.items() if old != new]

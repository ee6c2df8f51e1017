"""α and weights of the heads of sparse models.

Axes: B batch, H heads, Q and K numbers of queries and keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.hf.interface import HEAD_ALPHA, recording

if TYPE_CHECKING:
    import pandas as pd

# Columns of inputs that queries and keys of a site come from.
COLUMNS = {"encoder_self": ("source",) * 2, "decoder_self": ("target",) * 2}
COLUMNS["cross"] = ("target", "source")
CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)


def places(model: nn.Module) -> dict[nn.Module, tuple[str, str, int]]:
    """Return the name, the site and the layer of every sparse attention.

    Sites are `encoder_self`, `decoder_self` (causal) and `cross`; layers of a site count from 1.

    Raises:
        ValueError: no attention is sparse.
    """
    by_module: dict[nn.Module, tuple[str, str, int]] = {}
    counts: dict[str, int] = {}
    for name, module in model.named_modules():
        if hasattr(module, HEAD_ALPHA):
            site = "encoder_self"
            if CROSS.search(name):
                site = "cross"
            elif getattr(module, "is_causal", False) or "decoder." in name:
                site = "decoder_self"
            counts[site] = counts.get(site, 0) + 1
            by_module[module] = (name, site, counts[site])
    if not by_module:
        raise ValueError(f"{type(model).__name__} has no sparse heads: headwise.hf.sparsify(model)")
    return by_module


def alphas(model: nn.Module) -> dict[nn.Module, Tensor | None]:
    """Return α (H,) of every sparse attention, None for those without a learned α."""
    whole = getattr(model, "summon_full_params", None)  # FSDP version 1 cuts parameters
    with torch.no_grad(), nullcontext() if whole is None else whole(model, writeback=False):
        alpha_H = {module: getattr(module, HEAD_ALPHA)() for module in places(model)}
    for module, alpha in alpha_H.items():
        if alpha is not None and len(alpha) != getattr(module, HEAD_ALPHA).n_heads:
            raise ValueError("α is sharded: pass the model that FullyShardedDataParallel returned")
    return alpha_H


def heads(model: nn.Module) -> pd.DataFrame:
    """Return α of every head: a table of module, site, layer, head and alpha.

    Layers and heads count from 1. α is missing for heads without an α of their own. Under FSDP,
    all processes must call this, with the model that FSDP returned.
    """
    import pandas as pd

    rows, alpha_H = [], alphas(model)
    for module, (name, site, layer) in places(model).items():
        alpha = alpha_H[module]
        values = [None] * getattr(module, HEAD_ALPHA).n_heads if alpha is None else alpha.tolist()
        rows += [(name, site, layer, head, value) for head, value in enumerate(values, 1)]
    return pd.DataFrame(rows, columns=["module", "site", "layer", "head", "alpha"])


@contextmanager
def recorded_weights(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Record the weights of every sparse attention: name -> (B, H, Q, K) of every call.

    For all models, also those that do not hand on `output_attentions=True`; not of compiled calls,
    nor of other threads. With gradient checkpointing, the backward pass calls attentions again.
    """
    names = {module: name for module, (name, _, _) in places(model).items()}
    weights: dict[str, list[Tensor]] = {}

    def record(module: nn.Module, weights_BHQK: Tensor, keys: object) -> None:
        if module in names:
            weights.setdefault(names[module], []).append(weights_BHQK.detach())

    with recording(record):
        yield weights

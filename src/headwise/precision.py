"""Precision of matmuls, and choice of GPU kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from headwise.errors import refuse

PRECISIONS = ("auto", "fp32", "bf16")


def check_precision(name: str, key: str) -> None:
    """Raise ConfigError if the value of `key` is not a precision."""
    if name not in PRECISIONS:
        raise refuse(key, name, PRECISIONS)


def resolve_precision(name: str, device: torch.device) -> str:
    """Resolve `auto`: bf16 if the device has native bf16 matmuls, else fp32.

    Autocast keeps parameters, norms and the loss in float32. The maps compute in float32; on a CPU,
    and where weights are formed, scores, weights and their gradients are rounded to bf16, which
    torch's matmuls of bf16 write. Fused attention on a CPU then has 2 to 5 times the error of
    torch's fused softmax (figures in `docs/speed.md`).
    """
    if name != "auto":
        return name
    return "bf16" if has_native_bf16(device) else "fp32"


def matmul_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of matmuls under `autocast` of a precision."""
    return torch.bfloat16 if resolve_precision(precision, device) == "bf16" else torch.float32


def has_native_bf16(device: torch.device) -> bool:
    """Whether the device has native matmuls in bf16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    query = getattr(torch.cpu, "get_capabilities", dict)  # missing in older versions
    capabilities: dict[str, object] = query()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context of the forward pass in fp32 or bf16."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    if precision != "fp32":
        raise ValueError(f"precision must be fp32 or bf16 (`auto` resolved), got {precision!r}")
    return nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which matmuls keep the dtype of their arguments."""
    # the meta device, used by dry runs, has no autocast
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def use_deterministic_kernels(device: torch.device) -> None:
    """Use deterministic kernels on GPU where they exist; those on CPU are deterministic.

    The backward pass of torch's fused attention (used by softmax) stays nondeterministic: torch
    replaces it only if operations without a deterministic kernel raise.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # filling costs time, and no empty tensor is read before it is written
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def unique_indices() -> Iterator[None]:
    """Scatter to unique indices, without the sort of deterministic kernels."""
    if not torch.are_deterministic_algorithms_enabled():
        yield
        return
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)


def disable_cudnn_attention() -> None:
    """Disable the cuDNN backend of torch's fused attention, which softmax uses.

    On Hopper and Blackwell torch prefers it in half precision. It builds a plan for each new
    shape, which takes tens to hundreds of milliseconds; batches of sentences have hundreds of
    shapes, and each step of a search has another.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def full_precision(values: Tensor) -> Tensor:
    """Return values in at least float32, as in all of attention except matmuls."""
    return values.to(torch.promote_types(values.dtype, torch.float32))

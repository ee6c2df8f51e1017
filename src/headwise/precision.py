"""Which numbers are multiplied, and which of its kernels a GPU is asked to take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from headwise.errors import refuse

PRECISIONS = ("auto", "fp32", "bf16")


def check_precision(name: str, key: str) -> None:
    """Refuse a value of the configuration's `key` that is no precision."""
    if name not in PRECISIONS:
        raise refuse(key, name, PRECISIONS)


def resolve_precision(name: str, device: torch.device) -> str:
    """`auto` is bf16 where the device multiplies it natively, else fp32.

    Autocast keeps weights, softmax, entmax, norms and the loss in float32.
    """
    if name != "auto":
        return name
    return "bf16" if multiplies_bf16(device) else "fp32"


def product_type(precision: str, device: torch.device) -> torch.dtype:
    """The type of matrix products under `autocast` of a precision."""
    return torch.bfloat16 if resolve_precision(precision, device) == "bf16" else torch.float32


def multiplies_bf16(device: torch.device) -> bool:
    """Whether matrix products in bf16 run on units of their own."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    ask = getattr(torch.cpu, "get_capabilities", dict)  # older versions cannot tell
    capabilities: dict[str, object] = ask()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context of the forward pass in fp32 or bf16."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    if precision != "fp32":
        raise ValueError(f"autocast to {precision!r}: fp32 or bf16 it must be, `auto` resolved")
    return nullcontext()


def ask_for_same_bits(device: torch.device) -> None:
    """Have a GPU take deterministic kernels where it has them; a CPU's are so by themselves.

    The way back of torch's own fused attention, which softmax takes, stays as it is: it adds up in
    any order unless what has no deterministic kernel were to raise.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # would fill every tensor that is made empty; none is read before it is written
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def each_place_written_once() -> Iterator[None]:
    """Scatter without the sort by which deterministic kernels order what meets in one place."""
    if not torch.are_deterministic_algorithms_enabled():
        yield
        return
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)


def avoid_plans_for_shapes() -> None:
    """Keep torch's fused attention, which softmax takes, away from cuDNN.

    On Hopper and Blackwell torch prefers it in half precision. It plans for every shape anew,
    which takes tens to hundreds of milliseconds, and batches of sentences are of hundreds of
    shapes, the steps of a search of as many as there are steps.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def full_precision(values: Tensor) -> Tensor:
    """In float32 at the least: what attention does beside its matrix products, it does so."""
    return values.to(torch.promote_types(values.dtype, torch.float32))

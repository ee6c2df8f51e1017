"""Fused α-entmax attention on a GPU: correct first, then its time against FlashAttention.

    python -m benchmarks.gpu_attention [--quick] [--json FILE]

Without a CUDA device it says so and ends. Errors are those against float64 on the same device; if
one is out of bounds, nothing is timed and the status is 1. Times are of forward and backward, by
events of the device, contenders taking turns in one process, medians of at least 7; each figure is
printed as a ratio to `scaled_dot_product_attention` held to FlashAttention. bfloat16, heads 64
wide, 32k tokens a call (half of them with --quick), scores of deviation 1 where all blocks have
weights; "segments" are clustered inputs, of which a query meets a key of its own segment only. How
many blocks have weights is measured and printed. adasplash joins in at its own job where it is
installed: α = 1.5.

The tests marked `triton` run on a GPU as well: pytest -m triton, without TRITON_INTERPRET.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.clock import gpu, keep
from headwise import entmax
from headwise.kernels import triton_operators
from headwise.kernels.problem import Power
from headwise.kernels.triton_attention import refusal, triton_entmax_attention

HEADS, HEAD_DIM, SEGMENT = 8, 64, 256
LENGTHS, QUICK_LENGTHS = (512, 1024, 2048, 4096, 8192), (512, 2048)
GROWING = (2048, 4096, 8192)  # lengths whose memory is compared
TOKENS, WARM_UPS, REPEATS = 1 << 15, 3, 11  # Triton compiles in the first warm-up
SLEEP_CYCLES = 4_000_000  # milliseconds of the device: by then the host has launched all
DEFAULT_JSON = Path("outputs/benchmarks/gpu_attention.json")
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}

LIMITS = triton_operators.RESIDENT_KEYS, triton_operators.RESIDENT_BYTES

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Check:
    """One call that is compared with float64."""

    dtype: torch.dtype
    queries: int
    keys: int
    head_dim: int = HEAD_DIM
    causal: bool = False
    padded: bool = False
    dropout: float = 0.0


def checks() -> list[Check]:
    half = torch.bfloat16
    found = [Check(dtype, 200, 200) for dtype in BOUNDS]
    found += [Check(half, 64, 64, width, causal=True) for width in (16, 24, 64, 80, 128)]
    found += [Check(half, 300, 700, width, padded=True) for width in (16, 64, 128)]
    found += [Check(half, 1500, 1500, causal=True), Check(half, 1100, 2100, padded=True)]
    found += [
        Check(torch.float32, 300, 1300),
        Check(half, 1, 900),
        Check(half, 30, 40, padded=True),
    ]
    return found


def errors(check: Check, device: str) -> list[float]:
    """Of the context and the gradients of query, key, value, α: |a - b| / |b|, Frobenius."""
    generator = torch.Generator().manual_seed(check.queries + check.keys)
    alpha = torch.tensor([1.0, 1.01, 1.25, 1.5, 1.75, 1.95], device=device)
    tensors = [
        torch.randn(2, n_rows, len(alpha), check.head_dim, generator=generator)
        .to(device, check.dtype)
        .transpose(1, 2)
        for n_rows in (check.queries, check.keys, check.keys, check.queries)
    ]
    lengths = torch.tensor([check.keys, check.keys // 3], device=device) if check.padded else None
    offset = check.keys - check.queries
    mask = torch.ones(2, 1, check.queries, check.keys, dtype=torch.bool, device=device)
    keys = torch.arange(check.keys, device=device)
    if lengths is not None:
        mask &= (keys < lengths[:, None])[:, None, None]
    if check.causal:
        mask &= keys <= torch.arange(check.queries, device=device)[:, None] + offset
    results = []
    for dtype in (check.dtype, torch.float64):
        *wanted, grad = (tensor.to(dtype).detach() for tensor in tensors)
        query, key, value = (tensor.requires_grad_() for tensor in wanted)
        one = (alpha if dtype is check.dtype else alpha.double()).clone().requires_grad_()
        if dtype is torch.float64:
            scores = query @ key.transpose(-1, -2) * check.head_dim**-0.5
            context = entmax.alpha_entmax(scores, one[:, None, None], -1, mask) @ value
        else:
            context = triton_entmax_attention(query, key, value, one, lengths, check.causal, offset)
        grads = torch.autograd.grad(context, [query, key, value, one], grad)
        results.append([context.detach(), *grads])
    return [
        float((mine.double() - exact).norm() / exact.norm())
        for mine, exact in zip(*results, strict=True)
    ]


def all_correct(device: str) -> bool:
    print("errors against float64: context, and gradients of query, key, value and α")
    is_correct = True
    for check in checks():
        found = errors(check, device)
        within = all(error <= BOUNDS[check.dtype] for error in found)
        is_correct &= within
        told = "  ".join(f"{error:.1e}" for error in found)
        print(f"  {told}  {'' if within else 'OUT OF BOUNDS '}{check}", flush=True)
    return is_correct


def inputs(n_keys: int, n_tokens: int, segments: bool) -> list[Tensor]:
    """Query, key, value and an incoming gradient."""
    torch.manual_seed(n_keys)
    shape = (max(1, n_tokens // n_keys), n_keys, HEADS, HEAD_DIM)
    query, key, value, grad = (torch.randn(shape, device="cuda") for _ in range(4))
    if segments:
        # of the same segment, scores of 8 and more above all others
        own = torch.randn(-(-n_keys // SEGMENT), HEADS, HEAD_DIM, device="cuda")
        own = nn.functional.normalize(own, dim=-1).repeat_interleave(SEGMENT, 0)[:n_keys]
        query, key = query + 12 * own, key + 12 * own
    tensors = [tensor.bfloat16().transpose(1, 2) for tensor in (query, key, value, grad)]
    return [*(tensor.requires_grad_() for tensor in tensors[:3]), tensors[3]]


def hold_rows(longest: int | None = None) -> None:
    """From now on, also in backward, rows of so many keys are held on the chip; None: as ever."""
    limits = LIMITS if longest is None else (longest, 1 << 20)
    triton_operators.RESIDENT_KEYS, triton_operators.RESIDENT_BYTES = limits


def live_share(tensors: list[Tensor], alpha: Tensor, causal: bool) -> float:
    """Of the blocks that may have weights, how many have."""
    hold_rows(0)  # only rows that are streamed mark their blocks
    live = triton_operators.forward(
        *tensors[:3], alpha, None, None, causal, 0, 0.0, HEAD_DIM**-0.5, int(Power.ANY)
    )[4].float()
    n_blocks = live.shape[-1]
    possible = n_blocks * (n_blocks + 1) / 2 if causal else n_blocks**2
    share: float = live.sum().item() / (live.shape[0] * HEADS * possible)
    return share


def contenders(alpha: Tensor, causal: bool) -> dict[str, Attend]:
    def flash(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)

    def ours(one: Tensor | float, dropout: float = 0.0, held: int | None = None) -> Attend:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            hold_rows(held)
            return triton_entmax_attention(query, key, value, one, causal=causal, dropout=dropout)

        return attend

    found = {"flash": flash, "learned α": ours(alpha), "α = 1.5": ours(1.5), "α = 2": ours(2.0)}
    found["learned α, dropout"] = ours(alpha, dropout=0.1)
    found["learned α, held rows"] = ours(alpha, held=1024)
    found["learned α, streamed rows"] = ours(alpha, held=0)
    if importlib.util.find_spec("adasplash") is not None:
        from adasplash import adasplash

        found["adasplash, α = 1.5"] = lambda query, key, value: adasplash(
            query, key, value, is_causal=causal
        )
    return found


def milliseconds(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP_CYCLES)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def medians(tensors: list[Tensor], attends: dict[str, Attend]) -> dict[str, tuple[float, float]]:
    """Per contender, milliseconds of forward, and of forward and backward; NaN where it fails."""
    from triton.errors import TritonError  # not there where nothing can be measured

    *wanted, grad = tensors

    def forward(attend: Attend) -> None:
        with torch.no_grad():
            attend(*wanted)

    def both(attend: Attend) -> None:
        torch.autograd.grad(attend(*wanted), wanted, grad)

    samples: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in attends}
    for repeat in range(WARM_UPS + REPEATS):
        for name, attend in attends.items():
            for kept, call in zip(samples[name], (forward, both), strict=True):
                try:
                    taken = milliseconds(functools.partial(call, attend))
                except (RuntimeError, TritonError) as error:  # the device has no room for the form
                    if repeat == 0:
                        print(f"  {name}: {str(error).splitlines()[0]}")
                    taken = float("nan")
                if repeat >= WARM_UPS:
                    kept.append(taken)
    return {
        name: (statistics.median(once), statistics.median(twice))
        for name, (once, twice) in samples.items()
    }


def peak_bytes(n_keys: int, alpha: Tensor) -> int:
    """Most memory of forward and backward of one sequence, beside the inputs."""
    hold_rows()
    query, key, value, grad = inputs(n_keys, n_keys, segments=False)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    context = triton_entmax_attention(query, key, value, alpha)
    torch.autograd.grad(context, [query, key, value, alpha], grad)
    return torch.cuda.max_memory_allocated() - before


def measure(is_quick: bool) -> list[dict[str, Any]]:
    alpha = torch.linspace(1.05, 1.95, HEADS, device="cuda").requires_grad_()
    rows: list[dict[str, Any]] = []
    for n_keys in QUICK_LENGTHS if is_quick else LENGTHS:
        for causal in (False, True):
            for segments in (False, True):
                tensors = inputs(n_keys, TOKENS // 2 if is_quick else TOKENS, segments)
                share = live_share(tensors, alpha.detach(), causal)
                times = medians(tensors, contenders(alpha, causal))
                flash = times["flash"]
                row: dict[str, Any] = {"keys": n_keys, "causal": causal, "segments": segments}
                row |= {"live": share, "flash_ms": flash}
                row["ratios"] = {
                    name: (once / flash[0], twice / flash[1])
                    for name, (once, twice) in times.items()
                    if name != "flash"
                }
                rows.append(row)
                print(
                    f"\n{n_keys} keys{', causal' if causal else ''}"
                    f"{', segments' if segments else ''}; blocks with weights: {share:.0%}; "
                    f"flash {flash[0]:.3f} ms, with backward {flash[1]:.3f} ms"
                )
                for name, (once, twice) in row["ratios"].items():
                    print(f"  {name:26} {once:6.2f}   with backward {twice:6.2f}", flush=True)
    growth = {n_keys: peak_bytes(n_keys, alpha) for n_keys in GROWING}
    least = growth[GROWING[0]]
    told = "  ".join(f"{n_keys} keys {held / least:.2f}" for n_keys, held in growth.items())
    print(f"\npeak memory / at {GROWING[0]} keys: {told}")
    rows.append({"peak_bytes": growth})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="time fused attention on this machine's GPU")
    parser.add_argument("--quick", action="store_true", help="two lengths only")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, help="where the figures go")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 0
    sample = torch.empty(1, 1, 1, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    if reason := refusal(sample, sample, sample):
        print(f"the kernels cannot run here: {reason}")
        return 1
    machine = gpu()
    print(machine)
    if not all_correct("cuda"):
        return 1
    rows = measure(arguments.quick)
    keep(arguments.json, {"machine": machine, "repeats": REPEATS, "rows": rows})
    print(f"written: {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

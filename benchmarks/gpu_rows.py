"""Check and time the maps and the losses over a vocabulary on this machine's GPU.

    python -m benchmarks.gpu_rows [--json FILE]

Without a CUDA device it says so and ends. Errors are those against float64 on the same device; if
one is out of bounds, nothing is timed and the status is 1. Times are of forward and backward, by
events of the device, contenders taking turns in one process, medians of 11; each is printed as a
ratio to what torch has for the dense case: softmax, and cross-entropy. Each is timed with Triton's
kernels and with torch alone.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.clock import gpu, keep, medians
from benchmarks.gpu_attention import REPEATS, milliseconds
from headwise import entmax
from headwise.kernels import triton_device
from headwise.losses.loss import CrossEntropy, Entmax15Loss, Loss

MAP_SHAPES = ((64, 8, 32, 32), (32, 8, 64, 64), (8, 8, 512, 512), (2, 8, 2048, 2048))
LOSS_SHAPE = (1024, 32_000)
SMOOTHING = 0.1
BOUNDS = {"map": (1e-6, 1e-5), "cross-entropy": (1e-5, 1e-5), "entmax loss": (1e-5, 1e-5)}
DEFAULT_JSON = Path("outputs/benchmarks/gpu_rows.json")

Call = Callable[[], object]


def nothing(values: Tensor) -> bool:
    return False


@contextlib.contextmanager
def torch_alone() -> Iterator[None]:
    with mock.patch.object(triton_device, "takes", nothing):
        yield


def of_map(scores: Tensor, alpha: Tensor | float | None) -> list[Tensor]:
    """Weights and gradient of the scores; None is torch's softmax."""
    scores = scores.detach().requires_grad_()
    weights = scores.softmax(-1) if alpha is None else entmax.alpha_entmax(scores, alpha)
    wanted = [scores] if not isinstance(alpha, Tensor) else [scores, alpha]
    return [weights.detach(), *torch.autograd.grad(weights[..., 0].sum(), wanted)]


def of_loss(loss: Loss, logits: Tensor, target: Tensor) -> list[Tensor]:
    """The sum of the losses and its gradient, which may take the place of the logits: of a copy."""
    found = loss.of_rows(logits.clone(), target, with_gradient=True)
    assert found.grad_RV is not None
    return [found.loss, found.grad_RV]


def of_torch(logits: Tensor, target: Tensor) -> list[Tensor]:
    logits = logits.detach().requires_grad_()
    loss = cross_entropy(logits, target, reduction="sum", label_smoothing=SMOOTHING)
    return [loss, *torch.autograd.grad(loss, logits)]


def is_correct(device: str) -> bool:
    """Whether all are near float64, which torch alone computes."""
    generator = torch.Generator().manual_seed(1)
    scores = (torch.randn(4, 6, 33, 1000, generator=generator) * 2).to(device)
    alpha = torch.tensor([1.0, 1.01, 1.25, 1.5, 1.75, 1.95], device=device).view(-1, 1, 1)
    target = torch.randint(1, 1000, (132,), generator=generator).to(device)
    logits = scores[:, 0].reshape(-1, 1000)
    results: dict[str, list[list[Tensor]]] = {name: [] for name in BOUNDS}
    for dtype in (torch.float32, torch.float64):
        one = alpha.to(dtype).requires_grad_()
        results["map"].append(of_map(scores.to(dtype), one))
        for name, loss in (
            ("cross-entropy", CrossEntropy(SMOOTHING)),
            ("entmax loss", Entmax15Loss(SMOOTHING)),
        ):
            results[name].append(of_loss(loss, logits.to(dtype), target))
    are_near = True
    for name, (ours, exact) in results.items():
        found = [
            float((mine.double() - reference).norm() / reference.norm())
            for mine, reference in zip(ours, exact, strict=True)
        ]
        within = found[0] <= BOUNDS[name][0] and max(found[1:]) <= BOUNDS[name][1]
        are_near &= within
        told = "  ".join(f"{error:.1e}" for error in found)
        print(f"  {name:14} {told}{'' if within else '  OUT OF BOUNDS'}", flush=True)
    return are_near


def contenders(device: str) -> Iterator[tuple[str, dict[str, Call]]]:
    """What is timed side by side; the first of each is what the others are divided by."""
    for shape in MAP_SHAPES:
        scores = torch.randn(shape, device=device)
        alpha = torch.linspace(1.05, 1.95, shape[1], device=device).view(-1, 1, 1).requires_grad_()
        maps: dict[str, Tensor | float | None] = {"softmax": None, "learned α": alpha}
        maps |= {"α = 1.5": 1.5, "α = 2": 2.0}
        yield (
            f"map {shape}",
            {name: functools.partial(of_map, scores, one) for name, one in maps.items()},
        )
    logits = torch.randn(LOSS_SHAPE, device=device, dtype=torch.bfloat16) * 3
    target = torch.randint(1, LOSS_SHAPE[1], LOSS_SHAPE[:1], device=device)
    losses = {"cross-entropy": CrossEntropy(SMOOTHING), "1.5-entmax loss": Entmax15Loss()}
    calls: dict[str, Call] = {"torch's cross-entropy": lambda: of_torch(logits, target)}
    for name, loss in losses.items():
        calls[name] = functools.partial(of_loss, loss, logits, target)
    yield f"losses of {LOSS_SHAPE} in bf16", calls


def without_triton(call: Call) -> Call:
    def called() -> object:
        with torch_alone():
            return call()

    return called


def measure(device: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for title, calls in contenders(device):
        first = next(iter(calls))
        alone = {f"{name}, torch alone": without_triton(call) for name, call in calls.items()}
        del alone[f"{first}, torch alone"]
        taken = medians(calls | alone, REPEATS, milliseconds)
        print(f"\n{title}: {first} {taken[first]:.3f} ms")
        ratios = {name: spent / taken[first] for name, spent in taken.items() if name != first}
        for name, ratio in ratios.items():
            print(f"  {name:30} {ratio:6.2f}", flush=True)
        rows.append({"of": title, f"{first}_ms": taken[first], "ratios": ratios})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="time maps and losses on this machine's GPU")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, help="where the figures go")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 0
    if reason := triton_device.device_refusal(torch.device("cuda")):
        print(f"the kernels cannot run here: {reason}")
        return 1
    machine = gpu()
    print(f"{machine}\nerrors against float64: value or weights, and gradients")
    if not is_correct("cuda"):
        return 1
    rows = measure("cuda")
    keep(arguments.json, {"machine": machine, "repeats": REPEATS, "rows": rows})
    print(f"written: {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

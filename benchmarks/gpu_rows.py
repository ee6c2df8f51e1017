"""Time of the maps and the losses over a vocabulary on this machine's GPU.

    python -m benchmarks.gpu_rows [--quick] [--json FILE]

It needs a CUDA device. Times are of forward and backward, by events of the device, contenders
taking turns in one process, medians of 11 (3 with --quick); each is printed as a ratio to torch's
dense function: softmax or cross-entropy. Each is timed with Triton's kernels and with torch alone.
"""

from __future__ import annotations

import functools
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks import gpu
from benchmarks.clock import medians, without
from headwise import entmax
from headwise.losses.loss import CrossEntropy, Entmax15Loss, Loss
from headwise.ops.triton import device as triton_device

MAP_SHAPES = ((64, 8, 32, 32), (32, 8, 64, 64), (8, 8, 512, 512), (2, 8, 2048, 2048))
LOSS_SHAPE = (1024, 32_000)
SMOOTHING = 0.1

Call = Callable[[], object]


def of_map(scores: Tensor, alpha: Tensor | float | None) -> list[Tensor]:
    """Weights and gradient of the scores; None is torch's softmax."""
    scores = scores.detach().requires_grad_()
    weights = scores.softmax(-1) if alpha is None else entmax.alpha_entmax(scores, alpha)
    inputs = [scores] if not isinstance(alpha, Tensor) else [scores, alpha]
    return [weights.detach(), *torch.autograd.grad(weights[..., 0].sum(), inputs)]


def of_loss(loss: Loss, logits: Tensor, target: Tensor) -> list[Tensor]:
    """Return the summed loss and its gradient, which may overwrite the logits: of a copy."""
    sums = loss.row_sums(logits.clone(), target, with_gradient=True)
    assert sums.grad_RV is not None
    return [sums.loss, sums.grad_RV]


def of_torch(logits: Tensor, target: Tensor) -> list[Tensor]:
    logits = logits.detach().requires_grad_()
    loss = cross_entropy(logits, target, reduction="sum", label_smoothing=SMOOTHING)
    return [loss, *torch.autograd.grad(loss, logits)]


def contenders() -> Iterator[tuple[str, dict[str, Call]]]:
    """Yield the contenders of each case; the first is the denominator of the ratios."""
    for shape in MAP_SHAPES:
        scores = torch.randn(shape, device="cuda")
        alpha = torch.linspace(1.05, 1.95, shape[1], device="cuda").view(-1, 1, 1).requires_grad_()
        maps: dict[str, Tensor | float | None] = {"softmax": None, "learned α": alpha}
        maps |= {"α = 1.5": 1.5, "α = 2": 2.0}
        yield (
            f"map {shape}",
            {name: functools.partial(of_map, scores, one) for name, one in maps.items()},
        )
    logits = torch.randn(LOSS_SHAPE, device="cuda", dtype=torch.bfloat16) * 3
    target = torch.randint(1, LOSS_SHAPE[1], LOSS_SHAPE[:1], device="cuda")
    losses = {"cross-entropy": CrossEntropy(SMOOTHING), "1.5-entmax loss": Entmax15Loss()}
    calls: dict[str, Call] = {"torch's cross-entropy": lambda: of_torch(logits, target)}
    for name, loss in losses.items():
        calls[name] = functools.partial(of_loss, loss, logits, target)
    yield f"losses of {LOSS_SHAPE} in bf16", calls


def torch_alone(call: Call) -> object:
    with without(triton_device):
        return call()


def measure(args: Namespace) -> gpu.Rows:
    for title, calls in contenders():
        first, *others = calls
        for name in others:
            calls[f"{name}, torch alone"] = functools.partial(torch_alone, calls[name])
        taken = medians(calls, 3 if args.quick else gpu.REPEATS, gpu.milliseconds)
        print(f"\n{title}: {first} {taken[first]:.3f} ms")
        ratios = {name: spent / taken[first] for name, spent in taken.items() if name != first}
        for name, ratio in ratios.items():
            print(f"  {name:30} {ratio:6.2f}", flush=True)
        yield {"of": title, f"{first}_ms": taken[first], "ratios": ratios}


def main() -> int:
    return gpu.main(__doc__, "gpu_rows", measure)


if __name__ == "__main__":
    sys.exit(main())

"""Time and error of the entmax family, compared with softmax and the public entmax package.

    python -m benchmarks.entmax [--quick]

All contenders run interleaved in one process, and what is printed are ratios of medians to
`torch.softmax`, forward / forward and backward. The scores look like those of a Transformer in
training: normal with a deviation of 2, one α a head between 1.1 and 1.9, with a gradient to α
unless α is fixed.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from benchmarks.clock import medians, without
from benchmarks.command import arguments, keep
from headwise import entmax
from headwise.ops.cpp import build
from headwise.ops.cpp import call as cpp
from headwise.train.memory import keep_freed_memory

SHAPES = ((64, 8, 32, 32), (32, 8, 64, 64), (64, 4, 30, 30), (8, 8, 256, 256), (2, 8, 1024, 1024))
N_REPEATS = 11
PACKAGE_SCORES = 1 << 21
N_BISECTIONS = 50  # the default of the public package
ALPHAS = (1.0, 1.001, 1.1, 1.25, 1.5, 1.75, 1.95, 2.0)

Map = Callable[[Tensor, Tensor], Tensor]  # scores, alpha -> weights


def contenders(shape: tuple[int, ...]) -> dict[str, Map]:
    """Return the maps, with those of the public package for small inputs (seconds, not minutes)."""
    maps: dict[str, Map] = {
        "torch.softmax": lambda scores, alpha: torch.softmax(scores, -1),
        "softmax": lambda scores, alpha: entmax.softmax(scores, -1),
        "entmax15": lambda scores, alpha: entmax.entmax15(scores, -1),
        "sparsemax": lambda scores, alpha: entmax.sparsemax(scores, -1),
        "alpha_entmax": entmax.alpha_entmax,
        "alpha_entmax, torch alone": torch_alone,
        "alpha_entmax, torch alone, compiled": compiled_alone,
    }
    if importlib.util.find_spec("entmax") is not None and math.prod(shape) <= PACKAGE_SCORES:
        import entmax as package

        maps["entmax_bisect"] = lambda scores, alpha: package.entmax_bisect(
            scores, alpha, -1, N_BISECTIONS
        )
        maps["package's entmax15"] = lambda scores, alpha: package.entmax15(scores, -1)
        maps["package's sparsemax"] = lambda scores, alpha: package.sparsemax(scores, -1)
    return maps


def torch_alone(scores: Tensor, alpha: Tensor) -> Tensor:
    """α-entmax as on a machine without a compiler."""
    return entmax.alpha_entmax(scores, alpha)


compiled_alone = torch.compile(torch_alone, dynamic=False)


def inputs(shape: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, α and an incoming gradient."""
    generator = torch.Generator().manual_seed(1)
    scores = (torch.randn(shape, generator=generator) * 2).requires_grad_()
    alpha = torch.linspace(1.1, 1.9, shape[1]).view(-1, 1, 1).requires_grad_()
    return scores, alpha, torch.randn(shape, generator=generator)


def times(shape: tuple[int, int, int, int], repeats: int) -> dict[str, dict[str, float]]:
    """Per contender: seconds of "forward", and of "both", forward and backward."""
    torch.compiler.reset()  # a function is compiled for eight kinds of input; these are two a shape
    scores, alpha, grad = inputs(shape)

    def forward(one: Map) -> None:
        with torch.no_grad():
            one(scores, alpha)

    def both(one: Map) -> None:
        scores.grad = alpha.grad = None
        one(scores, alpha).backward(grad)

    def timed(call: Callable[[Map], None], one: Map) -> Callable[[], None]:
        def run() -> None:
            with without(cpp) if one in (torch_alone, compiled_alone) else nullcontext():
                call(one)

        return run

    maps = contenders(shape)
    calls = {
        f"{kind} {name}": timed(call, one)
        for name, one in maps.items()
        for kind, call in (("forward", forward), ("both", both))
    }
    taken = medians(calls, repeats)
    return {name: {kind: taken[f"{kind} {name}"] for kind in ("forward", "both")} for name in maps}


def errors(n_keys: int) -> dict[str, float]:
    """Greatest error against float64, max|Δ| / max(1, max|reference|), over `ALPHAS`.

    Gradients are compared only in rows without keys near the border of the support, where they are
    discontinuous.
    """
    generator = torch.Generator().manual_seed(2)
    worst = {"weights": 0.0, "scores' gradient": 0.0, "α's gradient": 0.0}
    for alpha in ALPHAS:
        scores = torch.randn(200, n_keys, generator=generator) * 3
        grad = torch.randn(200, n_keys, generator=generator)
        computed = []
        for dtype in (torch.float32, torch.float64):
            ours = scores.detach().to(dtype).requires_grad_()
            learned = torch.full((200, 1), alpha, dtype=dtype, requires_grad=True)
            weights = entmax.alpha_entmax(ours, learned)
            grads = torch.autograd.grad(weights, [ours, learned], grad.to(dtype))
            computed.append([weights.detach(), *grads])
        weights = computed[1][0]
        is_away = ((weights == 0) | (weights > 1e-5)).all(-1) if alpha > 1.5 else weights[:, 0] > -1
        for name, mine, exact in zip(worst, *computed, strict=True):
            rows = slice(None) if name == "weights" else is_away
            scale = exact.abs().max().clamp_min(1)
            worst[name] = max(worst[name], float((mine[rows] - exact[rows]).abs().max() / scale))
    return worst


def measure(quick: bool) -> dict[str, Any]:
    """Ratios by shape and contender, and errors by number of keys."""
    keep_freed_memory()  # as in training; else memory is returned and mapped again at random
    rows = []
    for shape in SHAPES[:2] if quick else SHAPES:
        taken = times(shape, 3 if quick else N_REPEATS)
        base = taken["torch.softmax"]
        for name, spent in taken.items():
            ratios = {kind: spent[kind] / base[kind] for kind in spent}
            rows.append({"shape": list(shape), "map": name, **ratios, "seconds": spent["both"]})
    sizes = (64,) if quick else (64, 1024, 4096)
    return {"rows": rows, "errors": {n_keys: errors(n_keys) for n_keys in sizes}}


def main() -> None:
    args = arguments(__doc__)
    results = measure(args.quick)
    print(f"kernels: {build.unavailable_reason() or 'C++'}")
    print("times torch.softmax, forward / forward and backward")
    for row in results["rows"]:
        case = f"{tuple(row['shape'])!s:17}  {row['map']:35}"
        print(f"  {case}  {row['forward']:7.2f} / {row['both']:7.2f}")
    for n_keys, worst in results["errors"].items():
        print(f"error, {n_keys} keys: " + ", ".join(f"{k} {v:.1e}" for k, v in worst.items()))
    keep(args.json, results)


if __name__ == "__main__":
    main()

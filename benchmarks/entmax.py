"""Time of the entmax family against softmax and the public entmax package.

    python -m benchmarks.entmax [--quick]

All contenders run interleaved in one process, and what is printed are ratios of medians to
`torch.softmax`. With one thread (OMP_NUM_THREADS=1) the time is that of the processor, which other
load on the machine lengthens less; else it is that of the clock. The scores look like those of a
Transformer in training: normal with a deviation of 2, rows padded on the right, one α a head
between 1.1 and 1.9, with a gradient to α unless α is fixed.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from headwise import entmax

SHAPES = ((64, 4, 30, 30), (64, 8, 32, 32), (32, 8, 64, 64), (8, 8, 256, 256))
N_REPEATS = 7
N_BISECTIONS = 50  # the default of the public package

Map = Callable[[Tensor, Tensor, Tensor], Tensor]  # scores, alpha, mask -> weights


def contenders(with_bisection: bool) -> dict[str, Map]:
    found: dict[str, Map] = {
        "torch.softmax": lambda scores, alpha, mask: torch.softmax(scores, -1),
        "softmax": lambda scores, alpha, mask: entmax.softmax(scores, -1, mask),
        "entmax15": lambda scores, alpha, mask: entmax.entmax15(scores, -1, mask),
        "sparsemax": lambda scores, alpha, mask: entmax.sparsemax(scores, -1, mask),
        "alpha_entmax": lambda scores, alpha, mask: entmax.alpha_entmax(scores, alpha, -1, mask),
    }
    if with_bisection:
        from entmax import entmax_bisect

        # without the mask: it would have to be filled in beforehand and finite
        found[f"entmax_bisect({N_BISECTIONS})"] = lambda scores, alpha, mask: entmax_bisect(
            scores, alpha, -1, N_BISECTIONS
        )
    return found


def inputs(shape: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, α, mask and an incoming gradient."""
    n_batch, n_heads, _, n_keys = shape
    generator = torch.Generator().manual_seed(1)
    scores = (torch.randn(shape, generator=generator) * 2).requires_grad_()
    alpha = torch.linspace(1.1, 1.9, n_heads).view(n_heads, 1, 1).requires_grad_()
    lengths = torch.randint(n_keys // 2, n_keys + 1, (n_batch, 1, 1, 1), generator=generator)
    mask = torch.arange(n_keys) < lengths
    return scores, alpha, mask, torch.randn(shape, generator=generator)


def seconds(call: Callable[[], object]) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    call()
    return clock() - start


def medians(shape: tuple[int, int, int, int], maps: dict[str, Map]) -> dict[str, list[float]]:
    """Per contender: seconds of forward, and of forward and backward."""
    scores, alpha, mask, grad = inputs(shape)

    def forward(one: Map) -> None:
        with torch.no_grad():
            one(scores, alpha, mask)

    def both(one: Map) -> None:
        scores.grad = alpha.grad = None
        one(scores, alpha, mask).backward(grad)

    samples: dict[str, list[list[float]]] = {name: [[], []] for name in maps}
    for repeat in range(N_REPEATS + 1):
        for name, one in maps.items():
            for kept, call in zip(samples[name], (forward, both), strict=True):
                taken = seconds(lambda call=call, one=one: call(one))
                if repeat:  # the first is for warming up
                    kept.append(taken)
    return {name: [statistics.median(kept) for kept in both] for name, both in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="time the entmax family on this machine's CPU")
    parser.add_argument("--quick", action="store_true", help="the two small shapes only")
    arguments = parser.parse_args()
    has_oracle = importlib.util.find_spec("entmax") is not None
    maps = contenders(has_oracle)
    print(
        f"machine: {platform.machine()} {platform.processor()}, "
        f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} thread(s), "
        f"torch {torch.__version__}, {platform.system()}"
    )
    print(f"times torch.softmax, forward / forward+backward, medians of {N_REPEATS}, interleaved")
    if not has_oracle:
        print("the public entmax package is not installed: pip install 'entmax>=1.3,<2'")
    width = max(map(len, maps))
    for shape in SHAPES[:2] if arguments.quick else SHAPES:
        taken = medians(shape, maps)
        forward, both = taken["torch.softmax"]
        print(f"\n{shape}: torch.softmax {forward * 1e3:.2f} ms / {both * 1e3:.2f} ms")
        for name in list(maps)[1:]:
            line = (
                f"  {name:{width}}  {taken[name][0] / forward:7.1f} / {taken[name][1] / both:6.1f}"
            )
            print(line)
        ours, oracle = taken["alpha_entmax"], taken.get(f"entmax_bisect({N_BISECTIONS})")
        if oracle:
            shares = [mine / theirs for mine, theirs in zip(ours, oracle, strict=True)]
            print(f"  alpha_entmax / entmax_bisect: {shares[0]:.3f} / {shares[1]:.3f}")


if __name__ == "__main__":
    main()

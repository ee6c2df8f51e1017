"""Sparse heads in models of Transformers and in calls of attention, beside softmax and bisection.

    OMP_NUM_THREADS=1 python -m benchmarks.own_models [--quick]

A BERT of 6 layers (width 512, 8 heads, 8 rows of 128 tokens, no dropout), forward and backward:
with torch's sdpa, made sparse by `headwise.hf` at α = 1.5, and with 50 bisections of the public
entmax package. Then one call of attention (8 rows, 8 heads of width 64). α = 1.5 is either fixed or
a parameter per head with gradients. Contenders run interleaved in one process; printed are ratios
of medians to sdpa. With one thread the time is that of the processor.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.clock import medians
from benchmarks.command import arguments, keep
from benchmarks.entmax import N_BISECTIONS
from headwise.nn import functional
from headwise.train.memory import keep_freed_memory

WIDTH, HEADS, LAYERS, ROWS, TOKENS = 512, 8, 6, 8, 128
SPARSE: dict[str, Any] = {"1.5-entmax": {"attention": "entmax15"}, "α-entmax": {"alpha_init": 1.5}}
BISECTION = f"{N_BISECTIONS} bisections"
SCALES = (2**0.5, 2**0.5, 1)  # of queries, keys, values: scores have a deviation of 2


def bisection(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | float) -> Tensor:
    """Attention with the weights of the public package."""
    from entmax import entmax_bisect

    scores = query @ key.mT * query.shape[-1] ** -0.5
    weights: Tensor = entmax_bisect(scores, alpha, -1, N_BISECTIONS)
    return weights @ value


def bisecting(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object
) -> tuple[Tensor, None]:
    """The same, as an attention function of Transformers; without masks."""
    alpha = getattr(module, "bisected_alpha", 1.5)
    return bisection(query, key, value, alpha).transpose(1, 2), None


def stacks() -> dict[str, Callable[[], None]]:
    """Return an update's forward and backward pass of every model."""
    from transformers import AttentionInterface, BertConfig, BertModel

    from headwise.hf import sparsify

    AttentionInterface.register("bisecting", bisecting)
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=1000, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    softmax = BertModel(config, add_pooling_layer=False)
    ids = torch.randint(1000, (ROWS, TOKENS))
    models = {"sdpa": softmax}
    for name, settings in SPARSE.items():
        models[name] = sparsify(copy.deepcopy(softmax), **settings)
        models[f"{name}, {BISECTION}"] = bisected = copy.deepcopy(softmax)
        bisected.set_attn_implementation("bisecting")
        for layer in bisected.encoder.layer if name == "α-entmax" else ():
            alpha = nn.Parameter(torch.full((HEADS, 1, 1), 1.5))
            layer.attention.self.bisected_alpha = alpha

    def both(model: nn.Module) -> Callable[[], None]:
        def run() -> None:
            model.zero_grad()
            model(ids).last_hidden_state.square().mean().backward()

        return run

    return {name: both(model.train()) for name, model in models.items()}


def calls(n_keys: int, backward: bool) -> dict[str, Callable[[], None]]:
    """Return a call of attention of every contender."""
    torch.manual_seed(2)
    heads = [torch.randn(ROWS, HEADS, n_keys, WIDTH // HEADS) * scale for scale in SCALES]
    grad = torch.randn_like(heads[2])
    alpha = torch.full((HEADS, 1, 1), 1.5)

    def timed(one: Callable[..., Tensor], *more: Tensor) -> Callable[[], None]:
        inputs = [x.clone().requires_grad_(backward) for x in (*heads, *more)]

        def run() -> None:
            context = one(*inputs)
            if backward:
                torch.autograd.grad(context, inputs, grad)

        return run

    return {
        "sdpa": timed(F.scaled_dot_product_attention),
        "1.5-entmax": timed(lambda q, k, v: functional.attention(q, k, v, attention="entmax15")),
        f"1.5-entmax, {BISECTION}": timed(lambda q, k, v: bisection(q, k, v, 1.5)),
        "α-entmax": timed(lambda q, k, v, a: functional.attention(q, k, v, alpha=a), alpha),
        f"α-entmax, {BISECTION}": timed(bisection, alpha),
    }


def measure(quick: bool) -> dict[str, dict[str, float]]:
    """Return case -> contender -> median seconds, without what needs a missing package."""
    keep_freed_memory()
    cases = {}
    if importlib.util.find_spec("transformers") is not None:
        cases[f"BERT, {LAYERS} layers, forward and backward"] = stacks()
    for n_keys in (TOKENS, 4 * TOKENS):
        for way in ("forward", "forward and backward"):
            cases[f"one call, {n_keys} keys, {way}"] = calls(n_keys, backward=way != "forward")
    has_package = importlib.util.find_spec("entmax") is not None
    timed = {
        case: {name: call for name, call in runs.items() if has_package or BISECTION not in name}
        for case, runs in cases.items()
    }
    return {case: medians(runs, 1 if quick else 5) for case, runs in timed.items()}


def ratios(taken: dict[str, float]) -> Iterator[tuple[str, str, float]]:
    """Sparse contender, the other one, and the ratio of their times."""
    for name in SPARSE:
        for other, base in (("sdpa", "sdpa"), (BISECTION, f"{name}, {BISECTION}")):
            if base in taken:
                yield name, other, taken[name] / taken[base]


def main() -> None:
    args = arguments(__doc__)
    results = measure(args.quick)
    for case, taken in results.items():
        print(f"{case}: sdpa {1e3 * taken['sdpa']:.1f} ms")
        for name, other, ratio in ratios(taken):
            print(f"  {name + ' / ' + other:<28} {ratio:.3f}")
    keep(args.json, {"seconds": results})


if __name__ == "__main__":
    main()

"""Fused α-entmax attention on a GPU: its time against FlashAttention.

    python -m benchmarks.gpu_attention [--quick] [--only patterns] [--json FILE]

It needs a CUDA device. Times are of forward and backward, by events of the device, contenders
taking turns in one process, medians of 11; each figure is printed as a ratio to
`scaled_dot_product_attention` held to FlashAttention. bfloat16, heads 64 wide, 32k tokens a call
(half of them with --quick), scores of deviation 1 where all blocks have weights; "segments" are
clustered inputs, where a query matches only keys of its own segment. How many blocks have weights
is measured and printed.

Then sparse patterns, causal, 3,072 and 12,288 positions, blocks of 128: the share of a causal
attention's blocks that is computed, and times relative to FlashAttention without a pattern. For
softmax, FlexAttention (torch) with the same pattern is measured too.

Errors are not measured: run the tests marked `triton` on the GPU first (pytest -m triton).
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import gpu
from benchmarks.clock import medians
from headwise.attention.factorised import FactorisedPattern
from headwise.attention.fixed import Fixed
from headwise.attention.place import Place
from headwise.attention.strided import Strided
from headwise.ops.attention import triton_launch, triton_tiles
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.attention.triton import triton_entmax_attention
from headwise.ops.family import Power

HEADS, HEAD_DIM, SEGMENT = 8, 64, 256
PATTERNS: dict[str, Callable[..., FactorisedPattern]] = {
    "strided": Strided,
    "strided, one set per head": functools.partial(Strided, combine="heads"),
    "fixed, 8 cells": functools.partial(Fixed, summary_cells=8),
    "fixed, 32 cells": functools.partial(Fixed, summary_cells=32),
}
PATTERN_LENGTHS, STRIDE = (3072, 12288), 128
LENGTHS, QUICK_LENGTHS = (512, 1024, 2048, 4096, 8192), (512, 2048)
TOKENS = 1 << 15

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Call = Callable[[], None]


def inputs(n_keys: int, n_tokens: int, segments: bool) -> list[Tensor]:
    """Query, key, value and an incoming gradient."""
    torch.manual_seed(n_keys)
    shape = (max(1, n_tokens // n_keys), n_keys, HEADS, HEAD_DIM)
    query, key, value, grad = (torch.randn(shape, device="cuda") for _ in range(4))
    if segments:
        # of the same segment, scores of 8 and more above all others
        segment = torch.randn(-(-n_keys // SEGMENT), HEADS, HEAD_DIM, device="cuda")
        segment = nn.functional.normalize(segment, dim=-1).repeat_interleave(SEGMENT, 0)[:n_keys]
        query, key = query + 12 * segment, key + 12 * segment
    # contiguous, as adasplash takes no other
    tensors = [one.bfloat16().transpose(1, 2).contiguous() for one in (query, key, value, grad)]
    return [*(tensor.requires_grad_() for tensor in tensors[:3]), tensors[3]]


def live_share(tensors: list[Tensor], alpha: Tensor, causal: bool) -> float:
    """Return the share of allowed blocks that have weights."""
    scale, power = HEAD_DIM**-0.5, int(Power.ANY)
    # only rows that are streamed mark their blocks
    with mock.patch.object(triton_tiles, "RESIDENT_KEYS", 0):
        live = triton_launch.forward(
            *tensors[:3], alpha, *[None] * 8, power, causal, 0, 0.0, scale, 0
        )[4].float()
    n_blocks = live.shape[-1]
    possible = n_blocks * (n_blocks + 1) / 2 if causal else n_blocks**2
    share: float = live.sum().item() / (live.shape[0] * HEADS * possible)
    return share


def flash(causal: bool) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return attend


def flex(layout: BlockLayout) -> Attend:
    """Return FlexAttention with a causal pattern."""
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

    rule, n, device = layout.rule, layout.n_positions, layout.key_lengths_B.device
    n_heads = len(rule.labels)
    labels_HN = rule.labels_of(torch.arange(n, device=device)).expand(n_heads, n).contiguous()
    windows_H = torch.tensor(rule.windows, device=device)
    every_HN = torch.zeros_like(labels_HN, dtype=torch.bool)
    if rule.every_BHN is not None:
        every_HN |= rule.every_BHN[0]

    def is_visible(_batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_near = (query - key).abs() <= windows_H[head]
        is_far = (labels_HN[head, key] == labels_HN[head, query]) | every_HN[head, key]
        return (key <= query) & (is_near | is_far)

    @functools.cache  # at the first call, whose errors are caught
    def blocks() -> BlockMask:
        arguments = (is_visible, 1, n_heads, n, n)
        mask: BlockMask = torch.compile(create_block_mask)(*arguments, device=device)
        return mask

    compiled = torch.compile(flex_attention)
    return lambda query, key, value: compiled(query, key, value, block_mask=blocks())


def contenders(alpha: Tensor, causal: bool, layout: BlockLayout | None = None) -> dict[str, Attend]:
    def ours(alpha: Tensor | float, dropout: float = 0.0) -> Attend:
        return lambda query, key, value: triton_entmax_attention(
            query, key, value, alpha, causal=causal, dropout=dropout, layout=layout
        )

    attends = {"flash": flash(causal), "learned α": ours(alpha), "α = 1.5": ours(1.5)}
    attends |= {"α = 2": ours(2.0), "learned α, dropout": ours(alpha, dropout=0.1)}
    if layout is not None:
        return attends | {"softmax": ours(1.0), "flex, softmax": flex(layout)}
    if importlib.util.find_spec("adasplash") is not None:
        from adasplash import adasplash

        attends["adasplash, α = 1.5"] = functools.partial(adasplash, is_causal=causal)
    return attends


def calls(tensors: list[Tensor], attends: dict[str, Attend]) -> dict[str, Call]:
    """Return forward, and forward and backward, of all that fit in memory; compiles them."""
    from triton.errors import TritonError  # missing on machines without a GPU

    *qkv, grad = tensors

    def forward(attend: Attend) -> None:
        with torch.no_grad():
            attend(*qkv)

    def both(attend: Attend) -> None:
        torch.autograd.grad(attend(*qkv), qkv, grad)

    compiled: dict[str, Call] = {}
    for name, attend in attends.items():
        ways = {name: forward, f"{name}, with backward": both}
        try:
            for way in ways.values():
                way(attend)
        except (RuntimeError, TritonError) as error:
            print(f"  {name}: {str(error).splitlines()[0]}")
            continue
        compiled |= {title: functools.partial(way, attend) for title, way in ways.items()}
    return compiled


def timed(tensors: list[Tensor], attends: dict[str, Attend]) -> dict[str, Any]:
    """Return and print times and their ratios to FlashAttention."""
    taken = medians(calls(tensors, attends), gpu.REPEATS, gpu.milliseconds)
    ratios = {}
    for name, spent in taken.items():
        to = "flash, with backward" if name.endswith(", with backward") else "flash"
        ratios[name] = spent / taken[to]
        print(f"  {name:40} {spent:9.3f} ms {ratios[name]:6.2f} x flash", flush=True)
    return {"ms": taken, "ratios": ratios}


def all_keys(lengths: tuple[int, ...], n_tokens: int, alpha: Tensor) -> gpu.Rows:
    """Measure attention without a pattern."""
    for n_keys, causal, segments in itertools.product(lengths, (False, True), (False, True)):
        tensors = inputs(n_keys, n_tokens, segments)
        share = live_share(tensors, alpha.detach(), causal)
        print(
            f"\n{n_keys} keys{', causal' if causal else ''}{', segments' if segments else ''}; "
            f"blocks with weights: {share:.0%}"
        )
        row: dict[str, Any] = {"keys": n_keys, "causal": causal, "segments": segments}
        yield row | {"live": share} | timed(tensors, contenders(alpha, causal))


def patterns(n_tokens: int, alpha: Tensor) -> gpu.Rows:
    """Measure causal attention with patterns."""
    for n_keys, name in itertools.product(PATTERN_LENGTHS, PATTERNS):
        place = Place("decoder_self", 1, HEADS, HEAD_DIM)
        pattern = PATTERNS[name](place, STRIDE, block_sparse_from=1)
        layout = pattern.layout(n_keys, True, None, torch.device("cuda"))
        assert layout is not None
        lists = layout.tiles(triton_tiles.BLOCK).lists
        n_blocks = lists.shape[2]
        share = lists[..., 0].sum().item() / (HEADS * n_blocks * (n_blocks + 1) / 2)
        print(f"\n{n_keys} keys, causal, {name}; blocks computed: {share:.0%}")
        row = {"keys": n_keys, "causal": True, "pattern": name, "live": share}
        yield row | timed(inputs(n_keys, n_tokens, False), contenders(alpha, True, layout))


def measure(args: Namespace) -> gpu.Rows:
    alpha = torch.linspace(1.05, 1.95, HEADS, device="cuda").requires_grad_()
    lengths, n_tokens = (QUICK_LENGTHS, TOKENS // 2) if args.quick else (LENGTHS, TOKENS)
    if args.only != "patterns":
        yield from all_keys(lengths, n_tokens, alpha)
    yield from patterns(n_tokens, alpha)


def main() -> int:
    only = {"choices": ("patterns",), "help": "time only these"}
    return gpu.main(__doc__, "gpu_attention", measure, only=only)


if __name__ == "__main__":
    sys.exit(main())

"""Compile the kernels of fused attention, maps and losses for GPUs, without a GPU.

    python tests/compiled_kernels.py ARCHITECTURE ...

Every launch of forward and backward is caught on its way to the device and compiled by Triton for
each architecture (a compute capability without its point), with the sizes, strides and options of
that call. Prints a JSON list of the results. Not with TRITON_INTERPRET=1.
"""

import json
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import KernelInterface, create_function_from_signature

from headwise.ops.attention import triton_launch, triton_tiles
from headwise.ops.family import ALPHAS, Power
from headwise.ops.losses import triton as triton_losses
from headwise.ops.maps import triton as triton_maps

BF16, FP32 = torch.bfloat16, torch.float32
OPTIONS = ("num_warps", "num_stages", "maxnreg")  # of a launch; its other keywords are arguments
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
MATRIX_INSTRUCTION = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")


def call_attention(
    dtype, n_queries, n_keys, head_dim, extra = "",
    power = Power.ANY, dropout = 0.1, n_heads = 4, group = 1
):  # fmt: skip
    """Forward and backward, also "causal" (without padding), with "slopes", "masks", a "pattern".

    "masks" are one of keys and documents.
    """
    n_batch, is_causal = 2, extra in ("causal", "pattern")

    def heads(n_rows, n_heads):
        rows = torch.zeros(n_batch, n_rows, n_heads, head_dim, dtype=dtype)
        return rows.transpose(1, 2).requires_grad_()

    query, key, value = (
        heads(*size) for size in ((n_queries, n_heads), *[(n_keys, n_heads // group)] * 2)
    )
    keys = segments = None
    if extra == "masks":
        keys = torch.ones(n_batch, n_keys, dtype=torch.bool)
        segments = torch.zeros(n_batch, n_queries, dtype=torch.int32)
    alpha = torch.full((n_heads,), 1.3, requires_grad=power is Power.ANY)
    row_keys = None
    if dropout:
        row_keys = torch.zeros(2, n_batch, n_heads, n_queries, dtype=torch.int32)
    lengths = None if extra == "causal" else torch.full((n_batch,), n_keys)
    slopes = torch.zeros(n_heads) if extra == "slopes" else None
    pattern = [None] * 3
    if extra == "pattern":  # of a batch without padding
        _, block = triton_tiles.blocks(n_keys, head_dim, query.element_size(), True)
        places = torch.zeros(1, n_heads, 4, n_keys, dtype=torch.int32)
        windows, n_blocks = places[0, :, 0, 0].contiguous(), -(-n_keys // block)
        lists = torch.zeros(1, n_heads, n_blocks, 1 + n_blocks, dtype=torch.int16)
        pattern = [places, windows, lists]
    context = triton_launch.forward(
        query, key, value, alpha, lengths, keys, segments, row_keys, slopes, *pattern,
        int(power), is_causal, 0, dropout, head_dim**-0.5, 0,
    )[0]  # fmt: skip
    context.backward(torch.zeros_like(context))


def call_rows(n_keys, power=Power.ANY, dtype=FP32, has_mask=False):
    """A map and a loss over a vocabulary, forward and backward."""
    scores = torch.zeros(2, 4, 3, n_keys, dtype=dtype)
    is_any = power is Power.ANY
    beta = torch.full((1, 4, 1, 1), 0.3) if is_any else None
    mask = torch.ones(2, 1, 1, n_keys, dtype=torch.bool) if has_mask else None
    triton_maps.forward(scores, beta, power, mask)
    triton_maps.backward(scores, scores, beta, power, with_alpha=is_any)
    rows, alpha = scores.flatten(0, 2), ALPHAS.get(power, 1.3)
    threshold = triton_losses.read(rows, alpha, with_total=True)[-1]
    scale, target = torch.ones(len(rows)), torch.zeros(len(rows), dtype=torch.int64)
    triton_losses.write_gradient(rows, threshold, rows, scale, target, alpha, 0.1, 0.1)


# Sizes of 1 occur in the first step of a search and with empty sources: without the annotations of
# the kernels Triton makes constants of them, which breaks some code.
CALLS = [
    partial(call_attention, BF16, 64, 64, 64),
    partial(call_attention, BF16, 2048, 2048, 128),
    partial(call_attention, BF16, 64, 64, 64, "slopes"),
    partial(call_attention, FP32, 300, 300, 64, "slopes"),
    partial(call_attention, BF16, 2048, 2048, 64, "pattern"),
    partial(call_attention, FP32, 300, 300, 64, "pattern", Power.EXP),
    partial(call_attention, FP32, 300, 300, 128),
    partial(call_attention, BF16, 64, 64, 64, "masks"),
    partial(call_attention, BF16, 2048, 2048, 128, "masks", group=4),
    partial(call_attention, BF16, 300, 300, 256, "masks", group=2),
    partial(call_attention, FP32, 300, 300, 256, "slopes"),
    partial(call_attention, FP32, 300, 300, 256, "pattern"),
    partial(call_attention, BF16, 1, 1, 64, "causal", dropout=0.0),
    partial(call_attention, FP32, 30, 1, 128, n_heads=1),
    partial(call_attention, BF16, 1, 900, 64, n_heads=1),
    partial(call_rows, 1, has_mask=True),
    partial(call_rows, 50, Power.SQUARE),
    partial(call_rows, 32_000, dtype=BF16),
]


def launches():
    """The kernels that the calls would launch, and options of the compiler; nothing runs."""
    launched = []

    def caught(kernel, grid):
        return lambda *arguments, **keywords: launched.append((kernel, arguments, keywords))

    with mock.patch.object(KernelInterface, "__getitem__", caught):
        for call in CALLS:
            call()
    kinds = set()
    for kernel, arguments, keywords in launched:
        source = specialised(kernel, arguments, keywords)
        options = {name: keywords[name] for name in OPTIONS if name in keywords}
        kind = (source.hash(), *options.items())  # by which Triton distinguishes launches
        if kind not in kinds:
            kinds.add(kind)
            yield source, options


def specialised(kernel, arguments, keywords):
    """The kernel as Triton specialises it at a launch: some numbers 1 are constants, and so on."""
    backend = make_backend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, kinds, options = bind(*arguments, **keywords, debug=False)
    return ASTSource(kernel, *kernel._pack_args(backend, options, bound, kinds, options)[1:])


def compiled(source, options, architecture):
    """Bytes of stack are registers that a thread spills; shared memory is that of a program."""
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(made.asm["cubin"])
        binary.flush()
        command = [str(TOOLS / "cuobjdump"), "--dump-resource-usage", binary.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (stack_bytes,) = re.findall(r"STACK:(\d+)", usage)
    return {
        "kernel": source.fn.__name__,
        "architecture": architecture,
        "stack_bytes": int(stack_bytes),
        "shared_bytes": made.metadata.shared,
        "has_matrix_instructions": bool(MATRIX_INSTRUCTION.search(made.asm["ptx"])),
    }


if __name__ == "__main__":
    results = []
    for source, options in launches():
        for architecture in map(int, sys.argv[1:]):
            results.append(compiled(source, options, architecture))
            if not results[-1]["has_matrix_instructions"]:
                break  # much the same on every architecture
    print(json.dumps(results))

"""Compile the kernels of fused attention, maps and losses for GPUs, without a GPU.

    python -m benchmarks.gpu_compile [--architecture 80 86 90] [--quick] [--json FILE]

Every launch of forward and backward is caught on its way to the device and compiled by Triton for
each architecture, with the same sizes, strides and options of that call. Printed per kernel: the
registers of a thread, the bytes of its stack (registers spilled to memory), the shared memory of a
program, and the matrix instructions of its PTX. The status is 1 where a program wants more
shared memory than the architecture has: such a launch would fail. With --quick there are few calls,
and kernels without matrix instructions are compiled for the first architecture alone.

Needs Triton (`make test-triton` brings it) and no GPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.command import arguments, keep
from headwise.ops.attention import triton_launch, triton_tiles
from headwise.ops.family import ALPHAS, Power
from headwise.ops.losses import triton as triton_losses
from headwise.ops.maps import triton as triton_maps
from headwise.ops.triton.device import HAS_TRITON, is_interpreted

# Bytes of shared memory that a program may have, by compute capability without its point.
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
OPTIONS = ("num_warps", "num_stages", "maxnreg")  # of a launch; its other keywords are arguments


@dataclass(frozen=True)
class Case:
    """A call of fused attention."""

    dtype: str
    queries: int
    keys: int
    head_dim: int
    causal: bool = False
    dropout: float = 0.1
    precision: str = "highest"
    power: Power = Power.ANY
    is_padded: bool = True
    is_learned: bool = True
    has_slopes: bool = False
    has_pattern: bool = False
    heads: int = 4


@dataclass(frozen=True)
class Rows:
    """A call of a map, and of a loss over a vocabulary, both of rows of `keys` scores."""

    keys: int
    power: Power = Power.ANY
    dtype: str = "fp32"
    has_mask: bool = False


@dataclass(frozen=True)
class Launch:
    """A kernel with what it was launched with."""

    kernel: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    @property
    def options(self) -> dict[str, int]:
        """Those of the compiler."""
        return {name: self.keywords[name] for name in OPTIONS if name in self.keywords}


@dataclass(frozen=True)
class Compiled:
    """Result of compiling a launch: per thread, except for shared memory (per program)."""

    architecture: int
    case: Case | Rows
    kernel: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    matrix_instructions: int

    @property
    def fits(self) -> bool:
        """Whether a GPU of the architecture has this much shared memory for a program."""
        return self.shared_bytes <= SHARED_KIB[self.architecture] << 10


# Sizes of 1, which Triton makes constants of by default: the first step of a search, and empty
# sources.
FIRST_STEPS = (
    Case("bf16", 1, 1, 64, causal=True, dropout=0.0, is_padded=False),
    Case("fp32", 30, 1, 128, heads=1),
    Case("bf16", 1, 900, 64, heads=1),
)


# The first three are of one key, one block and several; then the other maps, masks and types.
ROWS = (
    Rows(1, has_mask=True), Rows(50, Power.SQUARE), Rows(32_000, dtype="bf16"),
    *(Rows(n_keys, power) for n_keys in (50, 1000, 32_000) for power in Power),
    *(Rows(n_keys, has_mask=True) for n_keys in (50, 5000)),
    *(Rows(32_000, power, "bf16") for power in Power), Rows(32_001, Power.EXP, "fp16"),
)  # fmt: skip


def cases(is_quick: bool) -> list[Case | Rows]:
    """Return one call for every way of splitting a call into blocks."""
    calls: list[Case | Rows]
    if is_quick:
        calls = [Case("bf16", 64, 64, 64), Case("bf16", 2048, 2048, 128)]
        calls += [
            Case("bf16", 64, 64, 64, has_slopes=True),
            Case("fp32", 300, 300, 64, has_slopes=True),
            Case("bf16", 2048, 2048, 64, causal=True, has_pattern=True),
            Case("fp32", 300, 300, 64, has_pattern=True, power=Power.EXP, is_learned=False),
        ]
        return [*calls, Case("fp32", 300, 300, 128), *FIRST_STEPS, *ROWS[:3]]
    calls = []
    for dtype, precision in (("bf16", "highest"), ("fp32", "highest"), ("fp32", "high")):
        for head_dim in (16, 32, 64, 128):
            for n_keys in (32, 64, 128, 256, 512, 2048):
                calls.append(Case(dtype, n_keys, n_keys, head_dim, True, precision=precision))
    calls += [Case("fp16", 300, 300, 64), Case("bf16", 300, 300, 80, dropout=0.0)]
    calls += [Case("bf16", 1, 900, 64, dropout=0.0), Case("bf16", 30, 1000, 64, dropout=0.0)]
    for dtype in ("bf16", "fp32"):
        for n_keys in (64, 900):
            call = Case(dtype, n_keys, n_keys, 64)
            calls += [replace(call, power=power) for power in (Power.SQUARE, Power.LINEAR)]
            calls += [replace(call, is_padded=False, causal=True), replace(call, is_learned=False)]
            calls.append(replace(call, has_slopes=True))
            patterned = replace(call, has_pattern=True, causal=True)
            calls += [replace(patterned, power=power) for power in Power]
    return [*calls, *FIRST_STEPS, *ROWS]


def launches(case: Case | Rows) -> list[Launch]:
    """What forward and backward of a call would launch, in order; nothing runs."""
    from triton.runtime.jit import KernelInterface

    launched: list[Launch] = []

    def caught(kernel: Any, grid: object) -> Any:
        return lambda *arguments, **keywords: launched.append(Launch(kernel, arguments, keywords))

    with mock.patch.object(KernelInterface, "__getitem__", caught):
        if isinstance(case, Case):
            call_attention(case)
        else:
            call_rows(case)
    return launched


def call_attention(case: Case) -> None:
    n_batch, n_heads, dtype = 2, case.heads, TYPES[case.dtype]

    def heads(n_rows: int) -> Tensor:
        rows = torch.zeros(n_batch, n_rows, n_heads, case.head_dim, dtype=dtype)
        return rows.transpose(1, 2).requires_grad_()

    query, key, value = heads(case.queries), heads(case.keys), heads(case.keys)
    alpha = torch.full((n_heads,), 1.3, requires_grad=case.is_learned)
    lengths = torch.full((n_batch,), case.keys) if case.is_padded else None
    slopes = torch.zeros(n_heads) if case.has_slopes else None
    row_keys = None
    if case.dropout:
        row_keys = torch.zeros(2, n_batch, n_heads, case.queries, dtype=torch.int32)
    pattern: list[Tensor | None] = [None] * 3
    if case.has_pattern:  # of a batch without padding
        _, block = triton_tiles.blocks(case.keys, case.head_dim, query.element_size(), True)
        places = torch.zeros(1, n_heads, 4, case.keys, dtype=torch.int32)
        windows, n_blocks = places[0, :, 0, 0].contiguous(), -(-case.keys // block)
        lists = torch.zeros(1, n_heads, n_blocks, 1 + n_blocks, dtype=torch.int16)
        pattern = [places, windows, lists]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(case.precision)
    try:
        context = triton_launch.forward(
            query, key, value, alpha, lengths, row_keys, slopes, *pattern,
            int(case.power), case.causal, 0, case.dropout, case.head_dim**-0.5, 0,
        )[0]  # fmt: skip
        context.backward(torch.zeros_like(context))
    finally:
        torch.set_float32_matmul_precision(before)


def call_rows(case: Rows) -> None:
    scores = torch.zeros(2, 4, 3, case.keys, dtype=TYPES[case.dtype])
    if case.power is not Power.EXP:  # softmax's map is torch's own
        is_any = case.power is Power.ANY
        beta = torch.full((1, 4, 1, 1), 0.3) if is_any else None
        mask = torch.ones(2, 1, 1, case.keys, dtype=torch.bool) if case.has_mask else None
        triton_maps.forward(scores, beta, case.power, mask)
        triton_maps.backward(scores, scores, beta, case.power, with_alpha=is_any)
    rows, alpha = scores.flatten(0, 2), ALPHAS.get(case.power, 1.3)
    threshold = triton_losses.read(rows, alpha, with_total=True)[-1]
    scale, target = torch.ones(len(rows)), torch.zeros(len(rows), dtype=torch.int64)
    triton_losses.write_gradient(rows, threshold, rows, scale, target, alpha, 0.1, 0.1)


def source(launch: Launch) -> Any:
    """The kernel specialised by Triton as at a launch: some numbers 1 are constants, and so on."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    kernel, backend = launch.kernel, make_backend(GPUTarget("cuda", max(SHARED_KIB), 32))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, kinds, options = bind(*launch.arguments, **launch.keywords, debug=False)
    return ASTSource(kernel, *kernel._pack_args(backend, options, bound, kinds, options)[1:])


def compiled(launch: Launch, case: Case | Rows, architecture: int) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", architecture, 32)
    made = triton.compile(source(launch), target=target, options=launch.options)
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(made.asm["cubin"])
        binary.flush()
        usage = _output(tools / "cuobjdump", "--dump-resource-usage", binary.name)
    match = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if match is None:
        raise RuntimeError(f"no registers in the output of cuobjdump: {usage.strip()}")
    registers, stack_bytes = map(int, match.groups())
    n_matrix = len(re.findall(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b", made.asm["ptx"]))
    name = launch.kernel.__name__
    shared = made.metadata.shared
    return Compiled(architecture, case, name, registers, stack_bytes, shared, n_matrix)


def _output(*command: object) -> str:
    completed = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if completed.returncode:
        raise RuntimeError(f"{command[0]} failed: {completed.stderr.strip()}")
    return completed.stdout


def measure(is_quick: bool, architectures: list[int]) -> Iterator[Compiled]:
    compiled_kinds: set[object] = set()
    for case in cases(is_quick):
        for launch in launches(case):
            # the compiler distinguishes launches by these
            kind = source(launch).hash(), *launch.options.items()
            if kind in compiled_kinds:
                continue
            compiled_kinds.add(kind)
            for architecture in architectures:
                yield (one := compiled(launch, case, architecture))
                if is_quick and not one.matrix_instructions:
                    break


def described(case: Case | Rows) -> str:
    if isinstance(case, Rows):
        return f"{case.dtype} rows of {case.keys}"
    sizes = f"{case.queries:>4} x {case.keys:<5}{case.head_dim:>4}"
    sizes += " slopes" if case.has_slopes else " pattern" if case.has_pattern else ""
    return f"{case.dtype} {case.precision:8} {sizes}"


def main() -> int:
    architectures = {"type": int, "nargs": "+", "choices": SHARED_KIB, "metavar": "N"}
    help_ = f"compute capabilities without their point: {[*SHARED_KIB]}"
    args = arguments(
        __doc__, architecture={**architectures, "default": [*SHARED_KIB], "help": help_}
    )
    if not HAS_TRITON or is_interpreted():
        print("needs Triton (pip install 'headwise[triton]') and no TRITON_INTERPRET=1")
        return 1
    kernels = []
    for one in measure(args.quick, args.architecture):
        print(
            f"sm_{one.architecture:<4}{described(one.case):41} {one.kernel:18} "
            f"{one.registers:4} registers {one.stack_bytes:6} B stack "
            f"{one.shared_bytes / 1024:6.1f} KiB shared {one.matrix_instructions:4} matrix "
            f"instructions{'' if one.fits else '  TOO LARGE'}",
            flush=True,
        )
        kernels.append(one)
    n_unfit = sum(not one.fits for one in kernels)
    print(f"{len(kernels)} kernels, {n_unfit} of them too large for their architecture")
    keep(args.json, {"kernels": [asdict(one) for one in kernels]})
    return int(n_unfit > 0)


if __name__ == "__main__":
    sys.exit(main())

"""The C++ kernels of the maps: compiled at first use, cached, and called through ctypes.

The compiler is `CXX`, else the first of c++, g++ and clang++ on PATH. The library is cached
per machine under a hash of sources, options and CPU. `HEADWISE_NATIVE=0` disables the
kernels. Without kernels torch computes the same; `unavailable_reason()` returns why.

Axes: B batch, H heads, Q and K numbers of queries and keys.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.compilation import constant_in_graphs
from headwise.files import machine_cache_dir
from headwise.kernels.arguments import check_tensor
from headwise.kernels.problem import EVERYTHING, Draws, Power, Visible

SOURCES = Path(__file__).parent / "csrc"
COMPILERS = ("c++", "g++", "clang++")
OPTIONS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",  # kernels shift the bits of floats as integers, also in unused lanes
    "-fPIC",
)
COMPILE_TIMEOUT = 300  # seconds
DTYPES = (torch.float32, torch.bfloat16)
FLOAT, CPU = (torch.float32,), torch.device("cpu")

log = logging.getLogger(__name__)


def structure(name: str) -> type[ctypes.Structure]:
    """Return a struct as declared in the headers of `csrc`; unset fields are 0 or null."""
    headers = "".join(header.read_text(encoding="utf-8") for header in sorted(SOURCES.glob("*.h")))
    code = re.sub(r"//.*|\bconst ", "", headers)
    body = code.partition(f"struct {name} {{")[2].partition("};")[0]
    fields: list[tuple[str, Any]] = []
    for c_type, star, names in re.findall(r"(\w+)(\*?) ([^;]+);", body):
        if star:
            field_type: Any = ctypes.c_void_p
        elif c_type == "Problem":
            field_type = Problem
        else:
            field_type = getattr(ctypes, f"c_{c_type.removesuffix('_t')}")
        for field, size in re.findall(r"(\w+)(?:\[(\d+)\])?", names):
            fields.append((field, field_type * int(size) if size else field_type))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Problem: Any = structure("Problem")


def supports(scores: Tensor) -> bool:
    """Return whether kernels support the scores: float32 or bfloat16 on CPU, with kernels built."""
    return scores.device.type == "cpu" and scores.dtype in DTYPES and _are_available()


def unavailable_reason() -> str | None:
    """Return why kernels are unavailable, or None if they are available."""
    return _library()[1]


def build_digest() -> str:
    """Return a hash of the build: sources, options, compiler and CPU."""
    return Path(functions()._name).stem


@constant_in_graphs
def _are_available() -> bool:
    return unavailable_reason() is None


def forward(
    scores_BHQK: Tensor,
    beta: Tensor | None,
    power: Power,
    visible: Visible = EVERYTHING,
    out_BHQK: Tensor | None = None,
    threshold_BHQ2: Tensor | None = None,
    draws: Draws | None = None,
) -> Tensor:
    """Return weights of the scores (B, H, Q, K); see `headwise.entmax.function`.

    Args:
        scores_BHQK: float32 or bfloat16, contiguous.
        beta: α - 1, float32, broadcastable to (B, H, Q, 1); needed for `Power.ANY`.
        power: the map.
        visible: which keys a row may attend to.
        out_BHQK: receives the weights, may be the scores; None: a new tensor.
        threshold_BHQ2: float32, contiguous; receives the numbers from which
            `backward_from_scores` recomputes the weights.
        draws: dropout, or None.
    """
    weights_BHQK = torch.empty_like(scores_BHQK) if out_BHQK is None else out_BHQK
    problem = problem_of(scores_BHQK, weights_BHQK, beta, power, draws, visible)
    if threshold_BHQ2 is not None:
        problem.threshold = address(threshold_BHQ2, FLOAT, (*scores_BHQK.shape[:3], 2))
    functions().headwise_forward(ctypes.byref(problem))
    return weights_BHQK


def backward(
    weights_BHQK: Tensor, grad_BHQK: Tensor, beta: Tensor | None, power: Power, with_alpha: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the scores and of α per row (B, H, Q, 1); empty if not requested.

    Args:
        weights_BHQK: result of `forward`.
        grad_BHQK: gradient of the weights, same dtype, contiguous.
        beta, power: as in `forward`.
        with_alpha: requires `Power.ANY`.
    """
    grad_scores_BHQK = torch.empty_like(weights_BHQK)
    problem = problem_of(weights_BHQK, grad_scores_BHQK, beta, power)
    problem.grad = address(grad_BHQK, (weights_BHQK.dtype,), weights_BHQK.shape)
    grad_alpha = _row_gradients(problem, weights_BHQK, with_alpha)
    functions().headwise_backward(ctypes.byref(problem))
    return grad_scores_BHQK, grad_alpha


def backward_from_scores(
    scores_BHQK: Tensor,
    threshold_BHQ2: Tensor,
    grad_BHQK: Tensor,
    weights_BHQK: Tensor,
    beta: Tensor | None,
    power: Power,
    visible: Visible,
    draws: Draws | None,
    with_alpha: bool,
) -> Tensor:
    """Compute `backward` from scores and thresholds instead of weights.

    Overwrites the scores with their gradient, and writes the weights after dropout to
    `weights_BHQK`, for the gradient of the values. Returns the gradient of α as `backward` does.
    """
    problem = problem_of(scores_BHQK, scores_BHQK, beta, power, draws, visible)
    dtypes, shape = (scores_BHQK.dtype,), scores_BHQK.shape
    problem.threshold = address(threshold_BHQ2, FLOAT, (*shape[:3], 2))
    problem.grad = address(grad_BHQK, dtypes, shape)
    problem.weights = address(weights_BHQK, dtypes, shape)
    grad_alpha = _row_gradients(problem, scores_BHQK, with_alpha)
    functions().headwise_backward(ctypes.byref(problem))
    return grad_alpha


def draw_seed() -> Tensor:
    """Draw a seed for `Draws` from torch's CPU generator."""
    return torch.randint(1 << 62, (), dtype=torch.int64, device="cpu")


def address(
    values: Tensor,
    dtypes: Sequence[torch.dtype],
    shape: tuple[int, ...] | None = None,
    is_strided: bool = False,
) -> int:
    """Return the address of the values, after checking that the kernels support them.

    Raises:
        TypeError: another dtype or device, or not contiguous.
        ValueError: another shape, if it is given.
    """
    is_dense = values.device == CPU and values.layout is torch.strided
    if values.dtype not in dtypes or not is_dense or (shape and values.shape != shape):
        check_tensor("a tensor of the C++ kernels", values, dtypes, shape or values.shape, CPU)
    if not (is_strided or values.is_contiguous()):
        raise TypeError(f"the C++ kernels need contiguous values, got strides {values.stride()}")
    return values.data_ptr()


def readable(mask: Tensor) -> Tensor:
    """Return the mask with a last axis that is contiguous or broadcast, as the kernels need."""
    is_readable = mask.shape[-1] == 1 or mask.stride(-1) in (0, 1)
    return mask if is_readable else mask.contiguous()


def _row_gradients(problem: ctypes.Structure, scores_BHQK: Tensor, with_alpha: bool) -> Tensor:
    """Set and return the buffer for the gradient of α per row; empty if not requested."""
    shape = (*scores_BHQK.shape[:3], 1) if with_alpha else (0,)
    grad_alpha = scores_BHQK.new_zeros(shape, dtype=torch.float32)
    if with_alpha:
        problem.grad_alpha = grad_alpha.data_ptr()
    return grad_alpha


def problem_of(
    source: Tensor,
    out: Tensor,
    beta: Tensor | None,
    power: Power,
    draws: Draws | None = None,
    visible: Visible = EVERYTHING,
) -> ctypes.Structure:
    """Return the struct that all kernels of rows read, alone or in a larger struct."""
    problem: ctypes.Structure = Problem(
        source=address(source, DTYPES),
        out=address(out, (source.dtype,), source.shape),
        is_half=source.dtype is torch.bfloat16,
        map=power,
        n_threads=torch.get_num_threads(),
    )
    problem.size[:] = source.shape
    if beta is not None:
        problem.beta = address(beta, FLOAT, is_strided=True)
        problem.beta_stride[:] = beta.expand(*source.shape[:3], 1).stride()[:3]
    if draws is not None:
        problem.n_kept, problem.seed = draws.n_kept, draws.seed
        problem.first_row = draws.first_row
    if visible.mask is not None:
        problem.mask = address(visible.mask, (torch.bool,), is_strided=True)
        problem.mask_stride[:] = visible.mask.expand(source.shape).stride()
    if visible.lengths_B is not None:
        problem.lengths = address(visible.lengths_B, (torch.int64,), source.shape[:1])
    problem.is_causal, problem.query_offset = visible.is_causal, visible.query_offset
    return problem


def functions() -> ctypes.CDLL:
    """Return the loaded library."""
    library, reason = _library()
    if library is None:
        raise RuntimeError(f"no native kernels: {reason}")
    return library


@functools.cache
def _library() -> tuple[ctypes.CDLL | None, str | None]:
    """Return the loaded library, or None and the reason."""
    if os.environ.get("HEADWISE_NATIVE", "1") == "0":
        return None, "HEADWISE_NATIVE=0"
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        return None, f"no C++ compiler: CXX is not set, {', '.join(COMPILERS)} are not found"
    path = machine_cache_dir() / "native"
    try:
        path /= f"{_digest(compiler)}.so"
        if not _loads(path):
            log.info("compiling the kernels (once for this machine)")
            _build(compiler, path)
        return ctypes.CDLL(str(path)), None
    except subprocess.CalledProcessError as error:
        first = next(iter((error.stderr or "").splitlines()), f"exit status {error.returncode}")
        return None, f"{compiler} failed: {first}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{path}: {error}"


def _loads(path: Path) -> bool:
    """Return whether the library exists and can be loaded."""
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def _digest(compiler: str) -> str:
    """Return a hash of all that the compiled kernels depend on."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    # the library uses torch's OpenMP runtime
    facts = (compiler, OPTIONS, platform.machine(), _cpu(), torch.__version__, torch.__file__)
    digest.update(repr(facts).encode())
    return digest.hexdigest()[:20]


def _cpu() -> str:
    """Return what -march=native depends on, as machines may share a cache folder."""
    facts = Path("/proc/cpuinfo")
    if not facts.exists():
        return platform.processor()
    lines = facts.read_text(encoding="utf-8", errors="replace").splitlines()
    names = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(names)}))


def _build(compiler: str, path: Path) -> None:
    """Compile to a temporary name and rename, so that an interruption leaves no partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        # Compile for OpenMP but do not link to it: torch has loaded its runtime, and a second one
        # would start separate threads.
        for threads in (["-fopenmp"], []):
            object_file = Path(folder) / "entmax.o"
            command = [*shlex.split(compiler), *OPTIONS]
            try:
                _call(
                    [*command, *threads, "-c", str(SOURCES / "entmax.cpp"), "-o", str(object_file)]
                )
                _call([*command, "-shared", str(object_file), "-o", str(built)])
                ctypes.CDLL(str(built))
            except (subprocess.CalledProcessError, OSError):
                if not threads:
                    raise
                continue
            break
        built.replace(path)


def _call(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT)

"""The C++ kernels: compiled at first use, and cached.

The compiler is `CXX`, else the first of c++, g++ and clang++ on PATH. The library is cached
per machine under a hash of sources, options, compiler and CPU; so is the reason of a failure,
until the compiler's file changes. `HEADWISE_NATIVE=0` disables the kernels. Without kernels torch
computes the same; `unavailable_reason()` returns why.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from headwise.errors import HeadwiseError
from headwise.files import machine_cache_dir, write_text

SOURCES = Path(__file__).parent
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
# failures that may end by themselves
PASSING = ("exit status -", "signal", "Killed", "timed out", "memory", "No space")

log = logging.getLogger(__name__)


def unavailable_reason() -> str | None:
    """Return why kernels are unavailable, or None if they are available."""
    return _library()[1]


def build_digest() -> str:
    """Return a hash of the build: sources, options, compiler and CPU."""
    return Path(functions()._name).stem


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
        reason = f"no C++ compiler: CXX is not set, {', '.join(COMPILERS)} are not found"
        return None, _warned(reason, "install g++ or clang++, or set CXX (environment)")
    path = machine_cache_dir() / "native" / f"{_digest(compiler)}.so"
    program = next(map(shutil.which, shlex.split(compiler)), None)
    changed = program and os.stat(program).st_mtime_ns  # when another version is installed
    failed = path.with_suffix(f".{changed}.failed")
    with contextlib.suppress(OSError):
        return ctypes.CDLL(str(path)), None
    try:
        if failed.is_file():
            return None, _remembered(failed.read_text(encoding="utf-8"), failed)
        log.info("compiling the kernels (once for this machine)")
        _build(compiler, path)
        return ctypes.CDLL(str(path)), None
    except subprocess.CalledProcessError as error:
        first = next(iter((error.stderr or "").splitlines()), f"exit status {error.returncode}")
        return None, _remembered(f"{compiler} failed: {first}", failed)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, _remembered(f"{path}: {error}", failed)


def _remembered(reason: str, failed: Path) -> str:
    """Return the reason of a failure after a warning; the next process reads it from a file."""
    if not (failed.is_file() or any(word in reason for word in PASSING)):
        with contextlib.suppress(OSError, HeadwiseError):  # the cache is not writable
            write_text(failed, reason)
    advice = f"to compile them again, delete {failed} or set HEADWISE_CACHE=FOLDER (environment)"
    return _warned(reason, advice)


def _warned(reason: str, advice: str) -> str:
    """Return the reason after a warning, once per process."""
    log.warning("no C++ kernels: torch forms attention weights, slower (%s); %s", reason, advice)
    return reason


def _digest(compiler: str) -> str:
    """Return a hash of all that the compiled kernels depend on."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.[hc]*")):
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
            object_file = Path(folder) / "kernels.o"
            command = [*shlex.split(compiler), *OPTIONS]
            try:
                _call(
                    [*command, *threads, "-c", str(SOURCES / "kernels.cpp"), "-o", str(object_file)]
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

"""Verification of kernels against float64 before use; torch replaces wrong ones.

A case is a kernel with the settings that it is compiled or branches for. Its result on a small
problem, forward and backward, on its device, is compared with the caller's float64 reference. A
case that raises or differs is not used, with one warning. Verdicts hold for the process; those of
completed comparisons are cached in the user's cache folder for later processes with the same build
and device.

A case runs in a separate thread, so that the caller's autograd, autocast, transforms and modes do
not affect it, and uses separate random generators.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width, N rows, V classes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from headwise.compilation import constant_in_graphs
from headwise.files import machine_cache_dir, write_text
from headwise.ops import checks
from headwise.ops.checks import Case, Reference
from headwise.ops.cpp import build
from headwise.ops.triton import device as triton_device

# Maximum error by dtype, relative to the largest value or 1; correct kernels are far below it.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
log = logging.getLogger(__name__)


_VERDICTS: dict[Case, str | None] = {}  # why a case is not used; None: verified


def verdict(case: Case) -> str | None:
    """Return why a case is not used, or None if it is verified."""
    return _VERDICTS.get(case, "not verified")


@constant_in_graphs
def verdict_in_graph(reference: Reference | None, *fields: Any) -> str | None:
    """Return `verdict` under torch.compile; with a reference, verify while tracing."""
    case = Case(*fields)
    if reference is not None:
        verify(case, reference)
    return verdict(case)


def verify(case: Case, reference: Reference | None) -> None:
    """Verify a case that has no verdict yet; log a warning if it is wrong.

    Args:
        case: the case.
        reference: the mathematics to compare with; None for dropout.
    """
    if case in _VERDICTS:
        return
    path = _cache_path(case)
    cached = _read(path)
    if str(case) in cached:
        reason = cached[str(case)]
    else:
        reason, is_computed = _judge(case, reference)
        if is_computed:
            _write(path, cached | {str(case): reason})
    _VERDICTS[case] = reason
    if reason is not None:
        _warn(case, reason)


def rejected() -> dict[Case, str]:
    """Return the cases that are not used, with reasons."""
    return {case: reason for case, reason in _VERDICTS.items() if reason is not None}


def reject(wrong: dict[Case, str]) -> None:
    """Mark cases as not used that are wrong in another process."""
    for case, reason in wrong.items():
        if _VERDICTS.get(case) is None:
            _VERDICTS[case] = reason
            _warn(case, reason)


def _warn(case: Case, reason: str) -> None:
    log.warning("%s: replaced by torch: %s", case, reason)


def _judge(case: Case, reference: Reference | None) -> tuple[str | None, bool]:
    """Return the verdict and whether to cache it: a case that raises is retried next time."""
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(_difference, case, reference).result(), True
        except Exception as error:  # noqa: BLE001 - torch is used instead
            first = next(iter(str(error).splitlines()), "")
            return f"it raised {type(error).__name__}: {first}", False


@torch.no_grad()
def _difference(case: Case, reference: Reference | None) -> str | None:
    for name, result, expected in checks.CHECKS[case.kernel](case, reference):
        result, expected = result.detach().to("cpu", torch.float64), expected.to(torch.float64)
        error = float((result - expected).abs().max() / expected.abs().max().clamp_min(1))
        if not error <= TOLERANCES[case.dtype]:  # NaN too
            return f"its {name} differ from float64 by {error:.2g}"
    return None


def _cache_path(case: Case) -> Path:
    """Return the file of cached verdicts for this build and device."""
    digest = build.build_digest() if case.kernel.startswith("C++") else triton_device.build_digest()
    return machine_cache_dir() / "verified" / f"{digest}-{_checks_digest()}.json"


@functools.cache
def _checks_digest() -> str:
    """Return a hash of the checks."""
    return hashlib.sha256(Path(checks.__file__).read_bytes()).hexdigest()[:8]


def _read(path: Path) -> dict[str, str | None]:
    try:
        cached = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cached if isinstance(cached, dict) else {}


def _write(path: Path, verdicts: dict[str, str | None]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(verdicts, indent=1, ensure_ascii=False))
    except OSError as error:
        log.info("cannot cache the verification of kernels: %s", error)

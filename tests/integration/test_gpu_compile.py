"""GPU kernels compiled on a machine without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triton_marks import HAS_TRITON

ROOT = Path(__file__).parents[2]
# 8.0 spills most registers, 9.0 has different matrix units
ARCHITECTURES = ("80", "90")
SHARED_BYTES = 99 << 10  # of 8.6, which has least; it runs the code of 8.0


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.skipif(not HAS_TRITON, reason="no Triton (make test-triton)")
def test_every_kernel_compiles_and_fits(tmp_path: Path) -> None:
    """Those without matrix instructions are compiled for 8.0 alone."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    path = tmp_path / "compiled.json"
    command = [sys.executable, "-m", "benchmarks.gpu_compile", "--quick", "--json", str(path)]
    command += ["--architecture", *ARCHITECTURES]
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    kernels = json.loads(path.read_text(encoding="utf-8"))["kernels"]
    # without the kernels' annotations Triton makes sizes of 1 constants, which breaks some code
    sizes = {(kernel["case"].get("queries"), kernel["case"]["keys"]) for kernel in kernels}
    assert sizes >= {(1, 1), (1, 900), (None, 1)}
    attention_kernels = {
        "forward_streaming",
        "forward_resident",
        "backward_queries",
        "backward_keys",
    }
    row_kernels = {"weights_forward", "weights_backward", "loss_forward", "loss_backward"}
    kernel_names = attention_kernels | row_kernels
    assert {kernel["kernel"] for kernel in kernels} >= kernel_names
    # a limit of few registers spills thousands of bytes
    assert max(kernel["stack_bytes"] for kernel in kernels) < 1000
    of_80, of_90 = (
        [kernel for kernel in kernels if str(kernel["architecture"]) == name]
        for name in ARCHITECTURES
    )
    assert max(kernel["shared_bytes"] for kernel in of_80) <= SHARED_BYTES
    for compiled in (of_80, of_90):
        with_matrix_units = {one["kernel"] for one in compiled if one["matrix_instructions"]}
        assert with_matrix_units == attention_kernels

"""The kernels for GPUs, compiled where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triton_marks import HAS_TRITON

ROOT = Path(__file__).parents[2]
# registers spill most at 8.0, 9.0 has its own matrix units
ARCHITECTURES = (80, 90)
SHARED_BYTES = 99 << 10  # of 8.6, the least; it gets the code of 8.0


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.skipif(not HAS_TRITON, reason="no Triton (make test-triton)")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_fits(architecture: int, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    kept = tmp_path / "compiled.json"
    command = [sys.executable, "-m", "benchmarks.gpu_compile", "--quick", "--json", str(kept)]
    command += ["--architecture", str(architecture)]
    told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    found = json.loads(kept.read_text(encoding="utf-8"))["kernels"]
    # numbers 1 would be constants that some code cannot take, where a kernel did not forbid it
    sizes = {(one["case"].get("queries"), one["case"]["keys"]) for one in found}
    assert sizes >= {(1, 1), (1, 900), (None, 1)}
    attention = {"forward_streaming", "forward_resident", "backward_queries", "backward_keys"}
    of_rows = {"weights_forward", "weights_backward", "loss_forward", "loss_backward"}
    kernels = attention | of_rows
    assert {one["kernel"] for one in found} >= kernels
    # a compiler that settles for few registers spills thousands of bytes
    assert max(one["stack_bytes"] for one in found) < 1000
    if architecture == 80:
        assert max(one["shared_bytes"] for one in found) <= SHARED_BYTES
    on_matrix_units = {one["kernel"] for one in found if one["matrix_instructions"]}
    assert on_matrix_units == attention

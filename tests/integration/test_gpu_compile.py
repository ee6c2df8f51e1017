"""GPU kernels compiled on a machine without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triton_marks import HAS_TRITON

TESTS = Path(__file__).parents[1]
# Shared memory of a program by architecture. 8.0 spills most registers, and its code runs on 8.6,
# which has least memory; 9.0 has different matrix units.
SHARED_BYTES = {80: 99 << 10, 90: 227 << 10}
ATTENTION = {"forward_streaming", "forward_resident", "backward_queries", "backward_keys"}
ROWS = {"weights_forward", "weights_backward", "loss_forward", "loss_backward"}


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.skipif(not HAS_TRITON, reason="no Triton (make test-triton)")
def test_every_kernel_compiles_and_fits(tmp_path):
    """Those without matrix instructions are compiled for 8.0 alone."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(TESTS / "compiled_kernels.py"), *map(str, SHARED_BYTES)]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    kernels = json.loads(completed.stdout.splitlines()[-1])
    assert {one["kernel"] for one in kernels} >= ATTENTION | ROWS
    for one in kernels:
        assert one["shared_bytes"] <= SHARED_BYTES[one["architecture"]], one
        # a limit of few registers spills thousands of bytes
        assert one["stack_bytes"] < 1000, one
    for architecture in SHARED_BYTES:
        compiled = [one for one in kernels if one["architecture"] == architecture]
        with_matrix_units = {one["kernel"] for one in compiled if one["has_matrix_instructions"]}
        assert with_matrix_units == ATTENTION

"""Jobs on the stand-in of a GPU, each in its own process, which `run_job` starts.

python standin_gpu_jobs.py LIBRARY KIND REQUEST      (json; the last line is the result)
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import standin_gpu

SIZES = ("encoder_layers=1", "decoder_layers=1", "d_model=32", "d_ff=48")
SMALLEST = tuple(f"model.{size}" for size in SIZES)
TINY = ("tracker=none", "data=builtin", "model=tiny", *SMALLEST)
# each device has its own random numbers
WITHOUT_DROPOUT = ("model.dropout=0", "model.attention_dropout=0", "model.activation_dropout=0")
SAME_NUMBERS = ("trainer.precision=fp32", *WITHOUT_DROPOUT)


def run_job(library, kind, request=None):
    """Run a job and return its result; if it fails, the test fails with its output."""
    command = [sys.executable, __file__, str(library), kind, json.dumps(request)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return json.loads(completed.stdout.splitlines()[-1])


def updates(device, request):
    """Losses of the updates of each case on the CPU and on the device, and the device's waits.

    The request: `cases`, overrides of each, and `lengths`, of the sentences of each update.

    The first update may wait: it fills caches.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    from command_line import composer
    from headwise.config.register import typed

    with composer() as compose:
        configs = [typed(compose([*TINY, *SAME_NUMBERS, *case])) for case in request["cases"]]
    results = []
    for config in configs:
        with _disable_current_modes():  # that of the stand-in
            *_, on_cpu = _windows(config, request["lengths"], "cpu")
        windows = _windows(config, request["lengths"], "cuda:0")
        next(windows)
        device.waits.clear()
        *_, on_device = windows
        waits = dict(device.waits)
        results.append({"cpu": float(on_cpu[0]), "cuda": float(on_device[0]), "waits": waits})
    return results


def _windows(config, lengths, device):
    """`TrainingStep.window` after each update."""
    import torch

    from headwise.seed import seed_everything
    from training_steps import batch, step_of

    seed_everything(1, "model")
    step = step_of(config, torch.device(device))
    for update, of_batch in enumerate(lengths, start=1):
        step(update, [batch(*of_batch)])
        yield step.window


def commands(device, lines):
    """Run commands of headwise one after the other; `output` is what they print."""
    from hydra.core.global_hydra import GlobalHydra

    from headwise.cli import main

    codes = []
    output = io.StringIO()
    for line in lines:
        GlobalHydra.instance().clear()
        with mock.patch.object(sys, "argv", ["headwise", *line]), redirect_stdout(output):
            try:
                main()
                codes.append(0)
            except SystemExit as end:
                codes.append(end.code or 0)
    return {"codes": codes, "waits": dict(device.waits), "output": output.getvalue()}


def training_benchmark(device, path):
    """Run the benchmark of training on a GPU, with small numbers.

    Returns its rows, how often each line made the host wait, and whether kernels were
    deterministic. `torch.compile` does nothing, as it does not support these tensors.
    """
    import torch
    from benchmarks import gpu, gpu_training

    settings = ("trainer=gpu", "trainer.max_tokens=64", *SMALLEST)
    sizes = {"SETTINGS": settings, "VOCABULARY": 40, "N_BATCHES": 2, "LONGEST": 12}
    line = ["gpu_training", "--model", "tiny", "--quick", "--compile", "--json", path]
    with (
        mock.patch.multiple(gpu_training, **sizes),
        mock.patch.object(gpu, "REPEATS", 1),
        mock.patch.object(sys, "argv", line),
        mock.patch.object(torch, "compile", lambda plain: plain),
    ):
        assert gpu_training.main() == 0
    rows = json.loads(Path(path).read_text(encoding="utf-8"))["rows"]
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    return {"rows": rows, "waits": dict(device.waits), "is_deterministic": is_deterministic}


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET") != "1":
        # after `make test-triton` it is installed and looks for a GPU driver
        sys.modules["triton"] = None
    standin_gpu.load(Path(sys.argv[1]))
    jobs = {one.__name__: one for one in (updates, commands, training_benchmark)}
    import pytest

    import triton_marks
    from headwise.ops import check

    if triton_marks.IS_INTERPRETED:
        triton_marks.prepare_interpreter(pytest.MonkeyPatch())
    # the check runs in its own thread, in which the stand-in's tensors do not exist
    unchecked = mock.patch.object(check, "failure", return_value=None)
    with standin_gpu.Device() as entered, unchecked:
        result = jobs[sys.argv[2]](entered, json.loads(sys.argv[3]))
    print()
    print(json.dumps(result), flush=True)
    # autograd's thread may still release Python objects, which aborts an interpreter that ends
    os._exit(0)

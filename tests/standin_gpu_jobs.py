"""Jobs on the stand-in of a GPU, each in its own process, which `run_job` starts.

python standin_gpu_jobs.py LIBRARY KIND REQUEST      (json; the last line is the result)
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TypedDict
from unittest import mock

import standin_gpu

SIZES = ("encoder_layers=1", "decoder_layers=1", "d_model=32", "d_ff=48")
SMALLEST = tuple(f"model.{size}" for size in SIZES)
TINY = ("tracker=none", "data=builtin", "model=tiny", *SMALLEST)
# each device has its own random numbers
WITHOUT_DROPOUT = ("model.dropout=0", "model.attention_dropout=0", "model.activation_dropout=0")
SAME_NUMBERS = ("trainer.precision=fp32", *WITHOUT_DROPOUT)


class UpdateRequest(TypedDict):
    """The request of the job `updates`."""

    cases: Sequence[Sequence[str]]  # overrides
    lengths: Sequence[Sequence[int]]  # of the sentences of each update


def run_job(library, kind, request=None):
    """Run a job and return its result; if it fails, the test fails with its output."""
    command = [sys.executable, __file__, str(library), kind, json.dumps(request)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return json.loads(completed.stdout.splitlines()[-1])


def updates(device, request):
    """Losses of the updates of each case on the CPU and on the device, and the device's waits.

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


def _flex(query, key, value, block_mask):
    """Torch's FlexAttention, which compiles by itself."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    heads, positions = (torch.arange(n, device=query.device) for n in query.shape[1:3])
    mask = block_mask.mask_mod(heads, heads[:, None, None], positions[:, None], positions)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)


def benchmarks(device, request):
    """Run some GPU benchmarks on small tensors.

    Returns the JSON of each, how often each line made the host wait, and whether kernels were
    deterministic. `torch.compile` does nothing, as it does not support these tensors.
    """
    import torch
    from benchmarks import gpu, gpu_attention, gpu_rows, gpu_training
    from torch.nn.attention import flex_attention

    attention = {"QUICK_LENGTHS": (32,)}
    attention |= {"TOKENS": 64, "HEADS": 1, "SEGMENT": 16, "PATTERN_LENGTHS": (70,)}
    attention |= {"STRIDE": 8, "PATTERNS": {"strided": gpu_attention.Strided}}
    rows = {"MAP_SHAPES": ((1, 2, 3, 4),), "LOSS_SHAPE": (3, 40)}
    settings = ("trainer=gpu", "trainer.max_tokens=64", *SMALLEST)
    training = {"SETTINGS": settings, "VOCABULARY": 40, "N_BATCHES": 2, "LONGEST": 12}
    changes = {gpu_attention: attention, gpu_rows: rows, gpu_training: training}
    results = {}
    for module, changed in changes.items():
        name = module.__name__.rpartition(".")[2]
        if name not in request["lines"]:
            continue
        path = Path(request["folder"]) / f"{name}.json"
        line = [name, *request["lines"][name], "--json", str(path)]
        with (
            mock.patch.multiple(module, **changed),
            mock.patch.object(gpu, "REPEATS", 1),
            mock.patch.object(sys, "argv", line),
            mock.patch.object(torch, "compile", lambda plain: plain),
            mock.patch.object(flex_attention, "flex_attention", _flex),
        ):
            assert module.main() == 0
        results[name] = json.loads(path.read_text(encoding="utf-8"))
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    return {"results": results, "waits": dict(device.waits), "is_deterministic": is_deterministic}


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET") != "1":
        # after `make test-triton` it is installed and looks for a GPU driver
        sys.modules["triton"] = None
    standin_gpu.load(Path(sys.argv[1]))
    jobs = {one.__name__: one for one in (updates, commands, benchmarks)}
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

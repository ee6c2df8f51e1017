"""Training on a real GPU, its settings and the compilation of its kernels on any machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from command_line import composer, train_small, write_corpus
from headwise.config.register import typed
from headwise.losses.loss import CrossEntropy, Entmax15Loss
from headwise.ops import dispatch
from headwise.precision import unique_indices
from headwise.seed import seed_everything
from headwise.train.checkpoint import load_checkpoint
from headwise.train.distributed import choose_device
from standin_gpu_jobs import SAME_NUMBERS, TINY
from training_steps import UPDATES, batch, step_of
from triton_marks import HAS_TRITON, IS_INTERPRETED, choose_implementation

NO_GPU = IS_INTERPRETED or not torch.cuda.is_available()


def needs_gpu(test):
    """Tell what the stand-in of a GPU (`test_training_devices.py`) cannot."""
    return pytest.mark.triton(pytest.mark.skipif(NO_GPU, reason="no GPU")(test))


LENGTHS = [[9, 7, 11, 3], [30, 26, 4], [17, 17]]


def last_loss(choices, device, may_wait=True):
    """The loss of the last update; from the second one on the host may not wait for the GPU."""
    with composer() as compose:
        config = typed(compose([*TINY, *SAME_NUMBERS, *choices]))
    seed_everything(1, "model")
    step = step_of(config, torch.device(device))
    try:
        for update, lengths in enumerate(LENGTHS, start=1):
            step(update, [batch(*lengths)])
            if not may_wait:
                torch.cuda.set_sync_debug_mode("error")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return float(step.window[0])


@needs_gpu
@pytest.mark.parametrize("choices", UPDATES, ids=" ".join)
def test_updates_match_the_cpu_without_host_waits(choices):
    on_gpu = last_loss(choices, "cuda")  # compiles and checks kernels
    assert not dispatch.failures()
    if "gates=hard_concrete" not in choices:  # whose noise each device draws
        assert on_gpu == pytest.approx(last_loss(choices, "cpu"), rel=1e-4)
    assert last_loss(choices, "cuda", may_wait=False) == pytest.approx(on_gpu, rel=1e-5)


@needs_gpu
@pytest.mark.parametrize("attention", ["softmax", "entmax15", "alpha_entmax", "linear", "tanh"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resumed_run_equals_uninterrupted_one(attention, precision, tmp_path):
    write_corpus(tmp_path / "text")
    settings = (f"attention={attention}", f"trainer.precision={precision}", "trainer.device=cuda")
    settings += ("trainer.save_every=4", "model.dropout=0.1", "model.attention_dropout=0.1")
    weights = []
    for name, stops in (("straight", [8]), ("halves", [4, 8])):
        for stop in stops:
            run = train_small(
                tmp_path, *settings, f"trainer.max_updates={stop}", f"experiment_name={name}"
            )
        weights.append(load_checkpoint(run / "checkpoints" / "last.pt")["model"])
    different = [name for name, one in weights[0].items() if not torch.equal(one, weights[1][name])]
    assert not different


@needs_gpu
def test_commands_run(headwise, tmp_path):
    write_corpus(tmp_path / "text")
    run = train_small(tmp_path, "attention=alpha_entmax", "trainer.precision=bf16")
    for command in ("evaluate", "analyze", "prune"):
        headwise.ok(command, f"run={run}", "device=cuda")


TESTS = Path(__file__).parents[1]
# Shared memory of a program by architecture. 8.0 spills most registers, and its code runs on 8.6,
# which has least memory, as has 12.0; 9.0 and 10.0 have different matrix units.
SHARED_BYTES = {80: 99 << 10, 90: 227 << 10, 100: 227 << 10}
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


SORTED_IF_DETERMINISTIC = ("scatter", "index_put")  # on a GPU


@pytest.fixture
def switches():
    """Restore the settings of torch."""
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.backends.cuda.enable_cudnn_sdp(was_enabled)
    torch.use_deterministic_algorithms(False)


class ScatterRecorder(TorchDispatchMode):
    """Records whether deterministic algorithms were enabled at each scatter."""

    def __init__(self):
        super().__init__()
        self.flags = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func.overloadpacket).removeprefix("aten.")
        if name.startswith(SORTED_IF_DETERMINISTIC):
            is_sorted = torch.are_deterministic_algorithms_enabled()
            self.flags[name] = self.flags.get(name, False) or is_sorted
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("switches")
def test_cudnn_attention_is_disabled_on_gpus(monkeypatch):
    torch.backends.cuda.enable_cudnn_sdp(True)
    assert choose_device("cpu").type == "cpu"
    assert torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert choose_device("auto", 1) == torch.device("cuda", 1)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize("loss", ["cross_entropy", "entmax"])
def test_losses_scatter_without_sorting(monkeypatch, loss):
    choose_implementation("torch", monkeypatch)
    logits_NV = torch.randn(20, 5000)
    losses = {"cross_entropy": CrossEntropy(0.1), "entmax": Entmax15Loss()}
    target_N = torch.arange(4, 24)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with ScatterRecorder() as recorder:
        losses[loss].row_sums(logits_NV, target_N, True)
    assert "scatter_add_" in recorder.flags
    assert not any(recorder.flags.values())
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize("warn_only", [True, False])
def test_unique_indices_restores_the_deterministic_setting(warn_only):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    with unique_indices():
        assert not torch.are_deterministic_algorithms_enabled()
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only

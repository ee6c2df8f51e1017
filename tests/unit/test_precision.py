"""Settings for GPUs, tested without one."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.losses.loss import CrossEntropy, Entmax15Loss
from headwise.ops.cpp import call
from headwise.precision import unique_indices
from headwise.train.distributed import choose_device

SORTED_IF_DETERMINISTIC = ("scatter", "index_put")  # on a GPU


@pytest.fixture(autouse=True)
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


def test_cudnn_attention_is_disabled_on_gpus(monkeypatch):
    torch.backends.cuda.enable_cudnn_sdp(True)
    assert choose_device("cpu").type == "cpu"
    assert torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert choose_device("auto", 1) == torch.device("cuda", 1)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("loss", ["cross_entropy", "entmax"])
def test_losses_scatter_without_sorting(monkeypatch, loss):
    monkeypatch.setattr(call, "supports", lambda scores: False)
    logits_NV = torch.randn(20, 5000)
    losses = {"cross_entropy": CrossEntropy(0.1), "entmax": Entmax15Loss()}
    target_N = torch.arange(4, 24)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with ScatterRecorder() as recorder:
        losses[loss].row_sums(logits_NV, target_N, True)
    assert "scatter_add_" in recorder.flags
    assert not any(recorder.flags.values())
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("warn_only", [True, False])
def test_unique_indices_restores_the_deterministic_setting(warn_only):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    with unique_indices():
        assert not torch.are_deterministic_algorithms_enabled()
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only

"""Models and maps exported by torch.export, torch.jit.trace and torch.onnx, at other lengths."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise.hf
from headwise import entmax
from headwise.nn import MultiheadAttention
from headwise.nn.functional import attention
from headwise.ops.family import Power
from headwise.ops.maps import export, operator
from transformers_models import make

ALPHAS = torch.tensor([1.0, 1.001, 1.02, 1.3, 1.5, 2.0])
SPARSE = ("alpha_entmax", "entmax15", "sparsemax")
LENGTHS = {1: torch.export.Dim("length", min=2, max=200)}
AXES = {"inputs": LENGTHS, "visible": LENGTHS}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit.trace


class Exported(nn.Module):
    def __init__(self, function: Callable[..., Tensor], part: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.part = function, part
        for name, bias in self.named_parameters():
            if name.endswith("alpha.bias"):
                bias.data = (ALPHAS[-len(bias) :] - 1) / 10
        self.eval()

    def forward(self, inputs: Tensor, visible: Tensor) -> Tensor:
        return self.function(inputs, visible, self.part)


def batch_of(length: int, share: float, is_text: bool) -> tuple[Tensor, Tensor]:
    states = 2 * torch.randn(2, length, 24, generator=torch.Generator().manual_seed(length))
    visible = torch.arange(length) < torch.tensor([[length], [length * share]])
    return states[..., 0].abs().mul(40).long().clamp(3, 96) if is_text else states, visible


def check(exported: Callable[..., Tensor], module: nn.Module, is_text: bool = False) -> None:
    for length, share in ((5, 1), (128, 0.7), (200, 1), (200, 0.7)):
        batch = batch_of(length, share, is_text)
        torch.testing.assert_close(exported(*batch), module(*batch), rtol=0, atol=1e-5)


def attend(x: Tensor, visible: Tensor, part: MultiheadAttention) -> Any:
    return part(x, x, x, ~visible, need_weights=False)[0]


def bert(name: str) -> Exported:
    model = headwise.hf.sparsify(make("bert"), name)
    return Exported(lambda ids, visible, part: part(ids, visible.long()).logits, model)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "attention": lambda x, mask, _: attention(x, x, x, alpha=1.3, attn_mask=mask[:, None]),
    "alpha": lambda x, mask, _: entmax.alpha_entmax(x, ALPHAS.repeat(4), 1),
    "bisect": lambda x, mask, _: entmax.entmax_bisect(x, 3 - ALPHAS.repeat(4), 1),
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", SPARSE[:2])
def test_attention_exports_for_any_length(name: str, tmp_path: Path) -> None:
    module = Exported(attend, MultiheadAttention(24, 6, attention=name, batch_first=True))
    batch = batch_of(24, 0.7, False)
    program = torch.export.export(module, batch, dynamic_shapes=AXES)
    assert not [node for node in program.graph.nodes if "headwise" in str(node.target)]
    check(program.module(), module)
    torch.jit.trace(module, batch, check_trace=False).save(tmp_path / "traced.pt")
    check(torch.jit.load(tmp_path / "traced.pt"), module)


@pytest.mark.parametrize("power", Power)
def test_exported_form_has_the_weights_and_gradients_of_scores(power: Power) -> None:
    alpha = ALPHAS.double()[None, :, None, None] if power is Power.ANY else None
    scores = (4 * torch.randn(3, 6, 5, 40, dtype=torch.float64)).requires_grad_()
    mask = torch.rand(3, 1, 5, 40) < 0.7
    mask[0, :, 2] = False  # no key
    results = []
    for weights in (export.weights, operator.weights):
        p = weights(scores, alpha, mask, power)
        results.append((p, *torch.autograd.grad((p * torch.arange(40)).sum(), scores)))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-9)
    assert torch.equal(results[0][0] > 0, results[1][0] > 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SPARSE, *FUNCTIONS])
def test_onnx_equals_eager(name: str, tmp_path: Path) -> None:
    runtime, is_text = pytest.importorskip("onnxruntime"), name in SPARSE
    module = bert(name) if is_text else Exported(FUNCTIONS[name])
    batch, path = batch_of(24, 0.7, is_text), tmp_path / "model.onnx"
    torch.onnx.export(module, batch, path, dynamic_shapes=AXES)
    session = runtime.InferenceSession(path)
    names = [node.name for node in session.get_inputs()]  # without a mask that is not used

    def run(*batch: Tensor) -> Tensor:
        inputs = dict(zip(names, (x.numpy() for x in batch), strict=False))
        return torch.from_numpy(session.run(None, inputs)[0])

    check(run, module, is_text)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_traced_model_runs_without_headwise(tmp_path: Path) -> None:
    module, batch = bert("alpha_entmax"), batch_of(200, 0.7, True)
    torch.jit.trace(module, batch_of(24, 0.7, True), check_trace=False).save(tmp_path / "model.pt")
    torch.save((batch, module(*batch)), tmp_path / "batch.pt")
    code = """if True:
        import sys, torch
        batch, logits = torch.load("batch.pt")
        torch.testing.assert_close(torch.jit.load("model.pt")(*batch), logits, rtol=0, atol=1e-5)
        assert "headwise" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)

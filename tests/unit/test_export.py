"""Models and maps exported by torch.export, torch.jit.trace and torch.onnx, at other lengths."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise import entmax
from headwise.nn import HeadAlpha, MultiheadAttention
from headwise.nn.functional import MAPS, attention
from headwise.ops.family import Power
from headwise.ops.maps import export, operator

ALPHAS = torch.tensor([1.0, 1.001, 1.02, 1.3, 1.5, 2.0])
LENGTHS = (5, 128, 200)
ignored = ("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
pytestmark = pytest.mark.filterwarnings(*ignored)
Batch = tuple[Tensor, Tensor]
param = partial(pytest.param, marks=pytest.mark.slow)


class Exported(nn.Module):
    def __init__(self, function: Callable[..., Tensor], part: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.part = function, part

    def forward(self, inputs: Tensor, visible: Tensor) -> Tensor:
        return self.function(inputs, visible, self.part)

    def axes(self) -> dict[str, Any]:
        axes = {1: torch.export.Dim("length", min=2, max=200)}
        return {"inputs": axes, "visible": axes}


def batch_of(length: int, is_padded: bool = True, is_text: bool = False) -> Batch:
    states = 2 * torch.randn(2, length, 24, generator=torch.Generator().manual_seed(length))
    lengths = torch.tensor([[length], [length * 2 // 3 if is_padded else length]])
    inputs = states[..., 0].abs().mul(40).long().clamp(3, 96) if is_text else states
    return inputs, torch.arange(length) < lengths


def check(exported: Callable[..., Tensor], module: nn.Module, is_text: bool = False) -> None:
    for length, is_padded in product(LENGTHS, (True, False)):
        batch = batch_of(length, is_padded, is_text)
        torch.testing.assert_close(exported(*batch), module(*batch), rtol=0, atol=1e-5)


def set_alphas(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, HeadAlpha):
            module.bias.data = (ALPHAS[-module.n_heads :] - 1) / module.lr_factor


def attend(states: Tensor, visible: Tensor, part: MultiheadAttention) -> Tensor:
    output: Tensor = part(states, states, states, ~visible, need_weights=False)[0]
    return output


def layer(name: str) -> Exported:
    torch.manual_seed(0)
    module = MultiheadAttention(24, 6, attention=name, batch_first=True)
    nn.init.normal_(module.in_proj_weight, std=0.2)
    set_alphas(module)
    return Exported(attend, module).eval()


def bert(name: str) -> Exported:
    import headwise.hf
    from transformers_models import make

    model = headwise.hf.sparsify(make("bert"), name)
    set_alphas(model)
    return Exported(lambda ids, visible, part: part(ids, visible.long()).logits, model).eval()


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "attention": lambda x, mask, _: attention(x, x, x, alpha=1.3, attn_mask=mask[:, None]),
    "sparsemax": lambda x, mask, _: entmax.sparsemax(x, 1, mask=mask[..., None]),
    "entmax15": lambda x, mask, _: entmax.entmax15(x, 1, mask=mask[..., None]),
    "alpha_entmax": lambda x, mask, _: entmax.alpha_entmax(x.mT, ALPHAS.repeat(4)[:, None]),
    "bisect": lambda x, mask, _: entmax.entmax_bisect(x.mT, ALPHAS.repeat(4)[:, None] * 1.2 - 0.3),
    "normmax": lambda x, mask, _: entmax.normmax_bisect(x.mT, mask=mask[:, None]),
    "budget": lambda x, mask, _: entmax.budget_bisect(x.mT, mask=mask[:, None]),
}


@pytest.mark.parametrize("name", ["alpha_entmax", "entmax15", param("sparsemax"), param("softmax")])
def test_attention_exports_for_any_length(name: str, tmp_path: Path) -> None:
    module, batch = layer(name), batch_of(24)
    program = torch.export.export(module, batch, dynamic_shapes=module.axes())
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
@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("name", [*MAPS, *FUNCTIONS])
def test_onnx_equals_eager(name: str, dynamo: bool, tmp_path: Path) -> None:
    onnxruntime, path = pytest.importorskip("onnxruntime"), tmp_path / "model.onnx"
    is_text = name in MAPS
    module = bert(name) if is_text else Exported(FUNCTIONS[name])
    names = ["inputs", "visible"]
    axes = {name: {1: "length"} for name in names}
    options = {"dynamic_shapes": module.axes()} if dynamo else {"dynamic_axes": axes}
    batch = batch_of(24, is_text=is_text)
    torch.onnx.export(module, batch, path, dynamo=dynamo, input_names=names, **options)
    session = onnxruntime.InferenceSession(path)

    def run(*batch: Tensor) -> Tensor:
        given = {node.name for node in session.get_inputs()}
        pairs = zip(names, batch, strict=True)
        inputs = {name: x.numpy() for name, x in pairs if name in given}
        return torch.from_numpy(session.run(None, inputs)[0])

    check(run, module, is_text)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS)
def test_saved_models_run_without_headwise(name: str, tmp_path: Path) -> None:
    module, batch = bert(name), batch_of(24, is_text=True)
    program = torch.export.export(module, batch, dynamic_shapes=module.axes())
    torch.export.save(program, tmp_path / "model.pt2")
    torch.jit.trace(module, batch, check_trace=False).save(tmp_path / "model.pt")
    torch.save(batch_of(200, is_text=True), tmp_path / "batch.pt")
    code = (
        "import sys, torch; batch = torch.load('batch.pt')\n"
        "models = torch.jit.load('model.pt'), torch.export.load('model.pt2').module()\n"
        "torch.save([model(*batch) for model in models], 'logits.pt')\n"
        "assert 'headwise' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    logits = module(*batch_of(200, is_text=True))
    for result in torch.load(tmp_path / "logits.pt"):
        torch.testing.assert_close(result, logits, rtol=0, atol=1e-5)

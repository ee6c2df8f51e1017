"""Layers with the same input, joined in one matmul; of different widths as after pruning."""

import pytest
import torch
from torch import nn

from headwise.ops import linear as module
from headwise.ops.linear import Linear, linear_of_each


@pytest.fixture(autouse=True)
def any_processor(monkeypatch):
    monkeypatch.setattr(module, "TRAINING_DTYPES", (torch.bfloat16,))


@pytest.fixture
def layers():
    torch.manual_seed(1)
    return [Linear(40, d_out) for d_out in (24, 24, 16)]


@pytest.fixture
def n_calls(monkeypatch):
    counted = []

    def recorded(*tensors):
        counted.append(None)
        return linear(*tensors)

    linear = module.linear
    monkeypatch.setattr(module, "linear", recorded)
    return lambda: (len(counted), counted.clear())[0]


@pytest.mark.parametrize("frozen", [None, "0.weight", "1.bias", "values"])
def test_joined_under_autocast(layers, n_calls, frozen):
    leaves = dict(nn.ModuleList(layers).named_parameters())
    leaves["values"] = torch.randn(2, 7, 40, requires_grad=True)
    if frozen is not None:
        leaves[frozen].requires_grad_(False)
    forms = {1: linear_of_each, 3: lambda values, *layers: [layer(values) for layer in layers]}
    results = []
    for n, form in forms.items():
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(2):  # a layer may be used twice
                outputs = form(leaves["values"], *layers)
                assert n_calls() == n
                sum(out.float().square().sum() for out in outputs).backward()
        assert [out.shape for out in outputs] == [(2, 7, 24), (2, 7, 24), (2, 7, 16)]
        assert {name for name, leaf in leaves.items() if leaf.grad is None} <= {frozen}
        results.append([*outputs, *(leaf.grad for leaf in leaves.values())])
        for leaf in leaves.values():
            leaf.grad = None
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=2**-6, atol=2**-4)


@pytest.mark.parametrize(
    "change",
    ["float32", "float16", "no_grad", "hook", "subclass", "float64", "no bias", "device"],
)
def test_otherwise_each_layer_is_called(layers, n_calls, change):
    inputs = []
    if change == "hook":
        layers[1].register_forward_pre_hook(lambda _, given: inputs.extend(given))
    if change == "subclass":
        layers[1] = type("Adapted", (Linear,), {})(40, 24)
    if change == "no bias":
        layers[1] = Linear(40, 24, bias=False)
    dtype = torch.float64 if change == "float64" else torch.float32
    device = "meta" if change == "device" else "cpu"
    layers = [layer.to(device, dtype) for layer in layers]
    values = torch.randn(6, 40, dtype=dtype, device=device)
    low_dtype = torch.float16 if change == "float16" else torch.bfloat16
    low = torch.autocast("cpu", low_dtype, enabled=change != "float32")
    with torch.set_grad_enabled(change != "no_grad"), low:
        outputs = linear_of_each(values, *layers)
        assert n_calls() == 3
        assert len(inputs) == (change == "hook")
        for output, layer in zip(outputs, layers, strict=True):
            assert change == "device" or torch.equal(output, layer(values))

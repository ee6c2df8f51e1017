"""Models and maps exported by torch.export, torch.jit.trace and torch.onnx, at other lengths."""

import pytest
import torch
from torch import nn

import headwise.hf
from headwise import entmax
from headwise.nn import MultiheadAttention
from headwise.nn.functional import attention
from headwise.ops.family import Power
from headwise.ops.maps import export, operator
from transformers_models import make

ALPHAS = torch.tensor([1.0, 1.001, 1.02, 1.3, 1.5, 2.0])
LENGTHS = {1: torch.export.Dim("length", min=2, max=200)}
FUNCTIONS = {
    "attention": lambda x, mask, _: attention(x, x, x, alpha=1.3, attn_mask=mask[:, None]),
    "alpha": lambda x, mask, _: entmax.alpha_entmax(x, ALPHAS.repeat(4), 1),
    "bisect": lambda x, mask, _: entmax.entmax_bisect(x, 3 - ALPHAS.repeat(4), 1),
    "layer": lambda x, mask, layer: layer(x, x, x, ~mask, need_weights=False)[0],
    "bert": lambda ids, mask, bert: bert(ids, mask.long()).logits,
}


class Exported(nn.Module):
    def __init__(self, name, part=None):
        super().__init__()
        self.name, self.part = name, part
        for parameter, bias in self.named_parameters():
            if parameter.endswith("alpha.bias"):
                bias.data = (ALPHAS[-len(bias) :] - 1) / 10
        self.eval()

    def forward(self, inputs, visible):
        return FUNCTIONS[self.name](inputs, visible, self.part)

    def batch(self, length, share):
        inputs = 2 * torch.randn(2, length, 24, generator=torch.Generator().manual_seed(length))
        if self.name == "bert":
            inputs = inputs[..., 0].abs().mul(40).long().clamp(3, 96)
        return inputs, torch.arange(length) < torch.tensor([[length], [length * share]])


@pytest.mark.parametrize("power", Power)
def test_exported_form_has_the_weights_and_gradients_of_scores(power):
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
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("case", [*FUNCTIONS, "bert entmax15", "bert sparsemax"])
def test_exported_equals_eager_at_other_lengths(case, tmp_path):
    pytest.importorskip("onnxruntime")
    name, _, attention = case.partition(" ")
    parts = {
        "bert": lambda: headwise.hf.sparsify(make("bert"), attention or "alpha_entmax"),
        "layer": lambda: MultiheadAttention(24, 6, batch_first=True),
    }
    module = Exported(name, parts[name]() if name in parts else None)
    batch, axes = module.batch(24, 0.7), {"inputs": LENGTHS, "visible": LENGTHS}
    program = torch.onnx.export(module, batch, dynamic_shapes=axes)
    torch.jit.trace(module, batch, check_trace=False).save(tmp_path / "traced.pt")
    traced, exported = torch.jit.load(tmp_path / "traced.pt"), program.exported_program
    assert "headwise::" not in f"{traced.inlined_graph}{exported.graph}"  # they run without it

    for length, share in ((5, 1), (128, 0.7), (200, 1), (200, 0.7)):
        batch = module.batch(length, share)
        for output in (program(*batch)[0], traced(*batch), exported.module()(*batch)):
            torch.testing.assert_close(output, module(*batch), rtol=0, atol=1e-5)

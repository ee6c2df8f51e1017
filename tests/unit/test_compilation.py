"""Functions outside compiled graphs and constants in them; exported models at other lengths."""

import sys

import pytest
import torch
from torch import Tensor, nn

import headwise.hf
from headwise import entmax
from headwise.attention.attention import ScoreAttention
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.positions import Sinusoids
from headwise.attention.softmax import Softmax
from headwise.attention.strided import Strided
from headwise.compilation import constant_in_graphs, outside_graphs
from headwise.nn import MultiheadAttention
from headwise.nn.functional import attention
from headwise.ops.attention.pattern_rule import per_head
from transformers_models import make as make_transformer

pytestmark = pytest.mark.usefixtures("fresh_graphs")


def test_functions_outside_graphs_run_in_python():
    def add_one_or_two(values):
        return values * 0 + (1 if torch.compiler.is_compiling() else 2)

    def outer(inside):
        return outside_graphs(add_one_or_two)(inside * 3) + (
            10 if torch.compiler.is_compiling() else 20
        )

    values = torch.ones(2)
    assert outside_graphs(add_one_or_two)(values).tolist() == [2, 2]
    compiled = torch.compile(outer, backend="eager")
    for _ in range(2):
        assert compiled(values).tolist() == [12, 12]


def test_constants_in_graphs_are_evaluated_once():
    calls = []

    @constant_in_graphs
    def constant():
        calls.append(sys._getframe())  # not possible in a graph
        return True

    def choose(values):
        return values + 1 if constant() else values

    compiled = torch.compile(choose, backend="eager", fullgraph=True)
    for _ in range(3):
        assert compiled(torch.zeros(2)).tolist() == [1, 1]
    assert len(calls) == 1


def test_masks_of_heads_are_constants_of_the_graph():
    """Otherwise every step would copy the mask to the device and wait for the copy."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def combined_mask(scores_BHQK):
        of_heads = (
            per_head(heads, torch.bool, scores_BHQK.device)[:, None, None]
            for heads in ((True, False, True), (False, False, True))
        )
        return (scores_BHQK > 0) & next(of_heads) | (scores_BHQK < -1) & next(of_heads)

    scores = torch.randn(2, 3, 4, 4)
    assert torch.equal(
        torch.compile(combined_mask, backend=backend, fullgraph=True)(scores), combined_mask(scores)
    )
    (graph,) = graphs
    assert sum(node.op == "get_attr" for node in graph.graph.nodes) == 2
    assert torch.tensor not in [node.target for node in graph.graph.nodes]


class Layer(nn.Module):
    """Attention of a pattern that differs by head, to more positions than the table has."""

    def __init__(self, mask):
        super().__init__()
        torch.manual_seed(1)
        place = Place("decoder_self", 1, 4, 16)
        pattern = Strided(place, stride=4, combine="heads")
        self.attention = ScoreAttention(place, Softmax(place), pattern, 0.0)
        self.mask, self.positions = mask, Sinusoids(64, n_positions=8)

    def forward(self, states):
        states = states + self.positions(0, states.shape[1])
        return self.attention(states, states, states, self.mask)


@pytest.mark.parametrize(
    "trace",
    [
        lambda layer, states: torch.export.export(layer, (states,)),
        lambda layer, states: torch.func.grad(lambda x: layer(x).sum())(states),
    ],
)
def test_tensors_of_traces_are_not_kept(trace):
    states, mask = torch.randn(2, 20, 64), Mask(None, True)
    trace(layer := Layer(mask), states)
    results = [other(states) for other in (layer, Layer(mask), Layer(Mask(None, True)))]
    for tensor in (*results, layer.positions.signal):
        assert type(tensor) is Tensor
        assert not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    assert all(torch.equal(result, results[2]) for result in results)


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("case", [*FUNCTIONS, "bert entmax15", "bert sparsemax"])
def test_exported_equals_eager_at_other_lengths(case, tmp_path):
    pytest.importorskip("onnxruntime")
    name, _, attention = case.partition(" ")
    parts = {
        "bert": lambda: headwise.hf.sparsify(make_transformer("bert"), attention or "alpha_entmax"),
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

"""Functions outside compiled graphs and constants in them, with and without compiling."""

import sys

import pytest
import torch
from torch import Tensor, nn

from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.positions import Sinusoids
from headwise.attention.scores import ScoreAttention
from headwise.attention.softmax import Softmax
from headwise.attention.strided import Strided
from headwise.compilation import constant_in_graphs, outside_graphs
from headwise.ops.attention import pattern_rule
from headwise.ops.attention.pattern_rule import per_head


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


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
    pattern_rule._on_device.cache_clear()
    states, mask = torch.randn(2, 20, 64), Mask(None, True)
    trace(layer := Layer(mask), states)
    results = [other(states) for other in (layer, Layer(mask), Layer(Mask(None, True)))]
    for tensor in (*results, layer.positions.signal):
        assert type(tensor) is Tensor
        assert not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    assert all(torch.equal(result, results[2]) for result in results)

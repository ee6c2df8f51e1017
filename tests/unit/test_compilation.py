"""What torch.compile leaves alone, without a price for who does not compile."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from headwise.attention.sparse_pattern import of_heads
from headwise.compilation import constant_in_graphs, outside_graphs


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_what_stays_outside_of_graphs_is_run_by_python() -> None:
    def told(values: Tensor) -> Tensor:
        return values * 0 + (1 if torch.compiler.is_compiling() else 2)

    def around(inside: Tensor) -> Tensor:
        return outside_graphs(told)(inside * 3) + (10 if torch.compiler.is_compiling() else 20)

    values = torch.ones(2)
    assert outside_graphs(told)(values).tolist() == [2, 2]
    compiled = torch.compile(around, backend="eager")
    for _ in range(2):
        assert compiled(values).tolist() == [12, 12]


def test_what_is_constant_in_graphs_is_so_to_torch() -> None:
    calls = []

    @constant_in_graphs
    def asked() -> bool:
        calls.append(sys._getframe())  # what no graph can hold
        return True

    def choose(values: Tensor) -> Tensor:
        return values + 1 if asked() else values

    compiled = torch.compile(choose, backend="eager", fullgraph=True)
    for _ in range(3):
        assert compiled(torch.zeros(2)).tolist() == [1, 1]
    assert len(calls) == 1


def test_what_differs_by_head_is_a_constant_of_the_graph() -> None:
    """Made within it, it would be copied to the device at every step, which waits for the copy."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def seen(scores_BHQK: Tensor) -> Tensor:
        first = of_heads(scores_BHQK > 0, (True, False, True))
        return first | of_heads(scores_BHQK < -1, (False, False, True))

    scores = torch.randn(2, 3, 4, 4)
    assert torch.equal(torch.compile(seen, backend=keep, fullgraph=True)(scores), seen(scores))
    (graph,) = graphs
    assert sum(node.op == "get_attr" for node in graph.graph.nodes) == 2
    assert torch.tensor not in [node.target for node in graph.graph.nodes]

"""Layer norm in bfloat16, whose backward pass adds the gradient of the residual stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize

from headwise.ops import linear
from headwise.ops.norm.operator import branch
from kernel_marks import needs_kernels

pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "TRAINING_DTYPES", (torch.bfloat16,))


def layer_norm(width: int) -> nn.LayerNorm:
    torch.manual_seed(1)
    layer = nn.LayerNorm(width, eps=1e-6)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


def results(states: Tensor, layer: nn.LayerNorm, stream_grad: Tensor, grad: Tensor) -> list[Tensor]:
    """Return the layer norm, and the gradients of states, weight and bias."""
    leaves = [states.detach().requires_grad_(), *layer.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        stream, normed = branch(leaves[0], layer)
    grads = stream_grad.to(stream.dtype), grad.to(normed.dtype)
    return [normed.detach(), *torch.autograd.grad((stream * 1, normed), leaves, grads)]


@pytest.mark.parametrize("shape", [(1, 1), (3, 7, 45), (1, 64), (2, 97, 33)])
def test_equals_float64(shape: tuple[int, ...], set_threads: Callable[[int], None]) -> None:
    layer = layer_norm(shape[-1])
    states, stream_grad = 3 * torch.randn(shape) + 100, torch.randn(shape)
    states[..., 0, 0] = 3000.0  # an outlier
    grad = torch.randn(shape[::-1]).bfloat16().permute(*range(len(shape))[::-1])  # not contiguous
    by_threads = []
    for n_threads in (1, 2):
        set_threads(n_threads)
        by_threads.append(results(states, layer, stream_grad, grad))
    assert all(map(torch.equal, *by_threads))
    normed, *grads = by_threads[0]
    exact, *exact_grads = results(states.double(), layer.double(), stream_grad, grad)
    assert (normed.dtype, exact.dtype) == (torch.bfloat16, torch.float64)
    assert (normed != exact.bfloat16()).float().mean() < 0.005  # rounded once
    torch.testing.assert_close(normed.double(), exact, rtol=2**-8, atol=1e-4)
    torch.testing.assert_close([g.double() for g in grads], exact_grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("missing", ["states", "weight", "stream", "norm"])
def test_without_some_gradients(missing: str) -> None:
    layer, states = layer_norm(20), torch.randn(5, 20, requires_grad=missing != "states")
    layer.weight.requires_grad_(missing != "weight")
    leaves = [leaf for leaf in (states, *layer.parameters()) if leaf.requires_grad]
    with torch.autocast("cpu", torch.bfloat16):
        branches = branch(states, layer), (states, layer(states))
    pairs = []
    for stream, normed in branches:
        parts = {"stream": stream.sum(), "norm": normed.float().square().sum()}
        total = sum(part for name, part in parts.items() if name != missing)
        pairs.append(torch.autograd.grad(total, leaves, materialize_grads=True))
    torch.testing.assert_close(*pairs, rtol=2**-6, atol=2**-4)


CHANGES: dict[str, Callable[[nn.LayerNorm], object]] = {
    "float32": lambda layer: layer,
    "no grad": lambda layer: layer,
    "hook": lambda layer: layer.register_forward_hook(lambda *_: None),
    "parametrised": lambda layer: parametrize.register_parametrization(
        layer, "weight", nn.Identity()
    ),
    "subclass": lambda _: type("Adapted", (nn.LayerNorm,), {})(20),
    "no bias": lambda _: nn.LayerNorm(20, bias=False),
    "no weights": lambda _: nn.LayerNorm(20, elementwise_affine=False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_otherwise_torch_computes(change: str) -> None:
    layer, states = layer_norm(20), torch.randn(5, 20)
    changed = CHANGES[change](layer)
    layer = changed if isinstance(changed, nn.LayerNorm) else layer
    half = torch.autocast("cpu", torch.bfloat16, enabled=change != "float32")
    with half, torch.set_grad_enabled(change != "no grad"):
        stream, normed = branch(states, layer)
    assert stream is states
    assert torch.equal(normed, layer(states))


@pytest.mark.parametrize("mode", ["fake", "func"])
def test_kernel_reads_no_tensors_without_memory(mode: str) -> None:
    def summed(states: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return branch(states, layer)[1].sum()

    layer, states = layer_norm(20), torch.randn(5, 20)
    if mode == "fake":
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            assert summed(fake.from_tensor(states)).shape == ()
    else:
        gradient = torch.func.grad(summed)(states)
        leaf = states.requires_grad_()
        torch.testing.assert_close(gradient, torch.autograd.grad(layer(leaf).sum(), leaf)[0])


def test_another_width_is_an_error() -> None:
    half = torch.autocast("cpu", torch.bfloat16)
    with half, pytest.raises(RuntimeError, match="normalized_shape"):
        branch(torch.randn(5, 21), layer_norm(20))

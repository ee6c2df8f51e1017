"""Linear maps give the results of torch with every implementation of the product."""

import os
import subprocess
import sys
from contextlib import suppress
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from headwise.ops import dispatch
from headwise.ops import linear as module
from headwise.ops.linear import (
    FewRows,
    Linear,
    linear_of_each,
    matmul,
    matmul_out,
    packed_weights,
    weight_gradient,
)
from kernel_marks import needs_kernels
from triton_marks import choose_implementation

BFLOAT16 = """
import torch
from headwise.ops import linear
linear.MIN_MULTIPLICATIONS = 0
with torch.autocast("cpu", torch.bfloat16):
    linear.Linear(40, 24)(torch.randn(6, 40)).sum().backward()
print(linear.DTYPES)
"""


def make_pair(d_in=40, d_out=24, bias=True):
    torch.manual_seed(1)
    linear, torch_linear = Linear(d_in, d_out, bias), nn.Linear(d_in, d_out, bias)
    torch_linear.load_state_dict(linear.state_dict())
    return linear, torch_linear


def results(layer, values, dtype=torch.float32, autocast=False):
    """Output, and gradients of values, weight and bias."""
    layer = layer.to(dtype)
    values = values.detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = layer(values)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    inputs = [values, *layer.parameters()]
    return [output.detach(), *torch.autograd.grad(output, inputs, grad.to(output.dtype))]


@pytest.fixture(autouse=True)
def every_product(monkeypatch):
    """On any processor: that oneDNN is slower for some products changes no result."""
    monkeypatch.setattr(module, "MIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr(module, "TRAINING_DTYPES", (torch.bfloat16,))


@pytest.fixture
def calls(monkeypatch):
    """Record the dtypes of the matrices multiplied by `matmul`."""
    dtypes = []

    def recorded(left, right, bias=None):
        dtypes.append(left.dtype)
        return matmul(left, right, bias)

    monkeypatch.setattr(module, "matmul", recorded)
    return dtypes


needs_onednn = pytest.mark.skipif(
    torch.bfloat16 not in module.DTYPES, reason="no oneDNN for both dtypes here"
)
layouts = pytest.mark.parametrize(
    "values",
    [
        torch.randn(3, 7, 40),
        torch.randn(40),
        torch.randn(40, 9).t(),
        torch.randn(5, 4, 2, 10).transpose(1, 2).reshape(5, 2, 40),
        torch.randn(1, 40).expand(6, 40),
        torch.randn(6, 80)[:, 40:],
        torch.randn(7, 3, 40).transpose(0, 1),
        torch.randn(0, 40),
        torch.randn(160, 40),
    ],
    ids=["rows", "vector", "transposed", "joined", "expanded", "part", "swapped", "none", "many"],
)


class TestAgainstTorch:
    @layouts
    @pytest.mark.parametrize("bias", [True, False])
    def test_float32(self, values, bias):
        linear, torch_linear = make_pair(bias=bias)
        exact = results(torch_linear, values, torch.float64)
        for result, expected in zip(results(linear, values), exact, strict=True):
            torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)

    @layouts
    def test_bfloat16_of_autocast_rounds_as_torch_does(self, values):
        actual, expected = (results(layer, values, autocast=True) for layer in make_pair())
        assert [result.dtype for result in actual] == [torch.bfloat16, *[torch.float32] * 3]
        for result, reference in zip(actual, expected, strict=True):
            torch.testing.assert_close(result, reference, rtol=2**-7, atol=2**-7)

    def test_expanded_output_gradient(self):
        values = torch.randn(6, 40)
        grads = [torch.autograd.grad(x(values).sum(), list(x.parameters())) for x in make_pair()]
        torch.testing.assert_close(*grads)

    def test_under_func_transforms(self):
        values, grads = torch.randn(5, 6, 40), []
        for layer in make_pair():
            grad = torch.func.grad(lambda rows, layer=layer: layer(rows).square().sum())
            grads.append(torch.func.vmap(grad)(values))
        torch.testing.assert_close(*grads)

    @pytest.mark.parametrize("frozen", ["weight", "bias"])
    def test_frozen_parameters_get_no_gradient(self, frozen):
        linear, _ = make_pair()
        getattr(linear, frozen).requires_grad_(False)
        linear(torch.randn(6, 40)).square().sum().backward()
        assert {name for name, p in linear.named_parameters() if p.grad is None} == {frozen}

    def test_output_may_be_changed_in_place(self):
        linear, torch_linear = make_pair()
        values = torch.randn(2, 3, 40)
        for layer in (linear, torch_linear):
            output = layer(values)
            output.mul_(0.5)[..., 0] = 0
            output.square().sum().backward()
        torch.testing.assert_close(linear.weight.grad, torch_linear.weight.grad)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_product_is_written_in_place(dtype, bound):
    left, right = torch.randn(9, 40).to(dtype), torch.randn(24, 40).to(dtype)
    written = torch.full((9, 24), torch.nan, dtype=dtype)
    matmul_out(written, left, right)
    exact, rtol = left.double() @ right.double().t(), 1e-5 if dtype is torch.float32 else 0
    torch.testing.assert_close(written.double(), exact, rtol=rtol, atol=bound)


# rows, inputs, outputs: wide, narrow, square, wide with too few rows to transpose, no rows
SIZES = [(50, 8, 30), (50, 30, 8), (50, 8, 8), (7, 8, 30), (0, 8, 30)]


class TestWeightGradient:
    @pytest.mark.parametrize(("n_rows", "d_in", "d_out"), SIZES)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    def test_all_sizes(self, n_rows, d_in, d_out, dtype):
        grad, values = torch.randn(n_rows, d_out).to(dtype), torch.randn(n_rows, d_in).to(dtype)
        gradient = weight_gradient(grad, values)
        assert gradient.dtype is dtype
        exact = grad.double().t() @ values.double()
        bound = 2**-7 if dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(gradient.double(), exact, rtol=bound, atol=bound)

    def test_gradient_of_a_layer_is_contiguous(self):
        linear, _ = make_pair(8, 30)
        assert results(linear, torch.randn(50, 8))[2].is_contiguous()


@needs_onednn
class TestPacked:
    """Weights packed once for a search."""

    @layouts
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("is_low", [False, True])
    def test_results_are_those_of_torch(self, values, bias, is_low, calls):
        linear, torch_linear = make_pair(bias=bias)
        low = torch.autocast("cpu", torch.bfloat16, enabled=is_low)
        with torch.no_grad(), low, packed_weights(linear):
            result, expected = linear(values), torch_linear(values)
        assert not calls
        assert result.dtype is (torch.bfloat16 if is_low else torch.float32)
        bound = 2**-7 if is_low else 1e-5
        torch.testing.assert_close(result, expected, rtol=bound, atol=bound)

    def test_packed_weights_are_released_on_exit(self, calls):
        linear, _ = make_pair()
        for _ in range(2):
            with pytest.raises(KeyError), packed_weights(linear), packed_weights(linear):
                raise KeyError
        with torch.no_grad():
            linear(torch.randn(6, 40))
        assert calls == [torch.float32]
        assert set(linear.state_dict()) == {"weight", "bias"}

    @pytest.mark.parametrize("change", ["weight", "bias", "Adam", "AdamW", "SGD", "Adagrad"])
    @pytest.mark.parametrize("is_low", [False, True])
    def test_changed_parameters_are_used(self, change, is_low):
        linear, torch_linear = make_pair()
        values = torch.randn(6, 40)
        low = torch.autocast("cpu", torch.bfloat16, enabled=is_low)
        with torch.no_grad(), low, packed_weights(linear):
            for layer in (linear, torch_linear):
                if change in ("weight", "bias"):
                    getattr(layer, change).mul_(2)
                else:  # a fused step raises no version
                    layer.weight.grad = torch.ones_like(layer.weight)
                    getattr(torch.optim, change)(layer.parameters(), lr=0.1, fused=True).step()
            torch.testing.assert_close(linear(values), torch_linear(values))

    def test_contexts_overlap(self):
        linear, torch_linear = make_pair()
        values = torch.randn(6, 40)
        first, second = packed_weights(linear), packed_weights(linear)
        with suppress(KeyError), torch.no_grad(), first:
            with torch.autocast("cpu", torch.bfloat16):
                second.__enter__()
            torch.testing.assert_close(linear(values), torch_linear(values))
        torch.testing.assert_close(linear(values), torch_linear(values))
        second.__exit__(None, None, None)

    def test_gradients_and_other_types_do_not_use_packed_weights(self):
        linear, torch_linear = make_pair()
        values = torch.randn(6, 40)
        with packed_weights(linear):
            linear(values).square().sum().backward()
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                assert linear(values).dtype is torch.bfloat16
        torch_linear(values).square().sum().backward()
        torch.testing.assert_close(linear.weight.grad, torch_linear.weight.grad)

    def test_float64_and_empty_layers_are_not_packed(self):
        linear, torch_linear = make_pair()
        linear, torch_linear = linear.double(), torch_linear.double()
        values = torch.randn(6, 40, dtype=torch.float64)
        with packed_weights(linear), torch.no_grad():
            assert torch.equal(linear(values), torch_linear(values))
        for d_in, d_out in ((0, 5), (5, 0)):
            empty = Linear(d_in, d_out)
            with packed_weights(empty), torch.no_grad():
                assert empty(torch.ones(3, d_in)).shape == (3, d_out)


@needs_onednn
class TestChoice:
    def test_no_bfloat16_where_onednn_has_none(self):
        """A processor with AVX2 only."""
        environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
        command = [sys.executable, "-c", BFLOAT16]
        printed = subprocess.check_output(command, env=environment, text=True)
        assert printed == "(torch.float32,)\n"

    def test_disabled_onednn_is_not_used(self, calls):
        linear, _ = make_pair()
        with torch.backends.mkldnn.flags(enabled=False):
            linear(torch.randn(6, 40))
        assert not calls

    def test_autocast_without_gradients_uses_torch(self, calls):
        linear, _ = make_pair()
        with torch.autocast("cpu", torch.bfloat16):
            linear(torch.randn(6, 40))
            assert calls == [torch.bfloat16]
            with torch.no_grad():
                linear(torch.randn(6, 40))
        assert calls == [torch.bfloat16]


@needs_kernels
class TestFewRows:
    """Few rows by the C++ kernel, with weights as torch stores them."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize(("d_in", "d_out"), [(48, 32), (37, 23), (3, 1), (133, 70)])
    def test_equals_torch_for_all_sizes(self, d_in, d_out, bias, dtype):
        linear = make_pair(d_in, d_out, bias)[1].to(dtype).double().requires_grad_(False)
        weight, bias_O = linear.weight.to(dtype), None if linear.bias is None else linear.bias
        few = FewRows(weight, None if bias_O is None else bias_O.float())
        for n_rows in (*range(12), 23):
            values = torch.randn(n_rows, d_in)
            result, expected = few(values), linear(values.double())
            assert result.dtype is torch.float32
            torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)

    def test_nan_and_infinity_stay_in_their_row_and_column(self):
        weight, values = torch.randn(24, 37), torch.randn(6, 37)
        clean = FewRows(weight)(values)
        values[1, 36], weight[3, 36] = torch.nan, torch.inf
        result = FewRows(weight)(values)
        assert result[1].isnan().all()
        assert not result[:, 3].isfinite().any()
        rows, columns = torch.tensor([0, 2, 3, 4, 5]), torch.tensor([0, 1, 2, *range(4, 24)])
        assert torch.equal(result[rows][:, columns], clean[rows][:, columns])

    def test_threads_do_not_change_bits(self, set_threads):
        weight, values = torch.randn(301, 129), torch.randn(7, 129)
        results = []
        for n_threads in (1, 2):
            set_threads(n_threads)
            results.append(FewRows(weight)(values))
        assert torch.equal(*results)

    def test_changed_weights_are_used(self):
        few, values = FewRows(weight := torch.randn(24, 40)), torch.randn(6, 40)
        weight.mul_(2)
        torch.testing.assert_close(few(values), values @ weight.T)

    def test_other_inputs_are_refused(self):
        weight, values = torch.randn(24, 40), torch.randn(6, 40)
        few = FewRows(weight)
        for other in (values.double(), torch.randn(40, 6).T, values.bfloat16()):
            with pytest.raises(TypeError):
                few(other)
        for make in (
            lambda: few(values[:, :39].contiguous()),
            lambda: FewRows(weight, torch.zeros(23)),
        ):
            with pytest.raises(ValueError, match="must have shape"):
                make()
        with pytest.raises(TypeError):
            FewRows(weight.T)

    def test_choice(self, monkeypatch):
        assert dispatch.cpp_or_torch(torch.zeros(2, 2)).kernel == dispatch.CPP
        assert dispatch.cpp_or_torch(torch.zeros(2, 2).double()).kernel == dispatch.TORCH
        choose_implementation("torch", monkeypatch)
        assert dispatch.cpp_or_torch(torch.zeros(2, 2)).kernel == dispatch.TORCH


@pytest.mark.slow
def test_compiled_graphs_use_torch(calls):
    linear, torch_linear = make_pair()
    values = torch.randn(6, 40)
    compiled = torch.compile(linear, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(values), torch_linear(values))
    assert not calls


@pytest.fixture
def layers():
    torch.manual_seed(1)
    return [Linear(40, d_out) for d_out in (24, 24, 16)]


@pytest.fixture
def n_calls(monkeypatch):
    spy = Mock(wraps=module.linear)
    monkeypatch.setattr(module, "linear", spy)
    return lambda: (spy.call_count, spy.reset_mock())[0]


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

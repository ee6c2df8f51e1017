"""Sizes, compilation, missing tools and a rule of the language of the Triton kernels."""

import ast
import importlib.util
from pathlib import Path

import pytest
import torch
import torch._dynamo.config

import headwise.ops
from headwise.entmax import entmax15
from headwise.ops.attention.triton import triton_entmax_attention
from headwise.ops.family import Power
from headwise.ops.losses import triton as triton_losses
from headwise.ops.maps import triton as triton_maps
from headwise.ops.triton.constants import constants
from headwise.ops.triton.device import is_interpreted
from triton_marks import DEVICE, HAS_TRITON, needs_triton


class TestSizes:
    pytestmark = needs_triton

    @pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (5, 1), (1, 40)])
    def test_one_query_or_key(self, n_queries, n_keys):
        generator = torch.Generator().manual_seed(1)
        query, key, value = (
            torch.randn(2, 1, n, 16, generator=generator).to(DEVICE).requires_grad_()
            for n in (n_queries, n_keys, n_keys)
        )
        context = triton_entmax_attention(query, key, value, 1.5, scale=0.25)
        weights = entmax15(query.detach() @ key.detach().mT * 0.25)
        assert torch.allclose(context, weights @ value.detach(), atol=1e-5)
        query_grad, value_grad = torch.autograd.grad(context.sum(), (query, value))
        assert bool((query_grad.abs() > 1e-5).any()) == (n_keys > 1)
        expected = weights.sum(-2)[..., None].expand_as(value_grad)
        assert torch.allclose(value_grad, expected, atol=1e-5)

    @pytest.mark.parametrize("scale", [0.0, -0.3])
    def test_scales_that_are_not_positive(self, scale):
        query, key, value = (torch.randn(1, 2, 9, 16, device=DEVICE) for _ in range(3))
        query.requires_grad_(), key.requires_grad_()
        context = triton_entmax_attention(query, key, value, 1.5, scale=scale)
        expected = entmax15(query @ key.mT * scale) @ value
        torch.testing.assert_close(context, expected)
        gradients = (torch.autograd.grad(x.sum(), (query, key)) for x in (context, expected))
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)

    def test_rows_beyond_2_to_the_31_are_addressed(self):
        from triton_addresses import row_offsets

        out = torch.zeros(4, dtype=torch.int64, device=DEVICE)
        sizes = {"BLOCK_M": 4, "BLOCK_N": 4, "WIDTH": 16, "PADDED": 16, "POWER": 1}
        const = constants(**sizes, PRECISE=True, INTERPRET=is_interpreted())
        row_offsets[(1,)](out, 1 << 30, const)
        assert out.tolist() == [row << 33 for row in range(4)]

    @torch._dynamo.config.patch(error_on_recompile=True)
    def test_one_compiled_graph_for_all_lengths(self):
        @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
        def attend(query, key):
            return triton_entmax_attention(query, key, key, 1.3, scale=0.25) * 2

        for n_queries, n_keys in ((20, 18), (33, 35), (17, 70), (90, 100)):
            query, key = (torch.randn(1, 2, n, 16, device=DEVICE) for n in (n_queries, n_keys))
            expected = triton_entmax_attention(query, key, key, 1.3, scale=0.25) * 2
            assert torch.equal(attend(query, key), expected)

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [(torch.Tensor.double, "must be torch.float16 or"), (torch.Tensor.t, "contiguous")],
    )
    def test_unsupported_layouts_are_refused(self, wrong, reason):
        scores = wrong(torch.zeros(4, 6, device=DEVICE))
        with pytest.raises(TypeError, match=reason):
            triton_maps.forward(scores[None, None], None, Power.SQUARE, None)
        with pytest.raises(TypeError, match=reason):
            triton_losses.read(scores, 1.5, with_total=False)


def unavailable_reason():
    """Why kernels do not run on a GPU, in a process that starts with this environment."""
    spec = importlib.util.find_spec("headwise.ops.triton.device")
    device = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(device)
    return device.unavailable_reason(torch.device("cuda"))


@pytest.mark.skipif(not HAS_TRITON, reason="no Triton")
def test_missing_tool_is_named_and_disables_kernels(monkeypatch, tmp_path):
    """Triton needs a C compiler and the headers of Python before its first kernel."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "C compiler" in unavailable_reason()
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr("sysconfig.get_path", lambda name, scheme: str(tmp_path))
    assert "Python.h" in unavailable_reason()
    (tmp_path / "Python.h").touch()
    assert unavailable_reason() is None


FOLDER = Path(headwise.ops.__path__[0])
SOURCES = [*FOLDER.glob("triton/*.py"), *FOLDER.glob("*/triton*.py")]


def copies(node):
    """Assignments of a variable to another, `name = other`, and their lines."""
    for one in ast.walk(node):
        if not isinstance(one, ast.Assign):
            continue
        for target in one.targets:
            pairs = [(target, one.value)]
            if isinstance(target, ast.Tuple) and isinstance(one.value, ast.Tuple):
                pairs = list(zip(target.elts, one.value.elts, strict=True))
            for name, value in pairs:
                if isinstance(name, ast.Name) and isinstance(value, ast.Name):
                    yield name.id, value.id, one.lineno


def lost_copies(source):
    """Copies in loops of what is also a copy before the loop: Triton does not carry them."""
    messages = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for loop in ast.walk(function):
            if isinstance(loop, ast.For | ast.While):
                before = {copy[:2] for copy in copies(function) if copy[2] < loop.lineno}
                lost = {copy[:2] for copy in copies(loop)} & before
                messages += [f"{function.name}: {name} = {value}" for name, value in sorted(lost)]
    return messages


def test_no_variable_of_a_loop_starts_as_a_copy_of_another():
    assert len(SOURCES) > 10
    for path in SOURCES:
        assert not lost_copies(path.read_text(encoding="utf-8")), path.name


def test_a_lost_copy_is_found():
    kernel = """
def solve(shift):
    last, left = shift, 3
    while left > 0:
        last = shift
        shift = shift / 2
        left -= 1
    return last
"""
    assert lost_copies(kernel) == ["solve: last = shift"]

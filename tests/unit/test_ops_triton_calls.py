"""Sizes, compilation and missing tools of the Triton kernels."""

import pytest
import torch
import torch._dynamo.config
from torch._subclasses.fake_tensor import FakeTensorMode

from headwise.entmax import entmax15
from headwise.ops.attention.triton import triton_entmax_attention, unsupported_reason
from headwise.ops.triton import device as triton_device
from triton_marks import DEVICE, needs_triton


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

    @torch._dynamo.config.patch(error_on_recompile=True)
    def test_one_compiled_graph_for_all_lengths(self):
        @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
        def attend(query, key):
            return triton_entmax_attention(query, key, key, 1.3, scale=0.25) * 2

        for n_queries, n_keys in ((20, 18), (33, 35), (17, 70), (90, 100)):
            query, key = (torch.randn(1, 2, n, 16, device=DEVICE) for n in (n_queries, n_keys))
            expected = triton_entmax_attention(query, key, key, 1.3, scale=0.25) * 2
            assert torch.equal(attend(query, key), expected)


class TestTools:
    """Triton needs a C compiler and the headers of Python before its first kernel."""

    def test_missing_tool_is_named(self, monkeypatch, tmp_path):
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "C compiler" in str(triton_device._missing_tool())
        monkeypatch.setenv("CC", "cc")
        monkeypatch.setattr("sysconfig.get_path", lambda name, scheme: str(tmp_path))
        assert "Python.h" in str(triton_device._missing_tool())
        (tmp_path / "Python.h").touch()
        assert triton_device._missing_tool() is None

    def test_missing_tool_disables_kernels(self, monkeypatch):
        monkeypatch.setattr(triton_device, "HAS_TRITON", True)
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
        with FakeTensorMode():
            query = torch.empty(1, 2, 3, 16, device=torch.device("cuda", 0))
        monkeypatch.setattr(triton_device, "MISSING_TOOL", None)
        assert unsupported_reason(query, query, query) is None
        monkeypatch.setattr(triton_device, "MISSING_TOOL", "no C compiler")
        assert unsupported_reason(query, query, query) == "no C compiler"

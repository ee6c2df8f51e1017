"""Choice of the attention kernel, and equality of the results of each."""

import logging

import pytest
import torch

from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.config.folders import group_node
from headwise.ops import check, dispatch
from headwise.ops.attention import operator
from headwise.ops.cpp import call
from kernel_marks import needs_kernels
from triton_marks import DEVICE, needs_triton
from weights_recorded import with_weights

VARIANTS = ("softmax", "entmax15", "sparsemax", "alpha_entmax")
QK_DIMS = pytest.mark.parametrize("qk_dim", [None, 8, 24])  # None: as the values, 16
BLOCKS_NEVER = {name: {"stride": 8, "block_sparse_from": 10**6} for name in ("strided", "fixed")}


@pytest.fixture(autouse=True)
def _empty_log():
    operator._LOGGED.clear()
    yield
    operator._LOGGED.clear()


def layer(variant, qk_dim=None, **settings):
    torch.manual_seed(1)
    node = {**group_node("attention", variant), **settings}
    return AttentionFactory({"attention": node})(Place("encoder_self", 1, 2, 16, qk_dim=qk_dim))


def context_and_gradients(attention, states, mask, recorded):
    attention.zero_grad()
    states = states.clone().requires_grad_()
    arguments = (states, states, states, mask)
    context = with_weights(attention, *arguments)[0] if recorded else attention(*arguments)
    context.square().sum().backward()
    return [context.detach(), states.grad, *(p.grad for p in attention.parameters())]


def assert_fused_equals_formed(attention, n, caplog, line):
    device = next(attention.parameters()).device
    states = torch.randn(2, n, 32, generator=torch.Generator().manual_seed(2)).to(device)
    mask = Mask(key_lengths_B=torch.tensor([n, n // 2], device=device))
    with caplog.at_level(logging.INFO, logger="headwise"):
        actual = context_and_gradients(attention, states, mask, recorded=False)
    assert line in caplog.text
    for fused_tensor, formed_tensor in zip(
        actual, context_and_gradients(attention, states, mask, True), strict=True
    ):
        torch.testing.assert_close(fused_tensor, formed_tensor, rtol=1e-4, atol=1e-4)


@needs_kernels
@QK_DIMS
@pytest.mark.parametrize(
    ("variant", "settings"),
    [(v, {}) for v in VARIANTS[1:]] + [("alpha_entmax", {"depends_on": "query"})],
)
def test_long_rows_use_kernels(caplog, variant, settings, qk_dim):
    attention = layer(variant, qk_dim, **settings)
    assert_fused_equals_formed(attention, 150, caplog, "attention: C++ (checked)")


@needs_kernels
@QK_DIMS
@pytest.mark.parametrize("variant", VARIANTS)
def test_few_queries_use_a_separate_kernel_without_logging(caplog, monkeypatch, variant, qk_dim):
    attention, calls = layer(variant, qk_dim), []
    real = operator.attention_of_few
    monkeypatch.setattr(operator, "attention_of_few", lambda *a: calls.append(a) or real(*a))
    states = torch.randn(2, 30, 32, generator=torch.Generator().manual_seed(2))
    arguments = (states[:, :3], states, states, Mask(key_lengths_B=torch.tensor([30, 7])))
    with torch.no_grad(), caplog.at_level(logging.INFO, logger="headwise"):
        context = attention(*arguments)
        formed, _ = with_weights(attention, *arguments)
    assert len(calls) == 1
    assert not caplog.text
    torch.testing.assert_close(context, formed, rtol=1e-4, atol=1e-4)


@QK_DIMS
@pytest.mark.parametrize("variant", VARIANTS)
def test_without_kernels_the_result_is_equal(caplog, monkeypatch, variant, qk_dim):
    monkeypatch.setattr(call, "supports", lambda scores: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert_fused_equals_formed(layer(variant, qk_dim), 150, caplog, "no C++ kernels")


class TestTriton:
    pytestmark = needs_triton

    @QK_DIMS
    @pytest.mark.parametrize("variant", VARIANTS[1:])
    def test_layer_uses_the_kernels(self, caplog, monkeypatch, variant, qk_dim):
        monkeypatch.setattr(call, "supports", lambda scores: False)
        monkeypatch.setattr(check, "RATE", 0.0)  # the interpreter is slow
        attention = layer(variant, qk_dim).to(DEVICE)
        assert_fused_equals_formed(attention, 20, caplog, "attention: Triton (checked)")

    def test_refusals_are_logged(self, caplog, monkeypatch):
        monkeypatch.setattr(call, "supports", lambda scores: False)
        attention = layer("alpha_entmax", depends_on="query").to(DEVICE)
        assert_fused_equals_formed(attention, 20, caplog, "α depends on the query")


@needs_kernels
@pytest.mark.parametrize("scaling", ["none", "length"])
@pytest.mark.parametrize("pattern", ["none", "strided", "fixed"])
@pytest.mark.parametrize(("depends_on", "qk_dim"), [("head", None), ("head", 8), ("query", 24)])
def test_decoder_with_all_choices(monkeypatch, scaling, pattern, depends_on, qk_dim):
    """Fused, formed, and cached step-by-step attention give the same context."""
    choices = {
        "attention": {**group_node("attention", "alpha_entmax"), "depends_on": depends_on},
        "scaling": group_node("scaling", scaling),
        "pattern": {**group_node("pattern", pattern), **BLOCKS_NEVER.get(pattern, {})},
    }
    torch.manual_seed(1)
    attention = AttentionFactory(choices)(Place("decoder_self", 1, 2, 16, qk_dim=qk_dim))
    n = dispatch.MIN_KEYS + 12
    states = torch.randn(1, n, 32, generator=torch.Generator().manual_seed(2))
    calls = []
    real = operator.attention
    monkeypatch.setattr(operator, "attention", lambda *a: calls.append(a) or real(*a))
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
        whole = attention(states, states, states, Mask(causal=True))
        assert calls
        formed, _ = with_weights(attention, states, states, states, Mask(causal=True))
        cache = attention.make_cache(static=False)
        steps = []
        for t in range(n):
            now = states[:, t : t + 1]
            mask = Mask(causal=True, query_offset=t)
            steps.append(attention(now, now, now, mask, cache=cache))
    torch.testing.assert_close(whole, formed, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)

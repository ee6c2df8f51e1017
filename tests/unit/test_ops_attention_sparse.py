"""Block-sparse attention by the C++ kernels against the dense formulas in float64.

Axes: B batch, H heads, N positions, E head width.
"""

import itertools

import pytest
import torch
from benchmarks.saved_storages import n_bytes, saved_storages
from torch.utils.checkpoint import checkpoint

import headwise.ops.attention.cpu_sparse as attention_module
from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.config.folders import group_node
from headwise.ops import dispatch
from headwise.ops.attention.cpu_sparse import Settings, sparse_attention
from headwise.ops.attention.distances import Distances
from headwise.ops.family import Power
from kernel_marks import needs_kernels
from sparse_cases import (
    COMBINATIONS,
    PATTERNS,
    B,
    E,
    H,
    assert_same,
    dense,
    inputs,
    layout_and_mask,
    make_pattern,
)

pytestmark = needs_kernels
CHUNKS = {"whole": 1 << 20, "heads": 1200, "blocks": 100}


def sparse(tensors, alpha, settings):
    """Return the context and the gradients of queries, keys, values and alpha."""
    leaves = [
        one.detach().clone().requires_grad_() for one in (*tensors[:3], alpha) if one is not None
    ]
    context = sparse_attention(*leaves[:3], leaves[3] if alpha is not None else None, settings)
    context.backward(tensors[3])
    return [context.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize(
    ("chunk", "causal"), [("whole", True), ("whole", False), ("heads", True), ("blocks", False)]
)
@pytest.mark.parametrize("name", PATTERNS)
def test_equals_masked_dense_computation(monkeypatch, name, causal, chunk):
    """With padding, bias, α per head, whole and partial blocks, all combinations of heads."""
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", CHUNKS[chunk])
    distances = Distances(torch.tensor([0.25, 0.0, 0.1]), 2)
    cases = itertools.product(COMBINATIONS, (3, 16, 29), (False, True))
    for number, (combination, n, is_padded) in enumerate(cases):
        power = list(Power)[number % 4]
        alpha = torch.tensor([1.1, 1.4, 1.7]).view(1, H, 1, 1) if power is Power.ANY else None
        lengths = torch.tensor([n, max(1, n - 5), 1]) if is_padded else None
        layout, mask = layout_and_mask(make_pattern(name, *combination), n, causal, lengths)
        settings = Settings(layout, power, 0.0, 0.3, distances if number % 3 else None)
        tensors = inputs(n)
        assert_same(sparse(tensors, alpha, settings), dense(tensors, alpha, settings, mask))


def test_alpha_per_query():
    layout, mask = layout_and_mask(make_pattern("fixed"), 18, True)
    alpha = torch.rand(B, H, 18, 1, generator=torch.Generator().manual_seed(1)) * 0.8 + 1
    settings, tensors = Settings(layout, Power.ANY, 0.0, 0.3), inputs(18)
    assert_same(sparse(tensors, alpha, settings), dense(tensors, alpha, settings, mask))


@pytest.mark.parametrize("power", [Power.EXP, Power.SQUARE])
def test_bfloat16_is_close(power):
    layout, mask = layout_and_mask(make_pattern("strided"), 29, True)
    settings, tensors = Settings(layout, power, 0.0, 0.3), [one.bfloat16() for one in inputs(29)]
    actual = sparse(tensors, None, settings)
    assert all(tensor.dtype is torch.bfloat16 for tensor in actual)
    for tensor, exact in zip(actual, dense(tensors, None, settings, mask), strict=True):
        assert (tensor.double() - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("name", PATTERNS)
def test_dropout_is_equal_forward_and_backward_and_in_chunks(monkeypatch, name):
    """With the identity as values, the context is the weights and so shows the dropped ones."""
    n, rate = 32, 0.25
    layout, mask = layout_and_mask(make_pattern(name), n, True)
    tensors, identity = inputs(n, width=n), torch.eye(n).expand(B, H, n, n)
    for power, chunk in itertools.product((Power.EXP, Power.LINEAR), CHUNKS.values()):
        monkeypatch.setattr(attention_module, "CHUNK_SCORES", chunk)
        settings = Settings(layout, power, rate, 0.1)
        torch.manual_seed(3)
        dropped = sparse_attention(*tensors[:2], identity, None, settings)
        without = Settings(layout, power, 0.0, 0.1)
        undropped = sparse_attention(*tensors[:2], identity, None, without)
        factor = torch.where(undropped > 0, dropped / undropped, 0.0).double()
        is_kept = factor > 0.5
        torch.testing.assert_close(factor[is_kept], torch.full_like(factor[is_kept], 4 / 3))
        n_nonzero = int((undropped > 0).sum())
        share = float(is_kept.sum() / n_nonzero)
        assert abs(share - 0.75) < 4 * (0.75 * 0.25 / n_nonzero) ** 0.5
        torch.manual_seed(3)
        expected = dense(tensors, None, settings, mask, factor)
        assert_same(sparse(tensors, None, settings), expected)


def test_layer_uses_the_kernel_and_equals_its_torch_path(monkeypatch):
    chosen = []
    original = dispatch.sparse_attention

    def recorded(*arguments):
        chosen.append(original(*arguments))
        return chosen[-1]

    monkeypatch.setattr(dispatch, "sparse_attention", recorded)
    node = {
        **group_node("pattern", "fixed"),
        "stride": 4,
        "summary_cells": 1,
        "block_sparse_from": 1,
    }
    choices = {"attention": group_node("attention", "alpha_entmax"), "pattern": node}
    layer = AttentionFactory(choices)(Place("decoder_self", 1, H, E))
    states = torch.randn(2, 80, H * E, generator=torch.Generator().manual_seed(1))

    def attend(states):
        context = layer(states, states, states, Mask(None, True))
        return context

    results = []
    checkpointed = lambda states: checkpoint(attend, states, use_reentrant=False)  # noqa: E731
    for kernel, call in ((True, attend), (True, checkpointed), (False, attend)):
        if not kernel:
            monkeypatch.setattr(
                dispatch, "sparse_attention", lambda *_: dispatch.Choice("weights", "")
            )
        leaf = states.clone().requires_grad_()
        call(leaf).square().sum().backward()
        results.append([leaf.grad, *(parameter.grad.clone() for parameter in layer.parameters())])
        layer.zero_grad()
    assert {one.kernel for one in chosen} == {dispatch.CPP}
    for other in results[1:]:
        for actual, expected in zip(other, results[0], strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_memory_grows_linearly_without_a_mask_of_all_positions(monkeypatch):
    n_saved = {}
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", 1000)
    for n in (100, 400):
        layout, _ = layout_and_mask(make_pattern("strided"), n, True)
        with saved_storages() as saved:
            tensors = [one.requires_grad_() for one in inputs(n)[:3]]
            settings = Settings(layout, Power.SQUARE, 0.1, 0.3)
            sparse_attention(*tensors, None, settings).sum().backward()
        assert "allowed_BHNK" not in vars(layout)
        n_saved[n] = n_bytes(saved)
    assert n_saved[400] <= 4.1 * n_saved[100]


def test_differentiable_once_only_and_context_can_change_in_place():
    layout, _ = layout_and_mask(make_pattern("strided"), 18, True)
    query, key, value, _ = inputs(18)
    settings = Settings(layout, Power.SQUARE, 0.0, 0.3)
    context = sparse_attention(query.requires_grad_(), key, value, None, settings)
    context.mul_(2)
    (grad,) = torch.autograd.grad(context.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        grad.sum().backward()

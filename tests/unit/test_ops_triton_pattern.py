"""Sparse patterns in the fused Triton kernels, in Triton's interpreter or on a GPU.

Axes: B batch, H heads, N positions, T blocks, E head width.
"""

import itertools
import math

import pytest
import torch
from torch import nn

from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.config.folders import group_node
from headwise.ops import check, dispatch
from headwise.ops.attention import triton_blocks, triton_tiles
from headwise.ops.attention.cpu_sparse import Settings
from headwise.ops.attention.distances import Distances
from headwise.ops.attention.triton import triton_entmax_attention
from headwise.ops.cpp import call
from headwise.ops.family import ALPHAS, Power
from sparse_cases import (
    COMBINATIONS,
    PATTERNS,
    H,
    assert_same,
    dense,
    inputs,
    layout_and_mask,
    make_pattern,
)
from triton_marks import DEVICE, needs_triton

LIMIT = 3e-5  # of gradients, as without a pattern


@pytest.fixture
def _small_blocks(monkeypatch):
    monkeypatch.setattr(triton_tiles, "BLOCK", 16)


def fused(tensors, alpha, settings):
    """Return the context and the gradients of queries, keys, values and alpha."""
    leaves = [
        one.detach().clone().requires_grad_() for one in (*tensors[:3], alpha) if one is not None
    ]
    context = attend(leaves, settings)
    context.backward(tensors[3])
    return [context.detach(), *(leaf.grad for leaf in leaves)]


def attend(tensors, settings):
    alpha = tensors[3].flatten() if len(tensors) == 4 else ALPHAS[settings.power]
    layout, others = settings.layout, (settings.dropout, settings.scale, settings.distances)
    lengths = layout.lengths_B
    return triton_entmax_attention(*tensors[:3], alpha, lengths, layout.causal, 0, *others, layout)


@pytest.mark.usefixtures("_small_blocks")
class TestAgainstFloat64:
    pytestmark = needs_triton

    @pytest.mark.parametrize("name", PATTERNS)
    @pytest.mark.parametrize("combination", range(len(COMBINATIONS)))
    def test_equals_masked_dense_computation(self, name, combination):
        """With padding, bias, α per head, empty and partial blocks, with and without causality."""
        n, number = 40, combination + list(PATTERNS).index(name)
        causal = number % 2 == 0
        pattern = make_pattern(name, *COMBINATIONS[combination], stride=8 if number % 5 else 11)
        power, alpha = list(Power)[combination % 4], None
        if power is Power.ANY:
            alpha = torch.tensor([1.1, 1.4, 1.7], device=DEVICE).view(1, H, 1, 1)
        lengths = torch.tensor([n, 31], device=DEVICE) if number % 3 else None
        distances = None
        if combination % 2:
            distances = Distances(torch.tensor([0.25, 0.0, 0.1], device=DEVICE), 2)
        layout, mask = layout_and_mask(pattern, n, causal, lengths, DEVICE)
        settings = Settings(layout, power, 0.0, 0.3, distances)
        tensors = [one.to(DEVICE) for one in inputs(n, n_batch=2)]
        assert_same(fused(tensors, alpha, settings), dense(tensors, alpha, settings, mask), LIMIT)

    @pytest.mark.parametrize(
        ("name", "power"), [("strided", Power.EXP), ("fixed own cells", Power.SQUARE)]
    )
    def test_dropout_is_equal_forward_and_backward(self, name, power):
        """With the identity as values, the context is the weights and so shows the dropped ones."""
        n, rate = 40, 0.25
        layout, mask = layout_and_mask(make_pattern(name, stride=8), n, True, None, DEVICE)
        tensors = [one.to(DEVICE) for one in inputs(n, n_batch=1, width=n)]
        identity = torch.eye(n, device=DEVICE).expand(1, H, n, n)
        plain, dropping = (Settings(layout, power, each, 0.1) for each in (0.0, rate))
        torch.manual_seed(3)
        dropped = attend([*tensors[:2], identity], dropping)
        undropped = attend([*tensors[:2], identity], plain)
        is_kept, is_clear = dropped != 0, undropped > 1e-4
        expected = undropped * is_kept / (1 - rate)
        torch.testing.assert_close(dropped[is_clear], expected[is_clear], rtol=1e-3, atol=0)
        n_nonzero = int((undropped > 0).sum())
        share = float(is_kept.sum() / n_nonzero)
        assert abs(share - 0.75) < 4 * (0.75 * 0.25 / n_nonzero) ** 0.5
        torch.manual_seed(3)
        exact = dense(tensors, None, dropping, mask, is_kept / (1 - rate))
        assert_same(fused(tensors, None, dropping), exact, LIMIT)

    @pytest.mark.parametrize(("block", "power"), [(16, Power.EXP), (64, Power.ANY)])
    def test_half_precision_over_many_blocks(self, block, power, monkeypatch):
        monkeypatch.setattr(triton_tiles, "BLOCK", block)
        n, alpha = 130, None
        if power is Power.ANY:
            alpha = torch.tensor([1.1, 1.5, 1.9], device=DEVICE).view(1, H, 1, 1)
        layout, mask = layout_and_mask(make_pattern("fixed", stride=16), n, True, None, DEVICE)
        settings = Settings(layout, power, 0.0, 0.3)
        tensors = [one.bfloat16().to(DEVICE) for one in inputs(n, n_batch=1)]
        actual = fused(tensors, alpha, settings)
        for tensor, exact in zip(actual, dense(tensors, alpha, settings, mask), strict=True):
            assert tensor.dtype is (torch.bfloat16 if tensor.numel() > H else torch.float32)
            assert (tensor.double() - exact).norm() < 0.02 * exact.norm()


class TestLayer:
    pytestmark = needs_triton

    def test_layer_uses_the_kernel_and_equals_its_torch_path(self, monkeypatch):
        monkeypatch.setattr(call, "supports", lambda values: False)
        monkeypatch.setattr(check, "failure", lambda library: None)
        changes = {"stride": 8, "summary_cells": 1, "block_sparse_from": 1}
        pattern = {**group_node("pattern", "fixed"), **changes}
        choices = {"attention": group_node("attention", "alpha_entmax"), "pattern": pattern}
        layer = AttentionFactory(choices)(Place("decoder_self", 1, 2, 8)).to(DEVICE)
        states = torch.randn(1, 80, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        results, chosen = [], []
        original = dispatch.sparse_attention
        for is_fused in (True, False):

            def choose(*arguments, is_fused=is_fused):
                chosen.append(original(*arguments).kernel)
                return original(*arguments) if is_fused else dispatch.Choice(dispatch.WEIGHTS, "")

            monkeypatch.setattr(dispatch, "sparse_attention", choose)
            leaf = states.clone().requires_grad_()
            layer(leaf, leaf, leaf, Mask(None, True)).square().sum().backward()
            gradients = [parameter.grad.clone() for parameter in layer.parameters()]
            results.append([leaf.grad, *gradients])
            layer.zero_grad()
        assert set(chosen) == {dispatch.TRITON}
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


class TestMarks:
    """Which blocks the kernels compute."""

    @pytest.mark.parametrize("causal", [True, False])
    @pytest.mark.parametrize("name", PATTERNS)
    def test_every_visible_pair_is_in_a_marked_block(self, name, causal):
        n, lengths = 78, torch.tensor([78, 33, 1])
        for combination, (stride, block) in itertools.product(
            COMBINATIONS, ((8, 4), (7, 16), (30, 8))
        ):
            layout, mask = layout_and_mask(
                make_pattern(name, *combination, stride=stride), n, causal, lengths
            )
            places = triton_blocks.places(layout.rule, n, 3, lengths.device)
            mask = mask.expand(3, H, n, n)
            mask = mask.gather(2, places[:, :, 0, :, None].long().expand_as(mask))
            mask = mask.gather(3, places[:, :, 2, None].long().expand_as(mask))
            columns = nn.functional.pad(mask, (0, -n % block))
            any_visible, all_visible = (
                nn.functional.pad(columns, (0, 0, 0, -n % block), value=value)
                .unflatten(3, (-1, block))
                .unflatten(2, (-1, block))
                for value in (False, True)
            )
            windows_H = torch.tensor(layout.rule.windows)
            marks = triton_blocks._marks(places, windows_H, causal, lengths, block)
            assert not any_visible.any(5).any(3)[marks == 0].any()
            assert all_visible.all(5).all(3)[marks == 1].all()
            assert (marks == 0).any()

    @pytest.mark.parametrize("combine", ["merged", "heads"])
    @pytest.mark.parametrize("name", PATTERNS)
    def test_number_of_blocks_grows_as_n_sqrt_n(self, name, combine):
        counts = []
        for n in (4096, 16384):
            pattern = make_pattern(name, combine, stride=math.isqrt(n))
            lengths = torch.tensor([n])
            rule = pattern.rule(n, True, lengths)
            places = triton_blocks.places(rule, n, 1, lengths.device)
            windows_H = torch.tensor(rule.windows)
            marks = triton_blocks._marks(places, windows_H, True, lengths, 64)
            counts.append(int((marks > 0).sum()))
        assert counts[1] <= 8.5 * counts[0]
        assert counts[1] <= 0.25 * marks.numel() / 2  # of a causal dense computation


def test_choice_on_a_gpu(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr("headwise.ops.triton.device.HAS_TRITON", True)
    monkeypatch.setattr("headwise.ops.triton.device.MISSING_TOOL", None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    with FakeTensorMode():
        query = torch.empty(1, 2, 300, 16, device=torch.device("cuda", 0))
    monkeypatch.setattr(check, "failure", lambda library: None)
    arguments = (query, query, Power.EXP)
    assert dispatch.sparse_attention(*arguments, False, False).kernel == dispatch.TRITON
    per_query = dispatch.sparse_attention(*arguments, True, False)
    assert per_query == (dispatch.WEIGHTS, "α depends on the query")
    assert "documents" in dispatch.sparse_attention(*arguments, False, True).reason
    double = [tensor.double() for tensor in arguments[:2]]
    assert "float64" in dispatch.sparse_attention(*double, Power.EXP, False, False).reason

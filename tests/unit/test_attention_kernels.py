"""Layers of attention: which kernel computes them, and that each gives the same results.

Axes: B batch, H heads, N positions, K places of a layout, E head width, D model width.
"""

import logging
import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from attention_cases import COMBINATIONS, PATTERNS
from headwise.attention.attention import HeadGate
from headwise.attention.build import AttentionFactory
from headwise.attention.cache import KeyValueCache
from headwise.attention.factorised import FactorisedPattern
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.window import Window
from headwise.config.register import group_node
from headwise.ops import dispatch
from headwise.ops.dispatch import Choice
from kernel_marks import needs_kernels
from triton_marks import DEVICE, choose_implementation, needs_triton
from weights_recorded import with_weights

B, H, E = 3, 3, 4
D = H * E
CPU = torch.device("cpu")
VARIANTS = ("softmax", "entmax15", "sparsemax", "alpha_entmax")
QK_DIMS = pytest.mark.parametrize("qk_dim", [None, 8, 24])  # None: as the values, 16
BLOCKS_NEVER = {name: {"stride": 8, "block_sparse_from": 10**6} for name in ("strided", "fixed")}
PATTERN = {"stride": 8, "summary_cells": 1, "block_sparse_from": 1}


class Choices(list):
    """The choices of kernels; `instead` replaces those that follow."""

    instead = None

    @property
    def kernels(self):
        return {choice.kernel for choice in self}


@pytest.fixture
def chosen(monkeypatch):
    choices = Choices()

    def spy(function):
        def choose(*arguments, **settings):
            choices.append(function(*arguments, **settings))
            return choices.instead or choices[-1]

        return choose

    for name in ("attention", "sparse_attention"):
        monkeypatch.setattr(dispatch, name, spy(getattr(dispatch, name)))
    return choices


@pytest.fixture
def use(monkeypatch):
    """Set what computes: the C++ `kernels`, `torch` or `triton`."""
    return lambda implementation: choose_implementation(implementation, monkeypatch)


def layer(variant, qk_dim=None, pattern="none", changes=None, width=16, **settings):
    torch.manual_seed(1)
    choices = {
        "attention": {**group_node("attention", variant), **settings},
        "pattern": {**group_node("pattern", pattern), **(changes or {})},
    }
    return AttentionFactory(choices)(Place("encoder_self", 1, 2, width, qk_dim=qk_dim))


def results(attention, states, mask, call=None):
    """Context and gradients; `call` replaces the layer's."""
    attention.zero_grad()
    states = states.clone().requires_grad_()
    context = (call or attention)(states, states, states, mask)
    context.square().sum().backward()
    return [context.detach(), states.grad, *(p.grad.clone() for p in attention.parameters())]


def assert_equals_formed(attention, n):
    device = next(attention.parameters()).device
    states = torch.randn(2, n, 32, generator=torch.Generator().manual_seed(2)).to(device)
    mask = Mask(key_lengths_B=torch.tensor([n, n // 2], device=device))
    formed = results(attention, states, mask, lambda *args: with_weights(attention, *args)[0])
    torch.testing.assert_close(results(attention, states, mask), formed, rtol=1e-4, atol=1e-4)


@needs_kernels
@QK_DIMS
@pytest.mark.parametrize(
    ("variant", "settings"),
    [(v, {}) for v in VARIANTS[1:]] + [("alpha_entmax", {"depends_on": "query"})],
)
def test_long_rows_use_kernels(chosen, variant, settings, qk_dim):
    assert_equals_formed(layer(variant, qk_dim, **settings), 150)
    assert Choice(dispatch.CPP, "checked") in chosen


@needs_kernels
@QK_DIMS
@pytest.mark.parametrize("variant", VARIANTS)
def test_few_queries_use_a_separate_kernel_without_logging(caplog, chosen, variant, qk_dim):
    attention = layer(variant, qk_dim)
    states = torch.randn(2, 30, 32, generator=torch.Generator().manual_seed(2))
    arguments = (states[:, :3], states, states, Mask(key_lengths_B=torch.tensor([30, 7])))
    with torch.no_grad(), caplog.at_level(logging.INFO, logger="headwise"):
        context = attention(*arguments)
        assert chosen.kernels == {dispatch.CPP_FEW}
        formed, _ = with_weights(attention, *arguments)
    assert not caplog.text
    torch.testing.assert_close(context, formed, rtol=1e-4, atol=1e-4)


@QK_DIMS
@pytest.mark.parametrize("variant", VARIANTS)
def test_without_kernels_the_result_is_equal(chosen, use, monkeypatch, variant, qk_dim):
    use("torch")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert_equals_formed(layer(variant, qk_dim), 150)
    assert all("no C++ kernels" in choice.reason for choice in chosen)


def test_choice_is_logged_once(caplog, chosen):
    chosen.instead = Choice(dispatch.WEIGHTS, "as a test says")
    with caplog.at_level(logging.INFO, logger="headwise"):
        for _ in range(2):
            assert_equals_formed(layer("entmax15"), 20)
    assert [m for m in caplog.messages if "as a test" in m] == [f"attention: {chosen.instead}"]


@needs_kernels
def test_block_sparse_kernel_equals_the_torch_path(chosen):
    attention = layer("alpha_entmax", None, "fixed", PATTERN, width=8)
    states = torch.randn(2, 80, 16, generator=torch.Generator().manual_seed(1))
    mask, actual = Mask(None, True), []
    actual.append(results(attention, states, mask))
    actual.append(
        results(attention, states, mask, lambda *a: checkpoint(attention, *a, use_reentrant=False))
    )
    assert chosen.kernels == {dispatch.CPP}
    chosen.instead = Choice(dispatch.WEIGHTS, "")
    expected = results(attention, states, mask)
    for one in actual:
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4)


class TestTriton:
    pytestmark = needs_triton

    @pytest.mark.parametrize(
        ("variant", "qk_dim"), [("entmax15", None), ("sparsemax", 8), ("alpha_entmax", 24)]
    )
    def test_layer_uses_the_kernels(self, chosen, use, variant, qk_dim):
        use("triton")
        assert_equals_formed(layer(variant, qk_dim).to(DEVICE), 20)
        assert Choice(dispatch.TRITON, "checked") in chosen

    def test_alpha_of_queries_is_refused(self, chosen, use):
        use("triton")
        assert_equals_formed(layer("alpha_entmax", depends_on="query").to(DEVICE), 20)
        assert {choice.reason for choice in chosen} == {"α depends on the query"}

    @pytest.mark.parametrize(
        ("pattern", "changes", "causal"),
        [
            ("fixed", PATTERN, True),
            ("window", {"radius": 8, "global_keys": 2, "block_sparse_from": 1}, False),
        ],
    )
    def test_block_sparse_kernels_equal_the_torch_path(self, chosen, use, pattern, changes, causal):
        use("triton")
        attention = layer("alpha_entmax", None, pattern, changes, width=8).to(DEVICE)
        states = torch.randn(2, 80, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        mask = Mask(None if causal else torch.tensor([80, 50], device=DEVICE), causal)
        actual = results(attention, states, mask)
        assert chosen.kernels == {dispatch.TRITON}
        chosen.instead = Choice(dispatch.WEIGHTS, "")
        expected = results(attention, states, mask)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("scaling", ["none", "length"])
@pytest.mark.parametrize("pattern", ["none", "strided", "fixed"])
@pytest.mark.parametrize(("depends_on", "qk_dim"), [("head", None), ("head", 8), ("query", 24)])
def test_decoder_with_all_choices(chosen, scaling, pattern, depends_on, qk_dim):
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
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
        whole = attention(states, states, states, Mask(causal=True))
        assert chosen.kernels == {dispatch.CPP}
        formed, _ = with_weights(attention, states, states, states, Mask(causal=True))
        cache = attention.make_cache(static=False)
        steps = []
        for t in range(n):
            now = states[:, t : t + 1]
            mask = Mask(causal=True, query_offset=t)
            steps.append(attention(now, now, now, mask, cache=cache))
    torch.testing.assert_close(whole, formed, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)


def make(
    pattern,
    in_blocks,
    stride=4,
    attention="softmax",
    layer=1,
    dropout=0.0,
    scaling="none",
    max_share=math.inf,
    **settings,
):
    """Make an attention in float64 that always or never uses the block-sparse path.

    Short sentences use it too, although that saves nothing, unless `max_share` is set.
    """
    torch.manual_seed(0)
    node = {**group_node("pattern", pattern.split()[0]), **PATTERNS[pattern][1], **settings}
    node |= {"stride": stride, "block_sparse_from": 1 if in_blocks else 10**9}
    choices = {
        "attention": group_node("attention", attention),
        "pattern": node,
        "scaling": group_node("scaling", scaling),
    }
    attention_module = AttentionFactory(choices, dropout=dropout)(
        Place("encoder_self", layer, H, E)
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in attention_module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    attention_module.pattern.max_share = max_share
    return attention_module.double()


def states(n, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, n, D, generator=generator, dtype=torch.float64)


def context_and_gradients(attention, n, mask):
    """Context of real positions, gradient of the states, gradients of the parameters."""
    states_BND = states(n).requires_grad_()
    context = attention(states_BND, states_BND, states_BND, mask)
    if mask.key_lengths_B is not None:
        context = context * (torch.arange(n) < mask.key_lengths_B[:, None])[..., None]
    (context * states(n, 3)).sum().backward()
    tensors = [context.detach(), states_BND.grad]
    tensors += [parameter.grad for parameter in attention.parameters()]
    return [torch.zeros(()) if tensor is None else tensor for tensor in tensors]


def assert_same(actual, expected):
    for tensor, expected_tensor in zip(actual, expected, strict=True):
        torch.testing.assert_close(tensor, expected_tensor, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("combine", "heads", "layer"), COMBINATIONS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_equals_the_masked_dense_computation(pattern, combine, heads, layer, causal):
    heads = heads and list(heads)
    settings = {"combine": combine, "heads": heads, "layer": layer}
    for n in (1, 4, 7, 18):  # whole blocks, partial ones, less than one
        for lengths in (None, torch.tensor([n, max(1, n - 5), 1])):
            mask = Mask(lengths, causal)
            in_blocks = make(pattern, True, **settings)
            layout = mask.restricted(in_blocks.pattern).layout(n, n, CPU)
            assert layout.allowed_BHNK.shape[2:] == (n, layout.n_slots)
            dense = make(pattern, False, **settings)
            assert_same(
                context_and_gradients(in_blocks, n, mask), context_and_gradients(dense, n, mask)
            )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_scaling_gates_and_the_number_of_visible_keys(pattern):
    class Halves(HeadGate):
        def forward(self, context_BHQE):
            return context_BHQE * torch.tensor([0.5, 1.0, 2.0]).view(1, H, 1, 1)

    results = []
    for in_blocks in (True, False):
        attention = make(pattern, in_blocks, scaling="length", combine="heads")
        attention.gate = Halves()
        results.append(
            context_and_gradients(attention, 18, Mask(torch.tensor([18, 9, 2]), causal=True))
        )
    assert_same(*results)


@needs_kernels
def test_block_sparse_path_starts_at_the_configured_length(chosen):
    attention = layer("softmax", None, "fixed", {"stride": 8, "block_sparse_from": 40}, width=8)
    torch.manual_seed(0)
    for n, reason in ((39, dispatch.SHORT_ROWS), (40, "checked"), (41, "checked")):
        states = torch.randn(1, n, 16)
        attention(states, states, states, Mask())
        assert chosen[-1].reason == reason, "only with a layout, C++ computes softmax"
    # recorded weights are those of all pairs and give the same context
    recorded, weights = with_weights(attention, states, states, states, Mask())
    assert weights.shape == (1, 2, 41, 41)
    torch.testing.assert_close(recorded, attention(states, states, states, Mask()))
    # it is not used for a decoding step, whose queries are not all positions
    cache = KeyValueCache(static=False)
    attention(*[states[:, :40]] * 3, Mask(None, True), cache)
    assert chosen[-1].reason == "checked"
    attention(*[states[:, 40:]] * 3, Mask(None, True, query_offset=40), cache)
    assert chosen[-1].reason == dispatch.SHORT_ROWS


@pytest.mark.parametrize("pattern", PATTERNS)
def test_block_sparse_path_is_not_used_for_dense_patterns(pattern):
    for stride, is_used in ((16, True), (200, False)):
        module_pattern = make(
            pattern, True, stride=stride, max_share=FactorisedPattern.max_share
        ).pattern
        assert (module_pattern.layout(300, False, None, CPU) is not None) is is_used


@pytest.mark.parametrize("pattern", PATTERNS)
def test_number_of_scores_grows_with_the_square_root_of_the_length(pattern):
    for causal in (True, False):
        slot_counts = []
        for n in (1024, 4096, 16384):
            module_pattern = make(pattern, True, stride=math.isqrt(n)).pattern
            slot_counts.append(module_pattern.layout(n, causal, None, CPU).n_slots)
        assert slot_counts[1] == 2 * slot_counts[0]
        assert slot_counts[2] == 4 * slot_counts[0]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("radius", "n_global"), [(3, 2), (5, 0), (8, 1)])
def test_keys_of_a_window_are_neighbours_and_the_first_positions(radius, n_global, causal):
    n, lengths = 41, torch.tensor([41, 23, 1])
    window = Window(Place("encoder_self", 1, 2, 8), radius, n_global, block_sparse_from=1)
    window.max_share = 2.0
    mask = Mask(lengths, causal, window)
    dense, layout = mask.dense(n, n, CPU), mask.layout(n, n, CPU)
    counts = torch.zeros(3, 1, n, n, dtype=torch.int64)
    allowed = layout.allowed_BHNK.expand(3, 1, n, -1)
    slots = layout.key_positions_BHNK.clamp(0, n - 1).expand_as(allowed)
    counts.scatter_add_(3, slots, allowed.long())
    for row, length in enumerate(lengths.tolist()):
        for i in range(n):
            keys = {j for j in range(length) if abs(i - j) <= radius or j < n_global}
            keys = {j for j in keys if j <= i or not causal}
            assert set(dense[row, 0, i].nonzero().flatten().tolist()) == keys
            assert counts[row, 0, i].tolist() == [int(j in keys) for j in range(n)]

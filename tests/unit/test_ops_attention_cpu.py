"""Fused attention on a CPU against the formulas in float64 with all weights stored."""

import pytest
import torch
from benchmarks.saved_storages import n_bytes, saved_storages
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import headwise.ops.attention.cpu as attention_module
from headwise.entmax import alpha_entmax
from headwise.ops.attention.cpu import attention
from headwise.ops.attention.distances import Distances
from headwise.ops.family import Power
from headwise.ops.flops import register_flops
from headwise.ops.visible import Visible
from kernel_marks import needs_kernels

pytestmark = needs_kernels
FIXED = {Power.EXP: 1.0, Power.SQUARE: 1.5, Power.LINEAR: 2.0}
# B, H, Q, K, causal, offset
SHAPES = {
    "encoder": (3, 2, 20, 20, False, 0),
    "cross": (3, 2, 19, 40, False, 0),
    "decoder": (2, 3, 33, 33, True, 0),
    "cached": (2, 2, 5, 17, True, 12),
    "long": (1, 2, 70, 300, False, 0),
}


def inputs(shape, width=16):
    """Queries, keys, values and a gradient of the context."""
    n_batch, n_heads, n_queries, n_keys = shape
    generator = torch.Generator().manual_seed(sum(shape))
    lengths = (n_queries, n_keys, n_keys, n_queries)
    return [torch.randn(n_batch, n_heads, n, width, generator=generator) for n in lengths]


def allowed(shape, lengths_B, causal, offset):
    keys = torch.arange(shape[3])
    mask = (keys < lengths_B[:, None])[:, None, None]
    if causal:
        mask = mask & (keys <= (torch.arange(shape[2]) + offset)[:, None])
    return mask


def bias_of(shape, offset, distances):
    """Compute the bias by loops, (H, Q, K)."""
    bias = torch.zeros(shape[1:], dtype=torch.float64)
    for h, slope in enumerate(distances.slopes_H.tolist()):
        for i in range(offset, offset + shape[2]):
            for j in range(distances.n_prefix, shape[3]):
                if i >= distances.n_prefix:
                    bias[h, i - offset, j] = -slope * abs(i - j)
    return bias


def by_weights(tensors, alpha, mask, factor=1.0, bias=0.0):
    """Return the context and the gradients of queries, keys, values and a tensor alpha."""
    query, key, value = (tensor.double().requires_grad_() for tensor in tensors[:3])
    leaves = [query, key, value]
    if isinstance(alpha, Tensor):
        alpha = alpha.detach().double().requires_grad_()
        leaves.append(alpha)
    scores = query @ key.transpose(-1, -2) * 0.3 + bias
    weights = alpha_entmax(scores, alpha, mask=mask) * factor
    context = weights @ value
    context.backward(tensors[3].double())
    return [context.detach(), *(tensor.grad for tensor in leaves)]


def fused(tensors, alpha, power, visible, rate=0.0, distances=None):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors[:3]]
    if alpha is not None:
        leaves.append(alpha.clone().requires_grad_())
    learned = leaves[3] if alpha is not None else None
    context = attention(*leaves[:3], learned, power, visible, rate, 0.3, distances)
    context.backward(tensors[3])
    return [context.detach(), *(tensor.grad for tensor in leaves)]


def assert_same(actual, expected, limit=3e-6):
    for tensor, exact in zip(actual, expected, strict=True):
        assert tensor.shape == exact.shape
        assert (tensor - exact).abs().max() <= limit * exact.abs().max().clamp_min(1)


@pytest.mark.parametrize("chunk", [1 << 19, 700], ids=["whole", "chunked"])
@pytest.mark.parametrize("with_pattern", [False, True])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("power", list(Power))
def test_equals_attention_by_weights(monkeypatch, power, name, with_pattern, chunk):
    *sizes, causal, offset = SHAPES[name]
    shape = (sizes[0], sizes[1], sizes[2], sizes[3])
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", chunk)
    tensors = inputs(shape)
    lengths = torch.linspace(0 if shape[0] > 1 else shape[3] - 3, shape[3], shape[0]).long()
    mask, pattern = allowed(shape, lengths, causal, offset), None
    if with_pattern:
        pattern = torch.rand(1, 1, *shape[2:], generator=torch.Generator().manual_seed(7)) > 0.2
        mask = mask & pattern
    alpha = None
    if power is Power.ANY:
        alpha = torch.linspace(1, 2, shape[1]).view(1, shape[1], 1, 1)
    actual = fused(tensors, alpha, power, Visible(pattern, lengths, causal, offset))
    assert_same(actual, by_weights(tensors, FIXED.get(power, alpha), mask))


@pytest.mark.parametrize("n_keys", [30, 130])
@pytest.mark.parametrize("power", list(Power))
def test_nan_query_gives_nan_in_its_rows_only(power, n_keys):
    tensors = inputs((1, 2, 9, n_keys))
    alpha = torch.full((1, 2, 1, 1), 1.3) if power is Power.ANY else None
    clean = fused(tensors, alpha, power, Visible())
    tensors[0] = tensors[0].clone()
    tensors[0][:, :, 4] = torch.nan
    actual = fused(tensors, alpha, power, Visible())
    others = torch.arange(9) != 4
    for index in (0, 1):  # context, gradient of the queries
        assert torch.equal(actual[index][:, :, others], clean[index][:, :, others])
        assert actual[index][:, :, 4].isnan().all()


def test_alpha_per_query():
    tensors = inputs((2, 2, 9, 30))
    alpha = torch.rand(2, 2, 9, 1, generator=torch.Generator().manual_seed(1)) + 1
    exact = by_weights(tensors, alpha, torch.tensor(True))
    assert_same(fused(tensors, alpha, Power.ANY, Visible()), exact)


@pytest.mark.parametrize("power", list(Power))
def test_bfloat16_is_close(power):
    tensors = [tensor.bfloat16() for tensor in inputs((2, 2, 20, 20))]
    alpha = torch.tensor([1.2, 1.7]).view(1, 2, 1, 1) if power is Power.ANY else None
    lengths = torch.tensor([20, 7])
    actual = fused(tensors, alpha, power, Visible(None, lengths))
    assert all(tensor.dtype is torch.bfloat16 for tensor in actual[:4])
    mask = allowed((2, 2, 20, 20), lengths, False, 0)
    expected = by_weights(tensors, FIXED.get(power, alpha), mask)
    # rounding moves keys across the border of the support, where sparsemax's derivative jumps by 1
    limits = [0.02] + [0.1 if power is Power.LINEAR else 0.02] * (len(actual) - 1)
    for tensor, exact, limit in zip(actual, expected, limits, strict=True):
        error = (tensor.double() - exact).norm() / exact.norm()
        assert error < limit


@pytest.mark.parametrize(("n_prefix", "chunk"), [(0, 1 << 19), (4, 700)])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("power", list(Power))
def test_bias_by_distance(monkeypatch, power, name, n_prefix, chunk):
    """With padding, α per query and a head without a slope; the prefix may be cached."""
    *sizes, causal, offset = SHAPES[name]
    shape = (sizes[0], sizes[1], sizes[2], sizes[3])
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", chunk)
    tensors, lengths = inputs(shape), torch.linspace(shape[3] // 2, shape[3], shape[0]).long()
    slopes = torch.linspace(0.7, 0, shape[1])
    distances = Distances(slopes.requires_grad_(), offset + n_prefix if offset else n_prefix)
    alpha = None
    if power is Power.ANY:
        alpha = torch.linspace(1.05, 1.7, shape[1] * shape[2]).view(1, *shape[1:3], 1)
    bias = bias_of(shape, offset, distances)
    actual = fused(tensors, alpha, power, Visible(None, lengths, causal, offset), 0.0, distances)
    mask = allowed(shape, lengths, causal, offset)
    expected = by_weights(tensors, FIXED.get(power, alpha), mask, bias=bias)
    assert_same(actual, expected, limit=1e-5)
    assert slopes.grad is None


@pytest.mark.parametrize("power", list(Power))
def test_bias_does_not_lower_bfloat16_precision(power):
    shape, worst = (2, 2, 60, 200), []
    tensors = [tensor.bfloat16() for tensor in inputs(shape)]
    alpha = torch.tensor([1.2, 1.4]).view(1, 2, 1, 1) if power is Power.ANY else None
    for slopes in (None, torch.tensor([0.3, 1 / 64])):
        distances, bias = None, torch.zeros(())
        if slopes is not None:
            distances = Distances(slopes, 0)
            bias = bias_of(shape, 0, distances)
        actual = fused(tensors, alpha, power, Visible(), 0.0, distances)
        expected = by_weights(tensors, FIXED.get(power, alpha), torch.tensor(True), bias=bias)
        pairs = list(zip(actual, expected, strict=True))[:4]
        worst.append(max(float((a.double() - b).norm() / b.norm()) for a, b in pairs))
    assert worst[1] < 1.1 * worst[0]


def test_bfloat16_sums_over_chunks_are_exact(monkeypatch):
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", 4)
    query, key = torch.zeros(1, 1, 600, 8).bfloat16(), torch.ones(1, 1, 4, 8).bfloat16()
    tensors = [query, key, key, torch.ones_like(query)]
    value_grad = fused(tensors, None, Power.EXP, Visible())[3]
    assert (value_grad == 600 / 4).all()  # in bfloat16 64 + 0.25 is 64


@pytest.mark.parametrize("chunk", [1 << 19, 700], ids=["whole", "chunked"])
@pytest.mark.parametrize("power", [Power.EXP, Power.ANY, Power.LINEAR])
def test_dropout_mask_is_equal_forward_and_backward(monkeypatch, power, chunk):
    """With the identity as values, the context is the weights and so shows the mask."""
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", chunk)
    shape, rate = (2, 2, 30, 40), 0.25
    tensors = inputs(shape, width=40)
    alpha = torch.tensor([1.1, 1.3]).view(1, 2, 1, 1) if power is Power.ANY else None
    identity = torch.eye(40).expand(2, 2, 40, 40)
    torch.manual_seed(3)
    dropped = attention(tensors[0], tensors[1], identity, alpha, power, Visible(), rate, 0.3)
    undropped = attention(tensors[0], tensors[1], identity, alpha, power, Visible(), 0.0, 0.3)
    factor = torch.where(undropped > 0, dropped / undropped, 0.0).double()
    is_kept = factor > 0.5
    torch.testing.assert_close(factor[is_kept], torch.full_like(factor[is_kept], 4 / 3))
    kept_share = is_kept.sum() / (undropped > 0).sum()
    n_nonzero = int((undropped > 0).sum())
    assert abs(kept_share - 0.75) < 4 * (0.75 * 0.25 / n_nonzero) ** 0.5
    torch.manual_seed(3)
    actual = fused(tensors, alpha, power, Visible(), rate)
    expected = by_weights(tensors, FIXED.get(power, alpha), torch.tensor(True), factor)
    assert_same(actual, expected, limit=1e-5)


def test_bias_does_not_change_dropout_mask():
    query, key, _, _ = inputs((2, 2, 30, 40), width=40)
    identity, masks = torch.eye(40).expand(2, 2, 40, 40), []
    for distances in (None, Distances(torch.tensor([0.1, 0.2]))):
        torch.manual_seed(3)
        arguments = (None, Power.EXP, Visible(), 0.25, 0.3, distances)
        masks.append(attention(query, key, identity, *arguments) > 0)
    assert torch.equal(*masks)


def test_dropout_draws_are_independent():
    """No row, head or column repeats another's mask."""
    shape = (2, 3, 64, 64)
    query, key, _, _ = inputs(shape, width=64)
    identity = torch.eye(64).expand(2, 3, 64, 64)
    torch.manual_seed(0)
    mask = attention(query * 0, key, identity, None, Power.EXP, Visible(), 0.5, 1.0) > 0
    rows = mask.view(-1, 64).float() * 2 - 1
    assert abs(rows.mean()) < 0.03
    between_rows = (rows @ rows.T / 64).fill_diagonal_(0)
    between_columns = (rows.T @ rows / len(rows)).fill_diagonal_(0)
    assert between_rows.abs().max() < 0.75  # 4.5 deviations of 1/8 are 0.56; there are 70,000
    assert between_columns.abs().max() < 0.3
    assert abs((rows[:, 1:] * rows[:, :-1]).mean()) < 0.03
    assert abs((rows[1:] * rows[:-1]).mean()) < 0.03


def test_dropout_draws_do_not_depend_on_chunks(monkeypatch):
    """Chunks of queries, of heads, of sentences, and one chunk for all."""
    query, key, _, _ = inputs((3, 2, 20, 30), width=30)
    identity = torch.eye(30).expand(3, 2, 30, 30)
    masks = []
    for chunk in (1 << 19, 1200, 600, 250):
        monkeypatch.setattr(attention_module, "CHUNK_SCORES", chunk)
        torch.manual_seed(0)
        masks.append(attention(query, key, identity, None, Power.EXP, Visible(), 0.5, 1.0) > 0)
    assert all(torch.equal(masks[0], mask) for mask in masks[1:])


def test_saved_memory_grows_linearly():
    n_saved = {}
    for n in (100, 400):
        with saved_storages() as saved:
            tensors = [tensor.requires_grad_() for tensor in inputs((1, 2, n, n))[:3]]
            attention(*tensors, None, Power.SQUARE, Visible(), 0.1, 0.3).sum().backward()
        n_saved[n] = n_bytes(saved)
    assert n_saved[400] <= 4.1 * n_saved[100]


def test_compile_and_checkpoint_change_nothing():
    tensors = inputs((2, 2, 20, 20))
    alpha = torch.tensor([1.2, 1.7]).view(1, 2, 1, 1)

    def attend(query, key, value, alpha):
        return attention(query * 2, key, value, alpha, Power.ANY, Visible(), 0.1, 0.3) * 3

    results = []
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    for call in (attend, compiled, lambda *args: checkpoint(attend, *args, use_reentrant=False)):
        leaves = [tensor.clone().requires_grad_() for tensor in (*tensors[:3], alpha)]
        torch.manual_seed(1)
        context = call(*leaves)
        context.backward(tensors[3])
        results.append([context.detach(), *(tensor.grad for tensor in leaves)])
    for other in results[1:]:
        for actual, expected in zip(other, results[0], strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_flop_counter_counts_two_products_forward_and_five_backward():
    tensors = inputs((2, 3, 5, 7))
    register_flops()
    with FlopCounterMode(display=False) as counter:
        fused(tensors, None, Power.SQUARE, Visible())
    flops_per_product = 2 * (2 * 3 * 5 * 7) * tensors[0].shape[3]
    assert counter.get_total_flops() == (2 + 5) * flops_per_product


def test_differentiable_once_only():
    query, key, value, _ = inputs((1, 1, 3, 4))
    context = attention(query.requires_grad_(), key, value, None, Power.LINEAR, Visible(), 0.0, 1.0)
    (grad,) = torch.autograd.grad(context.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        grad.sum().backward()


def test_context_can_be_changed_in_place():
    tensors = inputs((2, 2, 20, 20))
    expected = fused(tensors, None, Power.SQUARE, Visible())
    leaves = [tensor.clone().requires_grad_() for tensor in tensors[:3]]
    context = attention(*leaves, None, Power.SQUARE, Visible(), 0.0, 0.3)
    context.mul_(2).backward(tensors[3])
    for leaf, exact in zip(leaves, expected[1:], strict=True):
        torch.testing.assert_close(leaf.grad, exact * 2)


def test_any_layout_of_lengths_and_masks():
    tensors = inputs((4, 2, 9, 30))
    lengths, equal_lengths = torch.tensor([30, 4, 17, 9]), torch.tensor([7, 7, 7, 7])
    mask = torch.rand(4, 1, 9, 30, generator=torch.Generator().manual_seed(1)) > 0.3
    transposed = mask.transpose(-1, -2).contiguous().transpose(-1, -2)
    for plain_visible, other_visible in (
        (Visible(None, lengths), Visible(None, lengths.to(torch.int32))),
        (Visible(None, lengths), Visible(None, torch.stack((lengths, lengths), dim=1)[:, 0])),
        (Visible(None, equal_lengths), Visible(None, torch.tensor(7).expand(4))),
        (Visible(None, equal_lengths), Visible(None, torch.tensor([7]))),
        (Visible(mask), Visible(transposed)),
    ):
        expected, actual = (
            fused(tensors, None, Power.SQUARE, visible)
            for visible in (plain_visible, other_visible)
        )
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_backward_is_equal_within_autocast(monkeypatch):
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", 100)
    tensors = inputs((2, 2, 9, 30))
    results = []
    for inside in (False, True):
        leaves = [one.clone().requires_grad_() for one in tensors[:3]]
        context = attention(*leaves, None, Power.SQUARE, Visible(), 0.0, 0.3)
        with torch.autocast("cpu", enabled=inside):
            context.backward(tensors[3])
        results.append([one.grad for one in leaves])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(2, 2, 0, 5), (2, 2, 5, 0), (0, 2, 3, 4)])
def test_empty_queries_keys_or_batch(shape):
    tensors = inputs(shape)
    results = fused(tensors, None, Power.LINEAR, Visible())
    assert results[0].shape == tensors[0].shape
    assert all((result == 0).all() for result in results)

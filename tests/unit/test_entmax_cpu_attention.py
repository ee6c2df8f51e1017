"""Attention without weights on a CPU, against the formulas in float64 with all weights formed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import headwise.kernels.cpu_attention as attention_module
from headwise.entmax import alpha_entmax
from headwise.kernels.cpu_attention import attention
from headwise.kernels.problem import Distances, Power, Visible
from kernel_marks import needs_kernels
from saved_memory import n_bytes, saved_storages

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


def inputs(shape: tuple[int, int, int, int], width: int = 16) -> list[Tensor]:
    """Queries, keys, values and a gradient of the context."""
    n_batch, n_heads, n_queries, n_keys = shape
    generator = torch.Generator().manual_seed(sum(shape))
    lengths = (n_queries, n_keys, n_keys, n_queries)
    return [torch.randn(n_batch, n_heads, n, width, generator=generator) for n in lengths]


def allowed(
    shape: tuple[int, int, int, int], lengths_B: Tensor, causal: bool, offset: int
) -> Tensor:
    keys = torch.arange(shape[3])
    seen = (keys < lengths_B[:, None])[:, None, None]
    if causal:
        seen = seen & (keys <= (torch.arange(shape[2]) + offset)[:, None])
    return seen


def bias_of(shape: tuple[int, int, int, int], offset: int, distances: Distances) -> Tensor:
    """By loops, (H, Q, K)."""
    bias = torch.zeros(shape[1:], dtype=torch.float64)
    for h, slope in enumerate(distances.slopes_H.tolist()):
        for i in range(offset, offset + shape[2]):
            for j in range(distances.n_prefix, shape[3]):
                if i >= distances.n_prefix:
                    bias[h, i - offset, j] = -slope * abs(i - j)
    return bias


def by_weights(
    given: list[Tensor],
    alpha: Tensor | float,
    seen: Tensor,
    factor: Tensor | float = 1.0,
    bias: Tensor | float = 0.0,
) -> list[Tensor]:
    """Context and gradients of queries, keys, values and, if it is a tensor, alpha."""
    query, key, value = (one.double().requires_grad_() for one in given[:3])
    wanted = [query, key, value]
    if isinstance(alpha, Tensor):
        alpha = alpha.detach().double().requires_grad_()
        wanted.append(alpha)
    scores = query @ key.transpose(-1, -2) * 0.3 + bias
    weights = alpha_entmax(scores, alpha, -1, seen) * factor
    context = weights @ value
    context.backward(given[3].double())
    return [context.detach(), *(one.grad for one in wanted)]


def fused(
    given: list[Tensor],
    alpha: Tensor | None,
    power: Power,
    visible: Visible,
    rate: float = 0.0,
    distances: Distances | None = None,
) -> list[Tensor]:
    wanted = [one.clone().requires_grad_() for one in given[:3]]
    if alpha is not None:
        wanted.append(alpha.clone().requires_grad_())
    learned = wanted[3] if alpha is not None else None
    context = attention(*wanted[:3], learned, power, visible, rate, 0.3, distances)
    context.backward(given[3])
    return [context.detach(), *(one.grad for one in wanted)]


def assert_same(ours: list[Tensor], expected: list[Tensor], limit: float = 3e-6) -> None:
    for mine, exact in zip(ours, expected, strict=True):
        assert mine.shape == exact.shape
        assert (mine - exact).abs().max() <= limit * exact.abs().max().clamp_min(1)


@pytest.mark.parametrize("chunk", [1 << 19, 700], ids=["whole", "chunked"])
@pytest.mark.parametrize("with_pattern", [False, True])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("power", list(Power))
def test_equals_attention_by_weights(
    monkeypatch: pytest.MonkeyPatch, power: Power, name: str, with_pattern: bool, chunk: int
) -> None:
    *sizes, causal, offset = SHAPES[name]
    shape = (sizes[0], sizes[1], sizes[2], sizes[3])
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", chunk)
    given = inputs(shape)
    lengths = torch.linspace(0 if shape[0] > 1 else shape[3] - 3, shape[3], shape[0]).long()
    seen, pattern = allowed(shape, lengths, causal, offset), None
    if with_pattern:
        pattern = torch.rand(1, 1, *shape[2:], generator=torch.Generator().manual_seed(7)) > 0.2
        seen = seen & pattern
    alpha = None
    if power is Power.ANY:
        alpha = torch.linspace(1, 2, shape[1]).view(1, shape[1], 1, 1)
    ours = fused(given, alpha, power, Visible(pattern, lengths, causal, offset))
    assert_same(ours, by_weights(given, FIXED.get(power, alpha), seen))


@pytest.mark.parametrize("n_keys", [30, 130])
@pytest.mark.parametrize("power", list(Power))
def test_a_bad_query_is_bad_in_its_gradient_and_nowhere_else(power: Power, n_keys: int) -> None:
    given = inputs((1, 2, 9, n_keys))
    alpha = torch.full((2, 1, 1), 1.3) if power is Power.ANY else None
    clean = fused(given, alpha, power, Visible())
    given[0] = given[0].clone()
    given[0][:, :, 4] = torch.nan
    found = fused(given, alpha, power, Visible())
    others = torch.arange(9) != 4
    for which in (0, 1):  # context, gradient of the queries
        assert torch.equal(found[which][:, :, others], clean[which][:, :, others])
        assert found[which][:, :, 4].isnan().all()


def test_alpha_of_every_query() -> None:
    given = inputs((2, 2, 9, 30))
    alpha = torch.rand(2, 2, 9, 1, generator=torch.Generator().manual_seed(1)) + 1
    exact = by_weights(given, alpha, torch.tensor(True))
    assert_same(fused(given, alpha, Power.ANY, Visible()), exact)


@pytest.mark.parametrize("power", list(Power))
def test_bfloat16_is_near(power: Power) -> None:
    given = [one.bfloat16() for one in inputs((2, 2, 20, 20))]
    alpha = torch.tensor([1.2, 1.7]).view(1, 2, 1, 1) if power is Power.ANY else None
    lengths = torch.tensor([20, 7])
    ours = fused(given, alpha, power, Visible(None, lengths))
    assert all(one.dtype is torch.bfloat16 for one in ours[:4])
    seen = allowed((2, 2, 20, 20), lengths, False, 0)
    exact = by_weights(given, FIXED.get(power, alpha), seen)
    # rounding moves keys across the border of the support, where sparsemax's derivative jumps by 1
    limits = [0.02] + [0.1 if power is Power.LINEAR else 0.02] * (len(ours) - 1)
    for mine, expected, limit in zip(ours, exact, limits, strict=True):
        error = (mine.double() - expected).norm() / expected.norm()
        assert error < limit


@pytest.mark.parametrize("chunk", [1 << 19, 700], ids=["whole", "chunked"])
@pytest.mark.parametrize("n_prefix", [0, 4])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("power", list(Power))
def test_bias_by_distance(
    monkeypatch: pytest.MonkeyPatch, power: Power, name: str, n_prefix: int, chunk: int
) -> None:
    """With padding, an α of each query, and a head without a slope; the prefix may be cached."""
    *sizes, causal, offset = SHAPES[name]
    shape = (sizes[0], sizes[1], sizes[2], sizes[3])
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", chunk)
    given, lengths = inputs(shape), torch.linspace(shape[3] // 2, shape[3], shape[0]).long()
    slopes = torch.linspace(0.7, 0, shape[1])
    distances = Distances(slopes.requires_grad_(), offset + n_prefix if offset else n_prefix)
    alpha = None
    if power is Power.ANY:
        alpha = torch.linspace(1.05, 1.7, shape[1] * shape[2]).view(1, *shape[1:3], 1)
    bias = bias_of(shape, offset, distances)
    ours = fused(given, alpha, power, Visible(None, lengths, causal, offset), 0.0, distances)
    seen = allowed(shape, lengths, causal, offset)
    exact = by_weights(given, FIXED.get(power, alpha), seen, bias=bias)
    assert_same(ours, exact, limit=1e-5)
    assert slopes.grad is None


@pytest.mark.parametrize("power", list(Power))
def test_bfloat16_is_as_good_with_a_bias(power: Power) -> None:
    shape, worst = (2, 2, 60, 200), []
    given = [one.bfloat16() for one in inputs(shape)]
    alpha = torch.tensor([1.2, 1.4]).view(1, 2, 1, 1) if power is Power.ANY else None
    for slopes in (None, torch.tensor([0.3, 1 / 64])):
        distances, bias = None, torch.zeros(())
        if slopes is not None:
            distances = Distances(slopes, 0)
            bias = bias_of(shape, 0, distances)
        ours = fused(given, alpha, power, Visible(), 0.0, distances)
        exact = by_weights(given, FIXED.get(power, alpha), torch.tensor(True), bias=bias)
        pairs = list(zip(ours, exact, strict=True))[:4]
        worst.append(max(float((a.double() - b).norm() / b.norm()) for a, b in pairs))
    assert worst[1] < 1.1 * worst[0]


def test_sums_over_chunks_keep_their_digits_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", 4)
    query, key = torch.zeros(1, 1, 600, 8).bfloat16(), torch.ones(1, 1, 4, 8).bfloat16()
    given = [query, key, key, torch.ones_like(query)]
    of_value = fused(given, None, Power.EXP, Visible())[3]
    assert (of_value == 600 / 4).all()  # in bfloat16 a quarter more would leave 64 as it is


@pytest.mark.parametrize("chunk", [1 << 19, 700], ids=["whole", "chunked"])
@pytest.mark.parametrize("power", [Power.EXP, Power.ANY, Power.LINEAR])
def test_dropout_is_one_mask_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch, power: Power, chunk: int
) -> None:
    """With values of ones in one column each, the context shows the weights and so the mask."""
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", chunk)
    shape, rate = (2, 2, 30, 40), 0.25
    given = inputs(shape, width=40)
    alpha = torch.tensor([1.1, 1.3]).view(1, 2, 1, 1) if power is Power.ANY else None
    unit = torch.eye(40).expand(2, 2, 40, 40)
    torch.manual_seed(3)
    dropped = attention(given[0], given[1], unit, alpha, power, Visible(), rate, 0.3)
    whole = attention(given[0], given[1], unit, alpha, power, Visible(), 0.0, 0.3)
    factor = torch.where(whole > 0, dropped / whole, 0.0).double()
    kept = factor > 0.5
    torch.testing.assert_close(factor[kept], torch.full_like(factor[kept], 4 / 3))
    share = kept.sum() / (whole > 0).sum()
    n_there = int((whole > 0).sum())
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / n_there) ** 0.5
    torch.manual_seed(3)
    ours = fused(given, alpha, power, Visible(), rate)
    exact = by_weights(given, FIXED.get(power, alpha), torch.tensor(True), factor)
    assert_same(ours, exact, limit=1e-5)


def test_a_bias_changes_no_draws() -> None:
    query, key, _, _ = inputs((2, 2, 30, 40), width=40)
    unit, kept = torch.eye(40).expand(2, 2, 40, 40), []
    for distances in (None, Distances(torch.tensor([0.1, 0.2]))):
        torch.manual_seed(3)
        given = (None, Power.EXP, Visible(), 0.25, 0.3, distances)
        kept.append(attention(query, key, unit, *given) > 0)
    assert torch.equal(*kept)


def test_dropout_draws_are_independent_of_place() -> None:
    """No row, head or column repeats another's mask."""
    shape = (2, 3, 64, 64)
    query, key, _, _ = inputs(shape, width=64)
    unit = torch.eye(64).expand(2, 3, 64, 64)
    torch.manual_seed(0)
    mask = attention(query * 0, key, unit, None, Power.EXP, Visible(), 0.5, 1.0) > 0
    rows = mask.view(-1, 64).float() * 2 - 1
    assert abs(rows.mean()) < 0.03
    between_rows = (rows @ rows.T / 64).fill_diagonal_(0)
    between_columns = (rows.T @ rows / len(rows)).fill_diagonal_(0)
    assert between_rows.abs().max() < 0.75  # 4.5 deviations of 1/8 are 0.56; there are 70,000
    assert between_columns.abs().max() < 0.3
    assert abs((rows[:, 1:] * rows[:, :-1]).mean()) < 0.03
    assert abs((rows[1:] * rows[:-1]).mean()) < 0.03


def test_dropout_draws_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some queries, some heads, some sentences or all at a time."""
    query, key, _, _ = inputs((3, 2, 20, 30), width=30)
    unit = torch.eye(30).expand(3, 2, 30, 30)
    found = []
    for chunk in (1 << 19, 1200, 600, 250):
        monkeypatch.setattr(attention_module, "CHUNK_SCORES", chunk)
        torch.manual_seed(0)
        found.append(attention(query, key, unit, None, Power.EXP, Visible(), 0.5, 1.0) > 0)
    assert all(torch.equal(found[0], mask) for mask in found[1:])


def test_memory_kept_grows_with_length_not_with_its_square() -> None:
    kept = {}
    for n in (100, 400):
        with saved_storages() as saved:
            given = [one.requires_grad_() for one in inputs((1, 2, n, n))[:3]]
            attention(*given, None, Power.SQUARE, Visible(), 0.1, 0.3).sum().backward()
        kept[n] = n_bytes(saved)
    assert kept[400] <= 4.1 * kept[100]


def test_survives_torch_compile_and_checkpoint() -> None:
    given = inputs((2, 2, 20, 20))
    alpha = torch.tensor([1.2, 1.7]).view(1, 2, 1, 1)

    def attend(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor) -> Tensor:
        return attention(query * 2, key, value, alpha, Power.ANY, Visible(), 0.1, 0.3) * 3

    results = []
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    for call in (attend, compiled, lambda *args: checkpoint(attend, *args, use_reentrant=False)):
        wanted = [one.clone().requires_grad_() for one in (*given[:3], alpha)]
        torch.manual_seed(1)
        context = call(*wanted)
        context.backward(given[3])
        results.append([context.detach(), *(one.grad for one in wanted)])
    for other in results[1:]:
        for mine, expected in zip(other, results[0], strict=True):
            torch.testing.assert_close(mine, expected, rtol=0, atol=0)


def test_the_counter_is_told_of_two_products_forward_and_five_backward() -> None:
    given = inputs((2, 3, 5, 7))
    with FlopCounterMode(display=False) as counter:
        fused(given, None, Power.SQUARE, Visible())
    of_one_product = 2 * (2 * 3 * 5 * 7) * given[0].shape[3]
    assert counter.get_total_flops() == (2 + 5) * of_one_product


def test_differentiable_once_only() -> None:
    query, key, value, _ = inputs((1, 1, 3, 4))
    context = attention(query.requires_grad_(), key, value, None, Power.LINEAR, Visible(), 0.0, 1.0)
    (grad,) = torch.autograd.grad(context.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        grad.sum().backward()


def test_the_context_may_be_changed_in_place() -> None:
    given = inputs((2, 2, 20, 20))
    expected = fused(given, None, Power.SQUARE, Visible())
    wanted = [one.clone().requires_grad_() for one in given[:3]]
    context = attention(*wanted, None, Power.SQUARE, Visible(), 0.0, 0.3)
    context.mul_(2).backward(given[3])
    for mine, exact in zip(wanted, expected[1:], strict=True):
        torch.testing.assert_close(mine.grad, exact * 2)


def test_lengths_and_masks_of_any_layout() -> None:
    given = inputs((4, 2, 9, 30))
    plain, same = torch.tensor([30, 4, 17, 9]), torch.tensor([7, 7, 7, 7])
    mask = torch.rand(4, 1, 9, 30, generator=torch.Generator().manual_seed(1)) > 0.3
    turned = mask.transpose(-1, -2).contiguous().transpose(-1, -2)
    for one, other in (
        (Visible(None, plain), Visible(None, plain.to(torch.int32))),
        (Visible(None, plain), Visible(None, torch.stack((plain, plain), dim=1)[:, 0])),
        (Visible(None, same), Visible(None, torch.tensor(7).expand(4))),
        (Visible(None, same), Visible(None, torch.tensor([7]))),
        (Visible(mask), Visible(turned)),
    ):
        expected, found = (fused(given, None, Power.SQUARE, seen) for seen in (one, other))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_backward_within_autocast_is_that_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "CHUNK_SCORES", 100)
    given = inputs((2, 2, 9, 30))
    results = []
    for inside in (False, True):
        wanted = [one.clone().requires_grad_() for one in given[:3]]
        context = attention(*wanted, None, Power.SQUARE, Visible(), 0.0, 0.3)
        with torch.autocast("cpu", enabled=inside):
            context.backward(given[3])
        results.append([one.grad for one in wanted])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(2, 2, 0, 5), (2, 2, 5, 0), (0, 2, 3, 4)])
def test_nothing_to_ask_or_to_see(shape: tuple[int, int, int, int]) -> None:
    given = inputs(shape)
    found = fused(given, None, Power.LINEAR, Visible())
    assert found[0].shape == given[0].shape
    assert all((one == 0).all() for one in found)

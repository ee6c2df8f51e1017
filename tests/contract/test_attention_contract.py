"""Contract of every implementation of attention; a new one is a row of `attention_cases`.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from dataclasses import replace

import pytest
import torch
from benchmarks.saved_storages import n_bytes, saved_storages
from torch.utils.checkpoint import checkpoint

from attention_cases import (
    IMPLEMENTATIONS,
    by_cpp,
    calls,
    case_for,
    equal,
    implementations,
)
from headwise.ops.family import Power

RATE = 0.25
every = implementations()
kernels = implementations(without=["formed weights"])
with_gradients = implementations("gradients", without=["formed weights"])
with_dropout = implementations("dropout")
powers = pytest.mark.parametrize("power", [Power.EXP, Power.ANY, Power.LINEAR])


def errors(actual, expected):
    """Largest errors, relative to the largest value; to one of all, where all are nearly 0."""
    sizes = [float(b.abs().max()) for b in expected]
    pairs = zip(actual, expected, sizes, strict=True)
    least = max(0.01 * max(sizes), 1e-9)
    return [float((a.cpu().double() - b).abs().max()) / max(size, least) for a, b, size in pairs]


def distances_of(actual, expected):
    """Norms of the differences, relative to the norm of the expected values."""
    pairs = zip(actual, expected, strict=False)
    return [float((a.cpu().double() - b).norm() / b.norm()) for a, b in pairs]


def assert_near(implementation, actual, expected):
    """Assert float32 precision of a context and of its gradients."""
    assert [x.shape for x in actual] == [x.shape for x in expected[: len(actual)]]
    found = errors(actual, expected[: len(actual)])
    limits = [implementation.limits[index not in (0, 3)] for index in range(len(found))]
    assert all(map(float.__lt__, found, limits)), (found, limits)


@pytest.fixture
def implementation(request, monkeypatch):
    """An implementation, with its settings."""
    for name, value in request.param.settings:
        monkeypatch.setattr(name, value)
    return request.param


@pytest.mark.parametrize(("implementation", "case"), calls(), indirect=["implementation"])
def test_context_and_gradients_equal_float64(implementation, case):
    tensors = case.inputs()
    before = [x.clone() for x in tensors[:4]]
    assert_near(implementation, implementation.results(case, tensors), case.expected())
    assert equal(tensors[:4], before)


@every
@pytest.mark.parametrize("width", [8, 64, 80, 128, 256])
def test_head_widths(implementation, width):
    case = case_for(implementation, (1, 1, 16, 20), power=Power.ANY, alpha=(1.4,), width=width)
    case = replace(case, alpha=(1.4,) * case.shape[1], deviation=4 / width**0.5)
    assert_near(implementation, implementation.results(case, case.inputs()), case.expected())


@every
@pytest.mark.parametrize(
    ("n_keys", "power", "largest"),
    [*((20, power, 1.7) for power in Power), (300, Power.EXP, 1.0), (300, Power.ANY, 1.3)],
)
def test_half_precision_is_close(implementation, n_keys, power, largest):
    """Rounding moves keys over the border of the support, where sparsemax's derivative jumps."""
    for dtype, limit in implementation.halves:
        case = case_for(implementation, (1, 2, 70, n_keys), power=power, dtype=dtype)
        alphas = torch.linspace(1.2, largest, case.shape[1]).tolist()
        case = replace(case, lengths=(n_keys - 3,), alpha=tuple(alphas))
        actual = implementation.results(case, case.inputs())
        assert {x.dtype for x in actual[:4]} == {dtype}
        assert {x.dtype for x in actual[4:]} <= {torch.float32}
        context, *gradients = distances_of(actual, case.expected())
        assert context < limit
        assert max(gradients, default=0.0) < (0.1 if power is Power.LINEAR else limit)


@every
def test_bias_does_not_lower_half_precision(implementation):
    for dtype, _ in implementation.halves:
        worst = []
        for n_prefix in (None, 0):
            case = case_for(implementation, (2, 2, 60, 200), dtype=dtype, n_prefix=n_prefix)
            results = implementation.results(case, case.inputs())
            worst.append(max(distances_of(results, case.expected())))
        assert worst[1] < (1.1 if implementation.call is by_cpp else 2) * worst[0]


@kernels
@pytest.mark.parametrize(
    ("n_keys", "power"),
    [(30, Power.EXP), (130, Power.EXP), (30, Power.LINEAR), (130, Power.LINEAR), (130, Power.ANY)],
)
def test_nan_stays_in_its_row_and_padding_is_not_read(implementation, power, n_keys):
    case = case_for(implementation, (1, 2, 9, n_keys), power=power, lengths=(n_keys - 5,))
    tensors, n = case.inputs(), case.shape[2]
    clean = implementation.results(case, tensors)
    query, key, value = tensors[:3]
    if "padding is not read" in implementation.has:
        key[:, :, case.lengths[0] :], value[:, :, case.lengths[0] :] = torch.nan, torch.inf
        assert equal(implementation.results(case, tensors), clean)
    query[:, :, 2] = torch.nan
    others = torch.arange(n) != 2
    context, *gradients = implementation.results(case, tensors)
    assert context[:, :, 2].isnan().all()
    if gradients and not (implementation.is_slow and power is Power.LINEAR):  # Triton's is 0
        assert gradients[0][:, :, 2].isnan().all()
    for actual, expected in zip([context, *gradients[:1]], clean[:2], strict=True):
        assert torch.equal(actual[:, :, others], expected[:, :, others])


@every
def test_adversarial_rows(implementation):
    """Ties, equal scores, one key far above the rest, hardly any spread."""
    case = case_for(implementation, (1, 3, 16, 70), power=Power.ANY, alpha=(1.02, 1.5, 1.9))
    tensors = case.inputs()
    query, key, _, grad, _ = tensors
    n = min(4, query.shape[2])
    key[:, :, 10:30] = key[:, :, :1]
    query[:, :, 0] = 0
    query[:, :, 1] *= 4e3
    query[:, :, 2] = 1e4 * torch.sign(query[:, :, 2])
    query[:, :, n - 1] = key[:, :, n - 1] * 1e-3
    grad[:, :, 1 : n - 1] = 0  # float32 scores of 1e4 are 1e-3 apart
    actual, exact = implementation.results(case, tensors), case.exact(tensors)
    large = slice(1, n - 1)
    assert errors([actual[0][:, :, large]], [exact[0][:, :, large]])[0] < 2e-3
    actual[0][:, :, large] = exact[0][:, :, large].to(actual[0])
    assert_near(implementation, actual, exact)


def with_identity(implementation, **changes):
    """A call whose context is the weights, and its tensors."""
    shape = (2, 2, 40, 40)
    case = case_for(implementation, shape, width=40, causal=True, **changes)
    tensors = case.inputs()
    tensors[2] = torch.eye(40, device=case.device).expand(*case.shape[:2], 40, 40)
    return case, tensors


@with_dropout
@powers
def test_dropout_is_equal_forward_and_backward(implementation, power):
    masks = {
        "is_masked": "mask of keys" in implementation.has,
        "documents": 15 if "documents" in implementation.has else None,
    }
    case, tensors = with_identity(implementation, power=power, n_prefix=2, **masks)
    undropped = implementation.results(case, tensors)[0]
    actual = implementation.results(case, tensors, RATE)
    is_kept, is_clear = actual[0] != 0, undropped > 1e-4
    scaled = undropped * is_kept / (1 - RATE)
    torch.testing.assert_close(actual[0][is_clear], scaled[is_clear], rtol=1e-3, atol=0)
    n_nonzero = int((undropped > 0).sum())
    deviation = (RATE * (1 - RATE) / n_nonzero) ** 0.5
    assert abs(float(is_kept.sum() / n_nonzero) - (1 - RATE)) < 4 * deviation
    assert_near(implementation, actual, case.exact(tensors, is_kept.cpu() / (1 - RATE)))


def dropped(implementation, seed=3, **changes):
    """Which weights are kept, of equal ones."""
    case, tensors = with_identity(implementation, **changes)
    tensors[0] = torch.zeros_like(tensors[0])
    return implementation.results(case, tensors, 0.5, seed)[0] > 0


@with_dropout
def test_dropout_draws_are_independent(implementation):
    """No row, head or column repeats another's mask."""
    kept = dropped(implementation, sparse=("fixed", "merged", None, 1, 40)).double()
    past = torch.ones(40, 40).tril()
    signs = (kept.cpu() * 2 - 1) * past
    n = float(past.sum() * kept[..., 0, 0].numel())
    assert abs(float(signs.sum())) < 4 * n**0.5
    for axis in range(4):
        other = signs.roll(1, axis)
        assert abs(float((signs * other).sum())) < 4 * n**0.5


@with_dropout
def test_seed_alone_determines_the_dropout_mask(implementation):
    first = dropped(implementation)
    assert torch.equal(dropped(implementation), first)
    assert torch.equal(dropped(implementation, n_prefix=30), first)
    assert not torch.equal(dropped(implementation, seed=4), first)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(rows, marks=rows[0].marks, id=rows[0].name)
        for call in dict.fromkeys(one.call for one in IMPLEMENTATIONS)
        if len(rows := [x for x in IMPLEMENTATIONS if x.call is call and "dropout" in x.has]) > 1
    ],
)
def test_chunks_do_not_change_the_dropout_mask(rows, monkeypatch):
    masks = []
    for one in (one for one in rows if one.has == rows[0].has):
        with monkeypatch.context() as patch:
            for name, value in one.settings:
                patch.setattr(name, value)
            masks.append(dropped(one))
    assert len(masks) > 1
    assert all(torch.equal(masks[0], mask) for mask in masks)


@every
def test_repetition_does_not_change_bits(implementation, set_threads):
    """Nor do threads, but where torch multiplies matrices."""
    is_own = "many queries" not in implementation.has
    case = case_for(implementation, (40 if is_own else 2, 2, 20, 80), power=Power.ANY, width=64)
    tensors, results = case.inputs(), []
    for n_threads in (1, 1, 2 if is_own else 1):
        set_threads(n_threads)
        results.append(implementation.results(case, tensors))
    assert equal(results[0], results[1])
    assert equal(results[0], results[2])


@every
def test_any_layout_of_lengths_masks_and_tensors(implementation):
    case = case_for(implementation, (3, 2, 9, 30), lengths=(7, 7, 7))
    tensors = case.inputs()
    expected = implementation.results(case, tensors)
    sevens = torch.tensor([7, 1] * 3, device=case.device)
    for lengths in (sevens[::2], sevens[:1], sevens[0].expand(3), sevens[::2].int()):
        if "sparse pattern" not in implementation.has:
            other = implementation.results(replace(case, lengths=lengths), tensors)
            assert equal(other, expected)
    layouts = [
        lambda x: x.contiguous(),
        lambda x: x.mT.contiguous().mT,
        lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    ]
    for layout in layouts:
        actual = implementation.results(case, [layout(x) for x in tensors[:4]] + tensors[4:])
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@implementations("gradients", without=["formed weights"], with_slow=False)
def test_saved_memory_grows_linearly(implementation):
    n_saved = {}
    for n in (100, 400):
        case = case_for(implementation, (1, 2, n, n), power=Power.SQUARE, causal=True)
        with saved_storages() as saved:
            implementation.results(case, case.inputs(), RATE)
        n_saved[n] = n_bytes(saved)
    assert n_saved[400] <= 4.1 * n_saved[100]


@with_dropout
def test_checkpointing_changes_nothing_and_the_context_may_change_in_place(implementation):
    case = case_for(implementation, (1, 2, 20, 20), power=Power.ANY)
    *heads, grad, alpha = case.inputs()

    def attend(*leaves):
        return implementation.call(case, *leaves, RATE)

    def again(*leaves):
        return checkpoint(attend, *leaves, use_reentrant=False)

    expected = implementation.results(case, [*heads, grad, alpha], RATE, seed=1)
    for call in (attend, again):
        leaves = [x.detach().requires_grad_() for x in (*heads, alpha)]
        torch.manual_seed(1)
        context = call(*leaves)
        gradients = torch.autograd.grad(context.mul_(2), leaves, grad / 2)
        torch.testing.assert_close([context / 2, *gradients], expected)


@with_gradients
def test_differentiable_once_only(implementation):
    case = case_for(implementation, (1, 1, 9, 9))
    query, key, value, _, _ = case.inputs()
    context = implementation.call(case, query.requires_grad_(), key, value, None, 0.0)
    (grad,) = torch.autograd.grad(context.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        grad.sum().backward()


@implementations(without=["gradients"])
def test_gradients_are_refused(implementation):
    query, key, value, _, _ = (case := case_for(implementation, (1, 1, 9, 9))).inputs()
    context = implementation.call(case, query.requires_grad_(), key, value, None, 0.0)
    with pytest.raises(RuntimeError, match="differentiated"):
        context.sum().backward()

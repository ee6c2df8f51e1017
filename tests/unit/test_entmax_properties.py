"""Properties of the maps over drawn scores and for every implementation."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.entmax import alpha_entmax

few = settings(max_examples=60, deadline=None, derandomize=True)
values = st.floats(-50, 50, width=32)
rows = st.lists(values, min_size=1, max_size=40).map(lambda row: torch.tensor(row))
numbers = st.floats(1, 2)
alphas = st.one_of(st.sampled_from([1.0, 1.5, 2.0]), numbers, numbers.map(torch.tensor))


def close(first, second, tolerance=1e-6):
    return bool((first - second).abs().max() <= tolerance)


@few
@given(rows, alphas)
def test_weights_are_a_distribution_in_the_order_of_scores(scores, alpha):
    weights = alpha_entmax(scores, alpha)
    assert (weights >= 0).all()
    assert abs(weights.double().sum().item() - 1) <= 5e-7
    ordered = weights[scores.argsort()]
    assert (ordered.diff() >= -1e-7).all()


@few
@given(rows, alphas, st.floats(-100, 100, width=32))
def test_shift_changes_nothing(scores, alpha, shift):
    # in float64, where the shift is exact enough
    moved = alpha_entmax(scores.double() + shift, alpha)
    weights = alpha_entmax(scores.double(), alpha)
    assert close(moved, weights, 1e-9)


@few
@given(rows, alphas, st.randoms(use_true_random=False))
def test_permuted_scores_give_permuted_weights(scores, alpha, random):
    order = list(range(len(scores)))
    random.shuffle(order)
    assert close(alpha_entmax(scores[order], alpha), alpha_entmax(scores, alpha)[order])


@few
@given(rows, alphas, st.data())
def test_masking_equals_removing_keys(scores, alpha, data):
    drawn = st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))
    mask = torch.tensor(data.draw(drawn))
    weights = alpha_entmax(scores, alpha, mask=mask)
    assert (weights[~mask] == 0).all()
    if mask.any():
        assert close(weights[mask], alpha_entmax(scores[mask], alpha))


@few
@given(rows, st.floats(1, 2), st.data())
def test_score_gradients_sum_to_zero_on_the_support(scores, alpha, data):
    drawn = st.lists(values, min_size=len(scores), max_size=len(scores))
    grad = torch.tensor(data.draw(drawn), dtype=torch.float64)
    scores = scores.double().requires_grad_()
    alpha_1 = torch.tensor([alpha], dtype=torch.float64, requires_grad=True)
    weights = alpha_entmax(scores, alpha_1)
    weights.backward(grad)
    assert (scores.grad[weights == 0] == 0).all()
    assert abs(scores.grad.sum().item()) <= 1e-9
    assert alpha_1.grad.isfinite().all()


@few
@given(rows)
def test_larger_alpha_gives_more_weight_to_the_best_key(scores):
    best = [alpha_entmax(scores.double(), 1 + step / 8).max().item() for step in range(9)]
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(best))


@pytest.mark.parametrize("alpha", [1.3, 1.5, 1.9, 2.0])
def test_no_negative_weights_or_gradients_off_the_support(alpha, every_implementation):
    generator = torch.Generator().manual_seed(1)
    # so many rows that some keys are close to the border of the support; fewer in the interpreter
    shape = (500 if every_implementation == "triton" else 20_000, 30)
    scores = (torch.randn(shape, generator=generator) * 2).requires_grad_()
    weights = alpha_entmax(scores, alpha)
    weights.backward(torch.randn(shape, generator=generator))
    assert (weights >= 0).all()
    assert (weights == 0).any()
    assert not scores.grad[weights == 0].any()


@pytest.mark.usefixtures("every_implementation")
@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0])
@pytest.mark.parametrize("n_keys", [7, 31, 60, 93])
def test_largest_score_at_any_position_gets_all_weight(n_keys, alpha):
    weights = alpha_entmax(50 * torch.eye(n_keys), alpha)
    assert torch.equal(weights, torch.eye(n_keys))


@pytest.mark.usefixtures("every_implementation")
@pytest.mark.parametrize("n_axes", [2, 3, 5, 6])
def test_masks_and_alphas_broadcast_over_any_axes(n_axes):
    generator = torch.Generator().manual_seed(2)
    shape = (2, 3, 1, 2, 4, 5)[-n_axes:]
    scores = torch.randn(shape, generator=generator)
    mask = torch.rand(4, 5, generator=generator) > 0.3
    alpha = torch.linspace(1.2, 1.8, 4)[:, None]
    actual = alpha_entmax(scores, alpha, mask=mask)
    expected = alpha_entmax(scores, alpha.expand(*shape[:-1], 1), mask=mask.expand(shape))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.usefixtures("every_implementation")
def test_alpha_rounded_above_2_is_treated_as_2():
    scores = torch.randn(50, 9, generator=torch.Generator().manual_seed(3))
    rounded = torch.tensor(2.0).nextafter(torch.tensor(3.0))
    actual = alpha_entmax(scores, rounded)
    torch.testing.assert_close(actual, alpha_entmax(scores, 2.0), rtol=0, atol=5e-7)

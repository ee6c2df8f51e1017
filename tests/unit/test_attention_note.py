"""The tanh, ymish and plain activations of the YUBERT note compared with its formulas.

Axes: B batch, H heads, E head width, Q queries, K keys.
"""

import math

import pytest
import torch

from headwise.attention.activations import ACTIVATIONS, Activation
from headwise.attention.mask import Mask
from headwise.attention.parts import ScoreContext
from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.attention.rows import ROWS, Elementwise
from headwise.attention.tanh import Tanh
from headwise.attention.ymish import Ymish

B, H, E, Q, K = 2, 3, 4, 5, 7
PLACE = Place("encoder_self", 1, H, E)
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772

FORMULAS = {
    "tanh": lambda x: (math.exp(x) - math.exp(-x)) / (math.exp(x) + math.exp(-x)),
    "ymish": lambda x: x * math.tanh(math.log(1 + math.exp(abs(x)))),
    "selu": lambda x: SELU_SCALE * (x if x > 0 else SELU_ALPHA * (math.exp(x) - 1)),
    "elu": lambda x: x if x > 0 else math.exp(x) - 1,
    "leaky_relu": lambda x: x if x > 0 else 0.1 * x,
    "swish": lambda x: x / (1 + math.exp(-x)),
}


class KeysPerHead(Pattern):
    """A pattern for the tests: visible keys depend on the head; head 1 has none at query 0."""

    def allowed(self, query_positions_Q, n_keys, causal, key_lengths_B):
        heads = torch.arange(1, self.place.n_heads + 1)[:, None, None]
        distance = query_positions_Q[:, None] + torch.arange(n_keys)
        return ((distance + heads) % (heads + 1) != 1)[None]


class Shifted(Elementwise):
    """A function for the tests that is not 0 at 0."""

    l2_acts_on = "weights"

    def activate(self, scores_BHQK, typical_size):
        return scores_BHQK + 3.0


MASKS = {
    "all": Mask(),
    "padding": Mask(key_lengths_B=torch.tensor([K, 3])),
    "causal": Mask(causal=True, query_offset=1),
    "pattern": Mask(torch.tensor([4, K]), causal=True, pattern=KeysPerHead(PLACE)),
}


def make(name, rows):
    if name in ACTIVATIONS:
        return Activation(PLACE, name, rows)
    return {"tanh": Tanh, "ymish": Ymish}[name](PLACE, rows)


def random_scores(dtype=torch.float64, scale=2.0):
    generator = torch.Generator().manual_seed(3)
    return (scale * torch.randn(B, H, Q, K, generator=generator, dtype=torch.float64)).to(dtype)


def context_of(mask):
    return ScoreContext(mask, torch.zeros(B, H, Q, E))


def allowed_by(mask):
    dense = mask.dense(Q, K, torch.device("cpu"))
    return torch.ones(B, H, Q, K).bool() if dense is None else dense.expand(B, H, Q, K)


def row_by_hand(scores, allowed, weigh, rows, l2_of_weights):
    """One row of weights; `weigh` gets a score and the number of allowed keys."""
    n = sum(allowed)
    x = [s if a else 0.0 for s, a in zip(scores, allowed, strict=True)]
    if rows == "l2" and not l2_of_weights and n:
        norm = math.sqrt(math.fsum(v * v for v in x))
        x = [v / norm for v in x]
    w = [weigh(v, n) if a else 0.0 for v, a in zip(x, allowed, strict=True)]
    if rows == "sqrt" and n:
        w = [v / math.sqrt(n) for v in w]
    if rows == "l2" and l2_of_weights and n:
        norm = math.sqrt(math.fsum(v * v for v in w))
        w = [v / norm for v in w]
    return w


def by_hand(scores, mask, weigh, rows, of_weights):
    allowed = allowed_by(mask)
    out = [
        row_by_hand(s.tolist(), a.tolist(), weigh, rows, of_weights)
        for s, a in zip(scores.reshape(-1, K), allowed.reshape(-1, K), strict=True)
    ]
    return torch.tensor(out, dtype=torch.float64).view(B, H, Q, K)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", FORMULAS)
def test_weights_follow_the_formula(name, rows, mask):
    scores = random_scores()
    formula = FORMULAS[name]
    expected = by_hand(scores, MASKS[mask], lambda x, n: formula(x), rows, name == "tanh")
    weights = make(name, rows)(scores, context_of(MASKS[mask]))
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)
    assert (weights[~allowed_by(MASKS[mask])] == 0).all()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("rows", ROWS)
def test_dead_zone_follows_the_formula(rows, mask):
    kappa, theta = 3.0, 0.8

    def weigh(x, n):
        size = abs(x) * math.sqrt(n) if rows == "l2" else abs(x)
        return x * math.tanh(math.log(1 + math.exp(kappa * (size - theta))))

    scores = random_scores()
    normaliser = Ymish(PLACE, rows, dead_zone=True, kappa=kappa, theta=theta)
    weights = normaliser(scores, context_of(MASKS[mask]))
    expected = by_hand(scores, MASKS[mask], weigh, rows, of_weights=False)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_with_an_empty_row(name, rows):
    mask = Mask(torch.tensor([4, 0]), causal=True, pattern=KeysPerHead(PLACE))
    empty = ~allowed_by(mask).any(-1)
    assert empty[0].any()  # by the pattern; the other sentence has no keys
    scores = random_scores().requires_grad_()
    normaliser, context = make(name, rows), context_of(mask)
    assert torch.autograd.gradcheck(lambda s: normaliser(s, context), (scores,))
    weights = normaliser(scores, context)
    (gradient,) = torch.autograd.grad(weights.square().sum() + weights.sum(), scores)
    assert (weights[empty] == 0).all()
    assert (gradient[empty] == 0).all()
    assert (gradient[~allowed_by(mask)] == 0).all()
    assert (gradient[~empty].abs().sum(-1) > 0).any()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", FORMULAS)
def test_zero_scores_have_zero_weights_and_finite_gradients(name, rows):
    scores = torch.zeros(B, H, Q, K, requires_grad=True)
    weights = make(name, rows)(scores, context_of(MASKS["padding"]))
    weights.sum().backward()
    assert (weights == 0).all()
    assert torch.isfinite(scores.grad).all()
    assert (scores.grad[allowed_by(MASKS["padding"])] != 0).all()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", FORMULAS)
def test_half_precision_is_computed_in_float32(name, rows):
    scores = random_scores(torch.bfloat16)
    normaliser, context = make(name, rows), context_of(MASKS["padding"])
    with torch.autocast("cpu", torch.bfloat16):
        weights = normaliser(scores, context)
    assert weights.dtype == torch.bfloat16
    assert torch.equal(weights, normaliser(scores.float(), context).bfloat16())
    assert normaliser(scores.float(), context).dtype == torch.float32


@pytest.mark.parametrize("rows", ROWS)
def test_masked_keys_get_no_weight_from_a_shifted_function(rows):
    mask = MASKS["pattern"]
    weights = Shifted(PLACE, rows)(random_scores(), context_of(mask))
    assert (weights[~allowed_by(mask)] == 0).all()
    expected = by_hand(random_scores(), mask, lambda x, n: x + 3.0, rows, of_weights=True)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)

"""Length scaling compared with its formula, and α that depends on the query."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from torch import Tensor

from headwise.attention.alibi import ALiBi
from headwise.attention.alpha_entmax import AlphaEntmax
from headwise.attention.length_scaling import LengthScaling
from headwise.attention.mask import Mask
from headwise.attention.parts import Normaliser, ScoreContext
from headwise.attention.place import Place
from headwise.attention.rotary import Rotary
from headwise.attention.scores import ScoreAttention
from headwise.attention.softmax import Softmax
from headwise.attention.ssmax import SSMax
from headwise.entmax import alpha_entmax
from headwise.errors import ConfigError
from weights_recorded import with_weights

B, H, E, Q = 2, 3, 4, 5
D = H * E
PLACE = Place("encoder_self", 1, H, E)
LENGTHS = [5, 2]


def scaling(learned, delta=1.0, seed=0):
    """Make a module in float64 with parameters different from their initial values."""
    torch.manual_seed(seed)
    module = LengthScaling(PLACE, learned=learned, delta=delta).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def states(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, Q, D, generator=generator, dtype=torch.float64)


def by_hand(module, query, n_visible):
    """δ + β (log n)^γ with n = visible keys + 1, one head and query at a time."""
    factors = torch.zeros(B, H, Q, 1, dtype=torch.float64)
    parameters = {name: parameter.tolist() for name, parameter in module.named_parameters()}
    for row in range(B):
        for head in range(H):
            for position in range(Q):
                beta, gamma = parameters["beta"][head], parameters["gamma"][head]
                if "beta_weight" in parameters:
                    x = query[row, position].tolist()
                    u, v = parameters["beta_weight"][head], parameters["gamma_weight"][head]
                    beta += math.fsum(a * b for a, b in zip(u, x, strict=True))
                    gamma += math.fsum(a * b for a, b in zip(v, x, strict=True))
                    beta, gamma = math.log(1 + math.exp(beta)), 2 * math.tanh(gamma)
                log_n = math.log(n_visible[row][position] + 1)
                factors[row, head, position] = module.delta + beta * log_n**gamma
    return factors


@pytest.mark.parametrize("learned", ["query", "head"])
@pytest.mark.parametrize("delta", [1.0, 0.25])
@pytest.mark.parametrize("causal", [True, False])
def test_factor_follows_the_formula(learned, delta, causal):
    module, query = scaling(learned, delta), states()
    mask = Mask(key_lengths_B=torch.tensor(LENGTHS), causal=causal)
    n_visible = [[min(i + 1, n) if causal else n for i in range(Q)] for n in LENGTHS]
    factors = module(query, mask.n_visible(Q, Q, query.device))
    assert factors.dtype is torch.float64
    expected = by_hand(module, query, n_visible)
    torch.testing.assert_close(factors.expand_as(expected), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("learned", ["query", "head"])
def test_gradients_of_the_factor(learned):
    module, query = scaling(learned), states().requires_grad_()
    names = [name for name, _ in module.named_parameters()]
    visible = torch.tensor([[1, 2, 3, 4, 5], [0, 1, 1, 2, 2]])  # a padded row may see no key

    def factor(query, *parameters):
        by_name = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, by_name, (query, visible))

    assert torch.autograd.gradcheck(factor, (query, *module.parameters()))


@pytest.mark.parametrize("learned", ["query", "head"])
def test_factor_multiplies_the_scores(learned):
    module, query = scaling(learned), states()
    attention = ScoreAttention(PLACE, Softmax(PLACE), None, 0.0, module).double().eval()
    mask = Mask(key_lengths_B=torch.tensor(LENGTHS))
    _, weights = with_weights(attention, query, query, query, mask)
    factors = by_hand(module, query, [[n] * Q for n in LENGTHS])
    q = attention.split(attention.query(query)).detach()
    k = attention.split(attention.key(query)).detach()
    for row, length in enumerate(LENGTHS):
        for head in range(H):
            for position in range(Q):
                scores = [
                    float(factors[row, head, position] * (q[row, head, position] @ key))
                    / math.sqrt(E)
                    for key in k[row, head, :length]
                ]
                total = math.fsum(map(math.exp, scores))
                expected = [math.exp(score) / total for score in scores] + [0.0] * (Q - length)
                assert weights[row, head, position].tolist() == pytest.approx(expected, abs=1e-10)


def test_initial_values_of_parameters():
    torch.manual_seed(0)
    many_heads = Place("cross", 1, 5000, 2)
    per_head = LengthScaling(many_heads, learned="head")
    assert per_head.beta.min() >= 0.1
    assert per_head.beta.max() <= 1.0
    assert per_head.beta.mean().item() == pytest.approx(0.55, abs=0.02)
    assert per_head.gamma.mean().item() == pytest.approx(0.0, abs=0.01)
    assert per_head.gamma.std().item() == pytest.approx(0.1, abs=0.01)
    per_query = LengthScaling(Place("cross", 1, 4, 64))
    assert per_query.beta_weight.abs().max() <= 1 / 16
    assert per_query.beta_weight.std().item() == pytest.approx(1 / 16 / math.sqrt(3), abs=0.005)


class QueryRecorder(Normaliser):
    """Record the queries in the context of a normaliser."""

    queries: Tensor

    def forward(self, scores_BHQK, context):
        self.queries = context.queries_BHQE
        return scores_BHQK.softmax(-1)


def dependent(share="none"):
    """Make α-entmax in float64 with parameters different from their initial values."""
    torch.manual_seed(0)
    module = AlphaEntmax(PLACE, depends_on="query", share=share).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return module


def queries():
    return states(3).view(B, Q, H, E).transpose(1, 2)


@pytest.mark.parametrize("share", ["none", "layer"])
def test_alpha_of_a_query_follows_the_formula(share):
    module, q = dependent(share), queries()
    torch.manual_seed(1)
    scores = torch.randn(B, H, Q, Q, dtype=torch.float64)
    context = ScoreContext(Mask(), q)
    weights = module(scores, context)
    alphas = module.query_stats(context)["alpha"]
    assert alphas.shape == (B, H, Q)
    assert not alphas.requires_grad
    for row in range(B):
        for head in range(H):
            index = head if share == "none" else 0
            a, w = module.alpha_logit[index].item(), module.alpha_weight[index].tolist()
            for position in range(Q):
                product = math.fsum(map(operator.mul, w, q[row, head, position].tolist()))
                alpha = 1.01 + 0.99 / (1 + math.exp(-(a + product)))
                assert alphas[row, head, position].item() == pytest.approx(alpha, abs=1e-10)
                expected = alpha_entmax(scores[row, head, position], alpha)
                query_weights = weights[row, head, position]
                torch.testing.assert_close(query_weights, expected, rtol=0, atol=1e-10)


def test_initial_alpha_of_a_query_equals_that_of_the_head():
    torch.manual_seed(5)
    fixed = AlphaEntmax(PLACE)
    torch.manual_seed(5)
    dependent = AlphaEntmax(PLACE, depends_on="query")
    context = ScoreContext(Mask(), queries().float())
    expected = fixed.alpha()[:, None].expand(B, H, Q)
    torch.testing.assert_close(dependent.query_stats(context)["alpha"], expected, rtol=0, atol=0)
    scores = torch.randn(B, H, Q, Q)
    torch.testing.assert_close(dependent(scores, context), fixed(scores, context))


def test_alpha_of_a_query_uses_unscaled_queries_in_full_precision():
    recorder = QueryRecorder(PLACE)
    attention = ScoreAttention(PLACE, recorder, None, 0.0, LengthScaling(PLACE))
    x = states().float()
    attention(x, x, x, Mask())
    torch.testing.assert_close(recorder.queries, attention.split(attention.query(x)))
    module = AlphaEntmax(PLACE, depends_on="query")
    with torch.no_grad():
        module.alpha_weight.normal_()
    expected = module.query_alpha(queries().float())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(module.query_alpha(queries().float()), expected, rtol=0, atol=0)


def test_ssmax_is_its_formula():
    module = SSMax(PLACE, reference=16)
    with torch.no_grad():
        module.beta.copy_(torch.tensor([1.0, 0.5, 2.0]))
    n_visible = torch.tensor([[1, 2, 16, 64, 0]])
    factor = module(states().float(), n_visible)
    for head, beta in enumerate([1.0, 0.5, 2.0]):
        expected = [beta * math.log(max(n, 1)) / math.log(16) for n in n_visible[0].tolist()]
        assert factor[0, head, :, 0].tolist() == pytest.approx(expected)
    assert set(dict(SSMax(PLACE, 16, learned=False).named_parameters())) == set()


def test_ssmax_of_heads_without_positions():
    module = SSMax(PLACE, 16, heads="without_positions")
    ScoreAttention(PLACE, Softmax(PLACE), None, 0.0, module, ALiBi("half").at(PLACE))
    factor = module(states().float(), torch.tensor([[256]]))
    assert factor[0, :, 0, 0].tolist() == [1.0, 1.0, 2.0]
    with pytest.raises(ConfigError, match=r"scaling.heads must be all"):
        ScoreAttention(PLACE, Softmax(PLACE), None, 0.0, module, Rotary().at(PLACE))
    module = SSMax(PLACE, 16, heads="without_positions")
    ScoreAttention(PLACE, Softmax(PLACE), None, 0.0, module)
    assert module(states().float(), torch.tensor([[256]]))[0, :, 0, 0].tolist() == [2.0] * 3


def test_scaling_that_needs_weights_cannot_be_added_after_training():
    assert SSMax.unlearned({"reference": 9}) == {"reference": 9, "learned": False}
    with pytest.raises(ConfigError, match="LengthScaling has weights"):
        LengthScaling.unlearned({})

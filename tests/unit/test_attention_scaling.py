"""Length scaling against its formula written out, and α that depends on the query."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from torch import Tensor

from headwise.attention.alpha_entmax import AlphaEntmax
from headwise.attention.length_scaling import LengthScaling
from headwise.attention.mask import Mask
from headwise.attention.parts import Normaliser, ScoreContext
from headwise.attention.place import Place
from headwise.attention.scores import ScoreAttention
from headwise.attention.softmax import Softmax
from headwise.entmax import alpha_entmax
from headwise.errors import ConfigError
from weights_recorded import with_weights

B, H, E, Q = 2, 3, 4, 5
D = H * E
PLACE = Place("encoder_self", 1, H, E)
LENGTHS = [5, 2]


def scaling(learned: str, delta: float = 1.0, seed: int = 0) -> LengthScaling:
    """In float64, its biases and numbers away from their start."""
    torch.manual_seed(seed)
    module = LengthScaling(PLACE, learned=learned, delta=delta).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def states(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, Q, D, generator=generator, dtype=torch.float64)


def by_hand(module: LengthScaling, query: Tensor, n_visible: list[list[int]]) -> Tensor:
    """δ + β (log n)^γ with n = visible keys + 1, one head and query at a time."""
    factors = torch.zeros(B, H, Q, 1, dtype=torch.float64)
    own = {name: parameter.tolist() for name, parameter in module.named_parameters()}
    for row in range(B):
        for head in range(H):
            for position in range(Q):
                beta, gamma = own["beta"][head], own["gamma"][head]
                if "beta_weight" in own:
                    x = query[row, position].tolist()
                    u, v = own["beta_weight"][head], own["gamma_weight"][head]
                    beta += math.fsum(a * b for a, b in zip(u, x, strict=True))
                    gamma += math.fsum(a * b for a, b in zip(v, x, strict=True))
                    beta, gamma = math.log(1 + math.exp(beta)), 2 * math.tanh(gamma)
                log_n = math.log(n_visible[row][position] + 1)
                factors[row, head, position] = module.delta + beta * log_n**gamma
    return factors


@pytest.mark.parametrize("learned", ["query", "head"])
@pytest.mark.parametrize("delta", [1.0, 0.25])
@pytest.mark.parametrize("causal", [True, False])
def test_the_factor_is_that_of_the_formula(learned: str, delta: float, causal: bool) -> None:
    module, query = scaling(learned, delta), states()
    mask = Mask(key_lengths_B=torch.tensor(LENGTHS), causal=causal)
    n_visible = [[min(i + 1, n) if causal else n for i in range(Q)] for n in LENGTHS]
    found = module(query, mask.n_visible(Q, Q, query.device))
    assert found.dtype is torch.float64
    expected = by_hand(module, query, n_visible)
    torch.testing.assert_close(found.expand_as(expected), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("learned", ["query", "head"])
def test_gradients_of_the_factor(learned: str) -> None:
    module, query = scaling(learned), states().requires_grad_()
    names = [name for name, _ in module.named_parameters()]
    visible = torch.tensor([[1, 2, 3, 4, 5], [0, 1, 1, 2, 2]])  # a padded row may see no key

    def factor(query: Tensor, *parameters: Tensor) -> Tensor:
        own = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, own, (query, visible))

    assert torch.autograd.gradcheck(factor, (query, *module.parameters()))


@pytest.mark.parametrize("learned", ["query", "head"])
def test_it_multiplies_the_scores_of_whatever_follows(learned: str) -> None:
    module, query = scaling(learned), states()
    attention = ScoreAttention(PLACE, Softmax(PLACE), None, 0.0, module).double().eval()
    mask = Mask(key_lengths_B=torch.tensor(LENGTHS))
    _, found = with_weights(attention, query, query, query, mask)
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
                assert found[row, head, position].tolist() == pytest.approx(expected, abs=1e-10)


def test_where_free_numbers_and_maps_start() -> None:
    torch.manual_seed(0)
    wide = Place("cross", 1, 5000, 2)
    free = LengthScaling(wide, learned="head")
    assert free.beta.min() >= 0.1
    assert free.beta.max() <= 1.0
    assert free.beta.mean().item() == pytest.approx(0.55, abs=0.02)
    assert free.gamma.mean().item() == pytest.approx(0.0, abs=0.01)
    assert free.gamma.std().item() == pytest.approx(0.1, abs=0.01)
    mapped = LengthScaling(Place("cross", 1, 4, 64))
    assert mapped.beta_weight.abs().max() <= 1 / 16
    assert mapped.beta_weight.std().item() == pytest.approx(1 / 16 / math.sqrt(3), abs=0.005)


def test_statistics_only_where_they_belong_to_the_head() -> None:
    free = LengthScaling(PLACE, learned="head")
    assert free.stats().keys() == {"scale_beta", "scale_gamma"}
    assert torch.equal(free.stats()["scale_gamma"], free.gamma)
    assert not any(value.requires_grad for value in free.stats().values())
    assert LengthScaling(PLACE, learned="query").stats() == {}
    assert free.head_axes == {"beta": 0, "gamma": 0}
    assert LengthScaling(PLACE).head_axes.keys() == {"beta", "gamma", "beta_weight", "gamma_weight"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"learned": "heads"}, "learned"), ({"delta": -1.0}, "delta"), ({"delta": math.nan}, "delta")],
)
def test_length_scaling_refuses_what_it_cannot_be(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        LengthScaling(PLACE, **settings)  # type: ignore[arg-type]


class Seen(Normaliser):
    """Keeps the queries that a normaliser is shown."""

    queries: Tensor

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        self.queries = context.queries_BHQE
        return scores_BHQK.softmax(-1)


def dependent(share: str = "none") -> AlphaEntmax:
    """In float64, away from its start."""
    torch.manual_seed(0)
    module = AlphaEntmax(PLACE, depends_on="query", share=share).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return module


def queries() -> Tensor:
    return states(3).view(B, Q, H, E).transpose(1, 2)


@pytest.mark.parametrize("share", ["none", "layer"])
def test_alpha_of_a_query_is_that_of_the_formula(share: str) -> None:
    module, q = dependent(share), queries()
    torch.manual_seed(1)
    scores = torch.randn(B, H, Q, Q, dtype=torch.float64)
    context = ScoreContext(Mask(), q)
    weights = module(scores, context)
    found = module.query_stats(context)["alpha"]
    assert found.shape == (B, H, Q)
    assert not found.requires_grad
    for row in range(B):
        for head in range(H):
            own = head if share == "none" else 0
            a, w = module.alpha_logit[own].item(), module.alpha_weight[own].tolist()
            for position in range(Q):
                product = math.fsum(map(operator.mul, w, q[row, head, position].tolist()))
                alpha = 1.01 + 0.99 / (1 + math.exp(-(a + product)))
                assert found[row, head, position].item() == pytest.approx(alpha, abs=1e-10)
                expected = alpha_entmax(scores[row, head, position], alpha)
                of_query = weights[row, head, position]
                torch.testing.assert_close(of_query, expected, rtol=0, atol=1e-10)


def test_alpha_of_a_query_starts_as_that_of_the_head() -> None:
    torch.manual_seed(5)
    fixed = AlphaEntmax(PLACE)
    torch.manual_seed(5)
    dependent = AlphaEntmax(PLACE, depends_on="query")
    context = ScoreContext(Mask(), queries().float())
    expected = fixed.alpha()[:, None].expand(B, H, Q)
    torch.testing.assert_close(dependent.query_stats(context)["alpha"], expected, rtol=0, atol=0)
    scores = torch.randn(B, H, Q, Q)
    torch.testing.assert_close(dependent(scores, context), fixed(scores, context))


def test_alpha_of_a_query_sees_queries_before_scaling_and_in_full_precision() -> None:
    seen = Seen(PLACE)
    attention = ScoreAttention(PLACE, seen, None, 0.0, LengthScaling(PLACE))
    x = states().float()
    attention(x, x, x, Mask())
    torch.testing.assert_close(seen.queries, attention.split(attention.query(x)))
    module = AlphaEntmax(PLACE, depends_on="query")
    with torch.no_grad():
        module.alpha_weight.normal_()  # type: ignore[union-attr]
    plain = module.query_alpha(queries().float())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(module.query_alpha(queries().float()), plain, rtol=0, atol=0)


def test_what_depends_on_queries_is_no_statistic_of_the_head() -> None:
    fixed, own = AlphaEntmax(PLACE), dependent()
    context = ScoreContext(Mask(), queries())
    assert fixed.stats().keys() == {"alpha"}
    assert fixed.query_stats(context) == {}
    assert own.stats() == {}
    assert fixed.head_axes == {"alpha_logit": 0}
    assert own.head_axes == {"alpha_logit": 0, "alpha_weight": 0}
    assert AlphaEntmax(PLACE, depends_on="query", share="layer").head_axes == {}
    with pytest.raises(ConfigError, match="depends_on"):
        AlphaEntmax(PLACE, depends_on="queries")

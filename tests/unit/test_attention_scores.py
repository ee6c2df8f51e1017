"""Attention by scores: projections, length scaling, and α, against their formulas.

Axes: B batch, H heads, E head width, Q queries, K keys.
"""

import math
from contextlib import suppress

import pytest
import torch
from torch import nn

import oracle
from headwise.attention.alibi import ALiBi
from headwise.attention.alpha_entmax import AlphaEntmax
from headwise.attention.attention import ScoreAttention
from headwise.attention.build import AttentionFactory, completed
from headwise.attention.length_scaling import LengthScaling
from headwise.attention.mask import Mask
from headwise.attention.normaliser import Normaliser, ScoreContext
from headwise.attention.place import Place
from headwise.attention.recorder import recorded_weights
from headwise.attention.rotary import Rotary
from headwise.attention.softmax import Softmax
from headwise.attention.ssmax import SSMax
from headwise.config.register import group_node
from headwise.errors import ConfigError
from headwise.ops import linear
from weights_recorded import with_weights

B, H, E, Q, K = 2, 3, 4, 5, 7
D, PLACE = H * E, Place("encoder_self", 1, H, E)
LENGTHS = torch.tensor([5, 2])
LEARNED = pytest.mark.parametrize("learned", ["query", "head"])


def moved(module, size):
    """A module in float64 with parameters different from their initial values."""
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return module


def states(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, Q, D, generator=generator, dtype=torch.float64)


# -- layers -----------------------------------------------------------------------------------


def test_recorders_get_weights_until_detached():
    sites = ("encoder_self", "cross")
    model = nn.ModuleList(
        ScoreAttention(place, Softmax(place), None, dropout=0.0)
        for place in (Place(site, layer, H, E) for site in sites for layer in (1, 2))
    )
    states = torch.randn(B, Q, H * E)

    def run():
        for attention in model:
            attention(states, states, states, Mask())

    with recorded_weights(model) as outer:
        with suppress(RuntimeError), recorded_weights(model[0]) as inner:
            run()
            raise RuntimeError("stop")
        for site in sites:
            assert list(outer[site]) == [1, 2]
        assert inner == {"encoder_self": {1: outer["encoder_self"][1]}}
        first_weights = inner["encoder_self"][1]
        run()
    assert inner["encoder_self"][1] is first_weights, "the inner recorder was not detached"
    assert outer["encoder_self"][1] is not first_weights
    before = outer["cross"][2]
    run()
    assert outer["cross"][2] is before
    assert not any(attention.recorders for attention in model)


def test_softmax_attention_equals_torch_multihead():
    torch.manual_seed(0)
    attention = ScoreAttention(PLACE, Softmax(PLACE), None, dropout=0.0)
    reference = nn.MultiheadAttention(H * E, H, batch_first=True)
    with torch.no_grad():
        parts = (attention.query, attention.key, attention.value)
        reference.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        reference.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        reference.out_proj.weight.copy_(attention.output.weight)
        reference.out_proj.bias.copy_(attention.output.bias)
    query, key = torch.randn(B, Q, H * E), torch.randn(B, K, H * E)
    lengths = torch.tensor([K, 4])
    padding = torch.arange(K) >= lengths[:, None]
    options = {"key_padding_mask": padding, "average_attn_weights": False}
    expected, weights = reference(query, key, key, **options)
    context, recorded = with_weights(attention, query, key, key, Mask(key_lengths_B=lengths))
    torch.testing.assert_close(context, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(recorded, weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_self", [True, False])
def test_joined_projections_in_bfloat16(monkeypatch, is_self):
    torch.manual_seed(0)
    place = Place("encoder_self", 1, 3, E, width=4 * E, qk_dim=6)  # a head was pruned
    attention = ScoreAttention(place, Softmax(place), None, dropout=0.0)
    query, key = torch.randn(B, Q, 4 * E), torch.randn(B, K, 4 * E)
    results, joined, cat = [], [], torch.cat

    def counted(tensors, *arguments, **options):
        joined.append(len(tensors))
        return cat(tensors, *arguments, **options)

    monkeypatch.setattr(linear, "TRAINING_DTYPES", (torch.bfloat16,))  # on any processor
    monkeypatch.setattr(torch, "cat", counted)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            context = attention(query, *([query] * 2 if is_self else [key] * 2), Mask())
        grads = torch.autograd.grad(context.float().square().sum(), list(attention.parameters()))
        results.append((context, *grads))
        attention.value.register_forward_hook(lambda *_: None)  # layers with hooks are called
    assert joined == [3 if is_self else 2] * 2  # weights and biases, in the first call only
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=2**-6, atol=2**-6)


def test_saved_settings_include_instead():
    node = {**group_node("attention", "softmax"), "instead": {"cross": "alpha_entmax"}}
    saved = completed("attention", node)
    assert saved["instead"] == {"cross": group_node("attention", "alpha_entmax")}
    saved["instead"]["cross"]["alpha_init"] = 1.25  # not the value of the yaml
    attention = AttentionFactory({"attention": saved})(Place("cross", 1, H, E))
    torch.testing.assert_close(attention.stats()["alpha"], torch.full((H,), 1.25))
    assert AttentionFactory({"attention": saved})(PLACE).stats() == {}


# -- length scaling ---------------------------------------------------------------------------


def scaling(learned, delta=1.0):
    torch.manual_seed(0)
    return moved(LengthScaling(PLACE, learned=learned, delta=delta), 0.3)


def factors_of(module, query_BQD, n_visible):
    """δ + β (log n)^γ with n = visible keys + 1, (B, H, Q, 1)."""
    beta, gamma = module.beta[:, None], module.gamma[:, None]
    if module.beta_weight is not None:
        beta = (beta + module.beta_weight @ query_BQD.mT).exp().log1p()
        gamma = 2 * torch.tanh(gamma + module.gamma_weight @ query_BQD.mT)
    log_n = (n_visible[:, None] + 1).double().log()
    return (module.delta + beta * log_n**gamma).detach()[..., None]


@LEARNED
@pytest.mark.parametrize("delta", [1.0, 0.25])
@pytest.mark.parametrize("causal", [True, False])
def test_factor_follows_the_formula(learned, delta, causal):
    module, query = scaling(learned, delta), states()
    mask = Mask(key_lengths_B=LENGTHS, causal=causal)
    n_visible = oracle.visible(Q, Q, LENGTHS, causal).sum(-1)[:, 0]
    factors = module(query, mask.n_visible(Q, Q, query.device))
    assert factors.dtype is torch.float64
    expected = factors_of(module, query, n_visible)
    torch.testing.assert_close(factors.expand_as(expected), expected, rtol=0, atol=1e-10)


@LEARNED
def test_gradients_of_the_factor(learned):
    module, query = scaling(learned), states().requires_grad_()
    names = [name for name, _ in module.named_parameters()]
    visible = torch.tensor([[1, 2, 3, 4, 5], [0, 1, 1, 2, 2]])  # a padded row may see no key

    def factor(query, *parameters):
        by_name = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, by_name, (query, visible))

    assert torch.autograd.gradcheck(factor, (query, *module.parameters()))


@LEARNED
def test_factor_multiplies_the_scores(learned):
    module, x = scaling(learned), states()
    attention = ScoreAttention(PLACE, Softmax(PLACE), None, 0.0, module).double().eval()
    _, weights = with_weights(attention, x, x, x, Mask(key_lengths_B=LENGTHS))
    q, k = (attention.split(part(x)).detach() for part in (attention.query, attention.key))
    scores = factors_of(module, x, LENGTHS[:, None]) * (q @ k.mT) / math.sqrt(E)
    expected = oracle.weights(scores, 1, oracle.visible(Q, Q, LENGTHS))
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [SSMax, LengthScaling])
def test_factor_multiplies_in_full_precision(kind):
    """In bfloat16, log 1,000 and log 1,001 are one number."""

    class Queries(Softmax):
        def attend(self, query_BHQE, *rest):
            attended.append(query_BHQE)
            return query_BHQE

    attended, place = [], Place("encoder_self", 1, 2, 64)
    torch.manual_seed(0)
    attention = ScoreAttention(place, Queries(place), None, 0.0, kind(place)).bfloat16()
    x = torch.randn(1, 1001, 128, dtype=torch.bfloat16)
    for n in (1000, 1001):
        attention(x, x, x, Mask(torch.tensor([n])))
    shorter, longer = attended
    assert shorter.dtype is torch.bfloat16
    assert not torch.equal(shorter, longer)


def test_initial_values_of_length_scaling():
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


# -- α ----------------------------------------------------------------------------------------


def test_initial_alpha_has_the_distribution_of_the_authors():
    torch.manual_seed(0)
    place = Place("cross", 1, 4000, 2)
    alpha = AlphaEntmax(place).alpha()
    assert alpha.min() > 1.01
    assert alpha.max() < 2.0
    # a ~ N(0, 1): one standard deviation up is sigmoid(1) of the range
    share = (alpha < 1.01 + 0.99 / (1 + math.exp(-1))).float().mean()
    assert share.item() == pytest.approx(0.8413, abs=0.02)
    assert alpha.median().item() == pytest.approx(1.505, abs=0.02)


def test_fixed_initial_alpha_and_gradients_near_the_limits():
    module = AlphaEntmax(PLACE, alpha_init=1.3)
    torch.testing.assert_close(module.alpha(), torch.full((H,), 1.3))
    with torch.no_grad():
        module.alpha_logit.copy_(torch.tensor([-6.0, 6.0, 0.0]))
    module.alpha().sum().backward()
    assert (module.alpha_logit.grad > 0).all(), "a clamp would have killed the gradient"


class QueryRecorder(Normaliser):
    """Record the queries in the context of a normaliser."""

    def forward(self, scores_BHQK, context):
        self.queries = context.queries_BHQE
        return scores_BHQK.softmax(-1)


def queries():
    return states(3).view(B, Q, H, E).transpose(1, 2)


@pytest.mark.parametrize("share", ["none", "layer"])
def test_alpha_of_a_query_follows_the_formula(share):
    torch.manual_seed(0)
    module = moved(AlphaEntmax(PLACE, depends_on="query", share=share), 0.5)
    context, scores = ScoreContext(Mask(), queries()), torch.randn(B, H, Q, Q).double()
    weight_HE1 = module.alpha_weight[..., None]
    logits_BHQ = module.alpha_logit[:, None] + (context.queries_BHQE @ weight_HE1)[..., 0]
    expected = (1.01 + 0.99 / (1 + (-logits_BHQ).exp())).detach()
    alphas = module.query_stats(context)["alpha"]
    assert not alphas.requires_grad
    torch.testing.assert_close(alphas, expected, rtol=0, atol=1e-10)
    weights = oracle.weights(scores, expected[..., None])
    torch.testing.assert_close(module(scores, context), weights, rtol=0, atol=1e-10)


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

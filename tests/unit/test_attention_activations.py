"""Tanh, ymish, plain activations and mixed normalisers (YUBERT note) against their formulas.

Axes: B batch, H heads, E head width, Q queries, K keys.
"""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import elu, leaky_relu, selu, silu, softplus

from headwise.analysis.collect import alphas
from headwise.analysis.pruning import check_pruned, pruned_state
from headwise.attention.activations import ACTIVATIONS, Activation
from headwise.attention.build import AttentionFactory, completed
from headwise.attention.elementwise import ROWS, Elementwise
from headwise.attention.mask import Mask
from headwise.attention.mixed import NOTE_NAMES, Mixed
from headwise.attention.normaliser import ScoreContext
from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.attention.tanh import Tanh
from headwise.attention.ymish import Ymish
from headwise.config.instantiate import instantiate
from headwise.config.register import group_node
from headwise.config.schema import ModelConfig
from headwise.errors import ConfigError
from headwise.model.transformer import Transformer

B, H, E, Q, K = 2, 8, 4, 5, 7
PLACE = Place("cross", 2, H, E)
FORMULAS = {
    "tanh": torch.tanh,
    "ymish": lambda x: x * torch.tanh(softplus(x.abs())),
    "selu": selu,
    "elu": elu,
    "leaky_relu": lambda x: leaky_relu(x, 0.1),
    "swish": silu,
}


class KeysPerHead(Pattern):
    """Visible keys depend on the number of the head; head 1 has none at query 0."""

    def allowed(self, query_positions_Q, n_keys, causal, key_lengths_B):
        numbers = torch.tensor(self.place.head_numbers)[:, None, None]
        distance = query_positions_Q[:, None] + torch.arange(n_keys)
        return ((distance + numbers) % (numbers + 1) != 1)[None]


class Flat(Pattern):
    """The same keys for all heads and sentences, with two axes."""

    def allowed(self, query_positions_Q, n_keys, causal, key_lengths_B):
        return (query_positions_Q[:, None] - torch.arange(n_keys)).abs() <= 3


class Shifted(Elementwise):
    """A function that is not 0 at 0."""

    l2_acts_on = "weights"

    def activate(self, scores_BHQK, typical_size):
        return scores_BHQK + 3.0


def masks(place):
    return {
        "all": Mask(),
        "padding": Mask(key_lengths_B=torch.tensor([K, 3])),
        "causal": Mask(causal=True, query_offset=1),
        "pattern": Mask(torch.tensor([4, K]), causal=True, pattern=KeysPerHead(place)),
        "empty": Mask(torch.tensor([4, 0]), causal=True, pattern=KeysPerHead(place)),
        "flat": Mask(pattern=Flat(place)),
    }


MASKS = masks(PLACE)
every_mask = pytest.mark.parametrize("mask", MASKS)
every_rows = pytest.mark.parametrize("rows", ROWS)
every_formula = pytest.mark.parametrize("name", FORMULAS)


def make(name, rows, place=PLACE):
    kind = {"tanh": Tanh, "ymish": Ymish}.get(name)
    return Activation(place, name, rows) if kind is None else kind(place, rows)


def tensors(n_heads=H):
    """Scores (B, H, Q, K) and queries (B, H, Q, E)."""
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(B, n_heads, Q, K + E, generator=generator, dtype=torch.float64)
    return 2 * states[..., :K], states[..., K:]


def context_of(mask):
    return ScoreContext(mask, torch.zeros(B, H, Q, E))


def allowed_by(mask):
    dense = mask.dense(Q, K, torch.device("cpu"))
    return torch.ones(B, H, Q, K).bool() if dense is None else dense.expand(B, H, Q, K)


def expected_weights(scores, mask, function, rows, l2_of_weights):
    """Weights by definition; `function` gets scores and the numbers of allowed keys."""
    allowed = allowed_by(mask)
    n = allowed.sum(-1, keepdim=True).clamp(min=1).double()

    def unit(x):
        return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-300)

    x = scores * allowed
    weights = function(unit(x) if rows == "l2" and not l2_of_weights else x, n) * allowed
    if rows == "l2" and l2_of_weights:
        weights = unit(weights)
    return weights / n.sqrt() if rows == "sqrt" else weights


@every_mask
@every_rows
@pytest.mark.parametrize("name", [*FORMULAS, "dead zone", "shifted"])
def test_weights_follow_the_formula(name, rows, mask):
    kappa, theta = 3.0, 0.8

    def dead_zone(x, n):
        size = x.abs() * n.sqrt() if rows == "l2" else x.abs()
        return x * torch.tanh(softplus(kappa * (size - theta)))

    if name == "dead zone":
        function = dead_zone
        normaliser = Ymish(PLACE, rows, dead_zone=True, kappa=kappa, theta=theta)
    elif name == "shifted":
        function, normaliser = (lambda x, n: x + 3.0), Shifted(PLACE, rows)
    else:
        function, normaliser = (lambda x, n: FORMULAS[name](x)), make(name, rows)
    scores, mask = tensors()[0], MASKS[mask]
    weights = normaliser(scores, context_of(mask))
    expected = expected_weights(scores, mask, function, rows, name in ("tanh", "shifted"))
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)
    assert not weights[~allowed_by(mask)].any()


@every_rows
@every_formula
def test_gradients_with_an_empty_row(name, rows):
    mask = MASKS["empty"]
    empty = ~allowed_by(mask).any(-1)
    assert empty[0].any()  # by the pattern; the other sentence has no keys
    scores = tensors()[0].requires_grad_()
    normaliser, context = make(name, rows), context_of(mask)
    assert torch.autograd.gradcheck(lambda s: normaliser(s, context), (scores,), fast_mode=True)
    weights = normaliser(scores, context)
    (gradient,) = torch.autograd.grad(weights.square().sum() + weights.sum(), scores)
    assert not gradient[~allowed_by(mask)].any()
    assert (gradient[~empty].abs().sum(-1) > 0).any()


@every_rows
@every_formula
def test_zero_scores_have_zero_weights_and_finite_gradients(name, rows):
    scores = torch.zeros(B, H, Q, K, requires_grad=True)
    weights = make(name, rows)(scores, context_of(MASKS["padding"]))
    weights.sum().backward()
    assert (weights == 0).all()
    assert torch.isfinite(scores.grad).all()
    assert (scores.grad[allowed_by(MASKS["padding"])] != 0).all()


@every_rows
@every_formula
def test_half_precision_is_computed_in_float32(name, rows):
    scores = tensors()[0].bfloat16()
    normaliser, context = make(name, rows), context_of(MASKS["padding"])
    with torch.autocast("cpu", torch.bfloat16):
        weights = normaliser(scores, context)
    assert weights.dtype == torch.bfloat16
    assert torch.equal(weights, normaliser(scores.float(), context).bfloat16())
    assert normaliser(scores.float(), context).dtype == torch.float32


# -- mixed normalisers ------------------------------------------------------------------------

CHOICES = {"alpha_entmax": {"depends_on": "query"}}
ALL = ("sparsemax", "tanh", "elu", "alpha_entmax", "softmax", "ymish", "entmax15")


def mixed(normalisers=NOTE_NAMES, rows="sqrt", place=PLACE):
    """A mixed normaliser; α, if any, depends on the query."""
    torch.manual_seed(0)
    choices = CHOICES if "alpha_entmax" in normalisers else None
    module = Mixed(place, normalisers, rows, choices)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


def alone(name, place, rows):
    if name in ACTIVATIONS:
        return Activation(place, name, rows)
    node = {**group_node("attention", name), **CHOICES.get(name, {})}
    return instantiate(node, "attention", place=place)


@every_mask
@pytest.mark.parametrize("numbers", [None, (2, 3, 7, 8, 9), (5,)])
@pytest.mark.parametrize("normalisers", [NOTE_NAMES, ALL, ("tanh", "tanh", "softmax", "softmax")])
def test_each_head_equals_its_normaliser_alone(normalisers, numbers, mask):
    place = PLACE if numbers is None else Place("cross", 2, len(numbers), E, 12 * E, numbers)
    module = mixed(normalisers, "l2", place).double()
    scores, queries = tensors(place.n_heads)
    head_mask = masks(place)[mask]
    weights = module(scores, ScoreContext(head_mask, queries))
    alphas_BHQ = module.query_stats(ScoreContext(head_mask, queries)).get("alpha")
    assert weights.shape == scores.shape
    for head, number in enumerate(place.head_numbers):
        name = normalisers[(number - 1) % len(normalisers)]
        head_place = Place("cross", 2, 1, E, place.d_model, (number,))
        member = alone(name, head_place, "l2").double()
        if name == "alpha_entmax":
            mixed_member = module.members[name]
            index = mixed_member.place.head_numbers.index(number)
            with torch.no_grad():
                for part, mixed_part in zip(
                    member.parameters(), mixed_member.parameters(), strict=True
                ):
                    part.copy_(mixed_part[index : index + 1])
        pattern = None if head_mask.pattern is None else type(head_mask.pattern)(head_place)
        head_queries = queries[:, head : head + 1]
        context = ScoreContext(replace(head_mask, pattern=pattern), head_queries)
        expected = member(scores[:, head : head + 1], context)
        torch.testing.assert_close(weights[:, head : head + 1], expected, rtol=0, atol=1e-12)
        if alphas_BHQ is not None:
            no_alpha = {"alpha": torch.full((B, 1, Q), torch.nan).double()}
            expected_alpha = {**no_alpha, **member.query_stats(context)}["alpha"]
            assert alphas_BHQ[:, head : head + 1].allclose(expected_alpha, equal_nan=True)


def test_normalisers_are_assigned_cyclically():
    module = mixed()
    assert {name: m.place.head_numbers for name, m in module.members.items()} == {
        "softmax": (1, 7), "selu": (2, 8), "elu": (3,), "leaky_relu": (4,), "swish": (5,),
        "ymish": (6,),
    }  # fmt: skip
    assert {m.place.d_model for m in module.members.values()} == {H * E}
    assert module.distribution_heads() == tuple(n in (1, 7) for n in range(1, H + 1))
    assert mixed(ALL).distribution_heads() == (True, False, False, True, True, False, True, True)
    assert not Mixed.is_distribution


def test_only_entmax_heads_have_alpha():
    module = build(normalisers=["softmax", "alpha_entmax", "swish"])
    member = module.members["alpha_entmax"]
    ((name, parameter),) = module.named_parameters()
    assert (name, parameter.shape) == ("members.alpha_entmax.alpha_logit", (3,))
    assert list(module.state_dict()) == [name]
    alpha = module.stats()["alpha"]
    has_alpha = torch.tensor([n in (2, 5, 8) for n in range(1, H + 1)])
    assert torch.equal(alpha.isnan(), ~has_alpha)
    assert torch.equal(alpha[has_alpha], member.alpha())
    assert mixed().stats() == {}
    scores, queries = tensors()
    module(scores.float(), ScoreContext(Mask(), queries))[:, 4, 0, 0].sum().backward()
    assert torch.equal(member.alpha_logit.grad != 0, torch.tensor([False, True, False]))


def build(**settings):
    node = {**group_node("attention", "mixed"), **settings}
    return instantiate(node, "attention", place=PLACE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"normalisers": ["softmax", "linear"]},
            "attention.normalisers must turn a head's scores into weights, which linear does not; "
            "choose from selu, elu, leaky_relu, swish, alpha_entmax,.*, softmax",
        ),
        (
            {"choices": {"alpha_entmax": {"share": "site"}}},
            "attention.normalisers cannot hold alpha_entmax: its yaml shares it",
        ),
        (
            {"choices": {"alpha_entmax": {"alpha_min": 3.0}}},
            "attention.choices.alpha_entmax.alpha_min must be in",
        ),
    ],
)
def test_unsuitable_members_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        build(**{"normalisers": ["softmax", "alpha_entmax"], **settings})


def test_pruned_model_keeps_the_alphas_of_its_heads():
    node = {**group_node("attention", "mixed"), "normalisers": ["softmax", "alpha_entmax", "tanh"]}
    config = ModelConfig("mixed", 1, 1, d_model=24, n_heads=6, d_ff=8)

    def model_of(heads):
        factory = AttentionFactory({"attention": node})
        return Transformer(replace(config, heads=heads), 12, 12, True, factory, seed=3).eval()

    remaining = {"encoder_self": [[1, 3, 5]], "decoder_self": [[3, 6]], "cross": [[2, 4, 5]]}
    model, smaller = model_of(None), model_of(remaining)
    smaller.load_state_dict(pruned_state(model, smaller))
    check_pruned(model, remaining, smaller)
    whole = alphas(model)
    assert alphas(smaller) == {
        "encoder_self": [[None, None, whole["encoder_self"][0][4]]],
        "cross": [[whole["cross"][0][1], None, whole["cross"][0][4]]],
    }


def test_choices_of_members_are_saved_with_the_run():
    node = {**group_node("attention", "mixed"), "choices": {"ymish": {"dead_zone": True}}}
    saved = completed("attention", node)
    assert saved["choices"]["ymish"] == {**group_node("attention", "ymish"), "dead_zone": True}
    assert saved["choices"]["softmax"] == group_node("attention", "softmax")
    for settings in (node, saved):
        module = instantiate(settings, "attention", place=PLACE)
        assert [m.dead_zone for m in module.modules() if isinstance(m, Ymish)] == [True]
    saved["choices"]["ymish"]["kappa"] = 9.0  # not the value of the yaml
    module = instantiate(saved, "attention", place=PLACE)
    assert [m.kappa for m in module.modules() if isinstance(m, Ymish)] == [9.0]

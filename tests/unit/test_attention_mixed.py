"""Mixed normalisers: each head equals its normaliser alone.

Axes: B batch, H heads, E head width, Q queries, K keys.
"""

from dataclasses import replace

import pytest
import torch

from headwise.analysis.collect import alphas
from headwise.analysis.pruning import check_pruned, pruned_state
from headwise.attention import mixed
from headwise.attention.activations import ACTIVATIONS, Activation
from headwise.attention.build import AttentionFactory, completed
from headwise.attention.mask import Mask
from headwise.attention.mixed import NOTE_NAMES, Mixed
from headwise.attention.parts import ScoreContext
from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.attention.ymish import Ymish
from headwise.config.folders import group_node
from headwise.config.instantiate import instantiate
from headwise.config.schema import ModelConfig
from headwise.errors import ConfigError
from headwise.model.transformer import Transformer

B, H, E, Q, K = 2, 8, 4, 5, 7
PLACE = Place("cross", 2, H, E)
CHOICES = {"alpha_entmax": {"depends_on": "query"}}
ALL = ("sparsemax", "tanh", "elu", "alpha_entmax", "softmax", "ymish", "entmax15")


class KeysPerHead(Pattern):
    """A pattern for the tests: visible keys depend on the head number."""

    def allowed(self, query_positions_Q, n_keys, causal, key_lengths_B):
        numbers = torch.tensor(self.place.head_numbers)[:, None, None]
        distance = query_positions_Q[:, None] + torch.arange(n_keys)
        return ((distance + numbers) % (numbers + 1) != 1)[None]


class Flat(Pattern):
    """A pattern for the tests: the same keys for all heads and sentences, with two axes."""

    def allowed(self, query_positions_Q, n_keys, causal, key_lengths_B):
        return (query_positions_Q[:, None] - torch.arange(n_keys)).abs() <= 3


def make(normalisers=NOTE_NAMES, rows="sqrt", place=PLACE):
    """Make a mixed normaliser; α, if any, depends on the query."""
    torch.manual_seed(0)
    choices = CHOICES if "alpha_entmax" in normalisers else None
    module = Mixed(place, normalisers, rows, choices)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


def masks(place):
    return {
        "all": Mask(),
        "padding": Mask(key_lengths_B=torch.tensor([K, 3])),
        "causal": Mask(causal=True, query_offset=1),
        "pattern": Mask(torch.tensor([4, 0]), causal=True, pattern=KeysPerHead(place)),
        "flat": Mask(pattern=Flat(place)),
    }


def tensors(n_heads=H):
    """Scores (B, H, Q, K) and queries (B, H, Q, E)."""
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(B, n_heads, Q, K + E, generator=generator, dtype=torch.float64)
    return 2 * states[..., :K], states[..., K:]


def alone(name, place, rows):
    if name in ACTIVATIONS:
        return Activation(place, name, rows)
    node = {**group_node("attention", name), **CHOICES.get(name, {})}
    return instantiate(node, "attention", place=place)


@pytest.mark.parametrize("mask", ["all", "padding", "causal", "pattern", "flat"])
@pytest.mark.parametrize("numbers", [None, (2, 3, 7, 8, 9), (5,)])
@pytest.mark.parametrize("normalisers", [NOTE_NAMES, ALL, ("tanh", "tanh", "softmax", "softmax")])
def test_each_head_equals_its_normaliser_alone(normalisers, numbers, mask):
    place = PLACE if numbers is None else Place("cross", 2, len(numbers), E, 12 * E, numbers)
    module = make(normalisers, "l2", place).double()
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
    module = make()
    assert {name: m.place.head_numbers for name, m in module.members.items()} == {
        "softmax": (1, 7), "selu": (2, 8), "elu": (3,), "leaky_relu": (4,), "swish": (5,),
        "ymish": (6,),
    }  # fmt: skip
    assert {m.place.d_model for m in module.members.values()} == {H * E}
    assert module.distribution_heads() == tuple(n in (1, 7) for n in range(1, H + 1))
    assert make(ALL).distribution_heads() == (True, False, False, True, True, False, True, True)
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
    assert make().stats() == {}
    scores, queries = tensors()
    module(scores.float(), ScoreContext(Mask(), queries))[:, 4, 0, 0].sum().backward()
    assert torch.equal(member.alpha_logit.grad != 0, torch.tensor([False, True, False]))


def build(**settings):
    node = {**group_node("attention", "mixed"), **settings}
    return instantiate(node, "attention", place=PLACE)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"_target_": "headwise.attention.scores.ScoreAttention"},
            "attention.normalisers must turn a head's scores into weights, which other does not; "
            "choose from selu, elu, leaky_relu, swish, softmax$",
        ),
        (
            {"_target_": "headwise.attention.alpha_entmax.AlphaEntmax", "share": "site"},
            "attention.normalisers cannot hold other: its yaml shares it",
        ),
        (
            {"_target_": "headwise.attention.alpha_entmax.AlphaEntmax", "alpha_min": 3.0},
            "attention.choices.other.alpha_min must be in",
        ),
    ],
)
def test_unsuitable_members_are_refused(node, message, monkeypatch):
    nodes = {"softmax": group_node("attention", "softmax"), "other": node}
    monkeypatch.setattr(mixed, "group_choices", lambda group: list(nodes))
    monkeypatch.setattr(mixed, "group_node", lambda group, name: nodes[name])
    with pytest.raises(ConfigError, match=message):
        build(normalisers=["softmax", "other"])


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

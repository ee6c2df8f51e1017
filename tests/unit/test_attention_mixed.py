"""Mixed normalisers: each head does what its normaliser does alone, wherever it stands.

Letters: B batch, H heads, E head width, Q queries, K keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.analysis.collect import alphas
from headwise.analysis.pruning import check_pruned, pruned_state
from headwise.attention import mixed
from headwise.attention.activations import ACTIVATIONS, Activation
from headwise.attention.alpha_entmax import AlphaEntmax
from headwise.attention.build import AttentionFactory, completed
from headwise.attention.entmax15 import Entmax15
from headwise.attention.mask import Mask
from headwise.attention.mixed import NOTE, Mixed
from headwise.attention.parts import Normaliser, ScoreContext
from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.attention.ymish import Ymish
from headwise.config.folders import group_node
from headwise.config.instantiate import instantiate
from headwise.config.schema import ModelConfig
from headwise.errors import ConfigError
from headwise.model.transformer import Transformer
from weights_recorded import with_weights

B, H, E, Q, K = 2, 8, 4, 5, 7
PLACE = Place("cross", 2, H, E)
ALL = ("sparsemax", "tanh", "elu", "alpha_entmax", "softmax", "ymish", "entmax15")


class OwnKeys(Pattern):
    """A pattern for the tests: each head sees keys of its own, by its number."""

    def allowed(
        self, query_positions_Q: Tensor, n_keys: int, causal: bool, key_lengths_B: Tensor | None
    ) -> Tensor | None:
        numbers = torch.tensor(self.place.head_numbers)[:, None, None]
        distance = query_positions_Q[:, None] + torch.arange(n_keys)
        return ((distance + numbers) % (numbers + 1) != 1)[None]


class Flat(Pattern):
    """A pattern for the tests: the same keys for all heads and sentences, said with two axes."""

    def allowed(
        self, query_positions_Q: Tensor, n_keys: int, causal: bool, key_lengths_B: Tensor | None
    ) -> Tensor | None:
        return (query_positions_Q[:, None] - torch.arange(n_keys)).abs() <= 3


class Looking(Normaliser):
    """A member for the tests: weighs by its queries and reports on them."""

    is_distribution = False

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        return scores_BHQK + context.queries_BHQE.sum(-1, keepdim=True)

    def stats(self) -> dict[str, Tensor]:
        return {"number": torch.tensor(self.place.head_numbers).float()}

    def query_stats(self, context: ScoreContext) -> dict[str, Tensor]:
        return {"size": context.queries_BHQE.sum(-1) + context.mask.query_offset}


def make(normalisers: tuple[str, ...] = NOTE, rows: str = "sqrt", place: Place = PLACE) -> Mixed:
    torch.manual_seed(0)
    return Mixed(place, normalisers, rows)


def masks(place: Place) -> dict[str, Mask]:
    return {
        "all": Mask(),
        "padding": Mask(key_lengths_B=torch.tensor([K, 3])),
        "causal": Mask(causal=True, query_offset=1),
        "pattern": Mask(torch.tensor([4, 0]), causal=True, pattern=OwnKeys(place)),
        "flat": Mask(pattern=Flat(place)),
    }


def tensors(n_heads: int = H) -> tuple[Tensor, Tensor]:
    """Scores (B, H, Q, K) and queries (B, H, Q, E)."""
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(B, n_heads, Q, K + E, generator=generator, dtype=torch.float64)
    return 2 * states[..., :K], states[..., K:]


def alone(name: str, place: Place, rows: str) -> Normaliser:
    if name in ACTIVATIONS:
        return Activation(place, name, rows)
    found: Normaliser = instantiate(group_node("attention", name), "attention", place=place)
    return found


@pytest.mark.parametrize("mask", ["all", "padding", "causal", "pattern", "flat"])
@pytest.mark.parametrize("numbers", [None, (2, 3, 7, 8, 9), (5,)])
@pytest.mark.parametrize("normalisers", [NOTE, ALL, ("tanh", "tanh", "softmax", "softmax")])
def test_each_head_does_what_its_normaliser_does_alone(
    normalisers: tuple[str, ...], numbers: tuple[int, ...] | None, mask: str
) -> None:
    place = PLACE if numbers is None else Place("cross", 2, len(numbers), E, 12 * E, numbers)
    module = make(normalisers, "l2", place).double()
    scores, queries = tensors(place.n_heads)
    given = masks(place)[mask]
    found = module(scores, ScoreContext(given, queries))
    assert found.shape == scores.shape
    for head, number in enumerate(place.head_numbers):
        name = normalisers[(number - 1) % len(normalisers)]
        one = Place("cross", 2, 1, E, place.d_model, (number,))
        member = alone(name, one, "l2").double()
        if name == "alpha_entmax":
            whole = module.members[name]
            own = whole.place.head_numbers.index(number)
            with torch.no_grad():
                member.alpha_logit.copy_(whole.alpha_logit[own : own + 1])
        pattern = None if given.pattern is None else type(given.pattern)(one)
        context = ScoreContext(replace(given, pattern=pattern, _dense={}), queries)
        expected = member(scores[:, head : head + 1], context)
        torch.testing.assert_close(found[:, head : head + 1], expected, rtol=0, atol=1e-12)


def test_head_1_takes_the_first_and_the_list_begins_again() -> None:
    module = make()
    assert {name: m.place.head_numbers for name, m in module.members.items()} == {
        "softmax": (1, 7),
        "selu": (2, 8),
        "elu": (3,),
        "leaky_relu": (4,),
        "swish": (5,),
        "ymish": (6,),
    }
    assert {m.place.d_model for m in module.members.values()} == {H * E}
    assert module.distribution_heads() == tuple(n in (1, 7) for n in range(1, H + 1))
    assert make(ALL).distribution_heads() == (True, False, False, True, True, False, True, True)
    assert not Mixed.is_distribution


def test_a_pruned_place_keeps_what_its_heads_were() -> None:
    pruned = Place("cross", 2, 3, E, H * E, (2, 6, 8))
    module = make(place=pruned)
    found = {name: m.place.head_numbers for name, m in module.members.items()}
    assert found == {"selu": (2, 8), "ymish": (6,)}  # no softmax is left, and that is allowed
    assert {m.place.d_model for m in module.members.values()} == {H * E}


def test_alpha_is_there_for_its_heads_alone() -> None:
    module = make(("softmax", "alpha_entmax", "swish"))
    own = module.members["alpha_entmax"]
    assert isinstance(own, AlphaEntmax)
    assert [(n, p.shape) for n, p in module.named_parameters()] == [
        ("members.alpha_entmax.alpha_logit", (3,))
    ]
    assert list(module.state_dict()) == ["members.alpha_entmax.alpha_logit"]
    alpha = module.stats()["alpha"]
    has_alpha = torch.tensor([n in (2, 5, 8) for n in range(1, H + 1)])
    assert torch.equal(alpha.isnan(), ~has_alpha)
    assert torch.equal(alpha[has_alpha], own.alpha())
    assert make().stats() == {}
    scores, queries = tensors()
    module(scores.float(), ScoreContext(Mask(), queries))[:, 4, 0, 0].sum().backward()
    assert own.alpha_logit.grad is not None
    assert torch.equal(own.alpha_logit.grad != 0, torch.tensor([False, True, False]))


def test_members_see_the_queries_of_their_heads() -> None:
    module = make()
    softmax, ymish = (Looking(module.members[name].place) for name in ("softmax", "ymish"))
    module.members["softmax"], module.members["ymish"] = softmax, ymish
    scores, queries = tensors()
    context = ScoreContext(Mask(query_offset=2), queries)
    weights, size = module(scores, context), module.query_stats(context)["size"]
    number = module.stats()["number"]
    assert size.shape == (B, H, Q)
    for head in range(H):
        is_looking = head + 1 in (1, 6, 7)
        assert torch.equal(size[:, head].isnan().any(), torch.tensor(not is_looking))
        assert number[head].isnan() != is_looking
        if is_looking:
            sums = queries[:, head].sum(-1)
            torch.testing.assert_close(weights[:, head], scores[:, head] + sums[..., None])
            torch.testing.assert_close(size[:, head], sums + 2)
            assert number[head] == head + 1


def test_gradients_with_per_head_masks_and_empty_rows() -> None:
    module, (scores, queries) = make(ALL).double(), tensors()
    mask = masks(PLACE)["pattern"]
    context = ScoreContext(mask, queries)
    scores.requires_grad_()
    inputs = (scores, module.members["alpha_entmax"].alpha_logit)
    assert torch.autograd.gradcheck(lambda s, _: module(s, context), inputs, fast_mode=True)
    (gradient,) = torch.autograd.grad(module(scores, context).square().sum(), scores)
    allowed = context.dense_mask(scores)
    assert allowed is not None
    assert allowed.shape == scores.shape
    assert not allowed[0].any(-1).all()
    assert (gradient[~allowed] == 0).all()
    assert torch.isfinite(gradient).all()


def test_half_precision_is_computed_in_float32() -> None:
    module, (scores, queries) = make(ALL), tensors()
    context = ScoreContext(masks(PLACE)["padding"], queries)
    halves = scores.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = module(halves, context)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, module(halves.float(), context).bfloat16())


def test_a_copy_on_the_meta_device_has_the_same_parameters() -> None:
    with torch.device("meta"):
        module = Mixed(PLACE, ALL)
    assert {n: p.shape for n, p in module.named_parameters()} == {
        n: p.shape for n, p in make(ALL).named_parameters()
    }
    assert module.distribution_heads() == make(ALL).distribution_heads()


def build(**settings: Any) -> Any:
    node = {**group_node("attention", "mixed"), **settings}
    return instantiate(node, "attention", place=PLACE)


def test_yaml_and_class_have_the_same_defaults() -> None:
    node = group_node("attention", "mixed")
    assert (*node["normalisers"],) == NOTE
    scores, queries = tensors()
    context = ScoreContext(Mask(), queries)
    assert torch.equal(build()(scores, context), Mixed(PLACE)(scores, context))
    assert not torch.equal(build(rows="l2")(scores, context), Mixed(PLACE)(scores, context))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": "l1"}, "attention.rows must be one of l2, none, sqrt"),
        ({"normalisers": []}, "attention.normalisers must be a list of names"),
        ({"normalisers": "softmax"}, "attention.normalisers must be of type list of str"),
        ({"normalisers": ["softmx"]}, "attention.normalisers must be .* Did you mean softmax"),
        ({"normalisers": ["softmax", "mixed"]}, "unlike mixed; choose from selu,.* softmax"),
        ({"normalisers": ["tanh", "selu"]}, "one of 8 heads a distribution.*'tanh', 'selu'"),
        (
            {"choices": {"tanh": {"rows": "l2"}}},
            "attention.choices must be one of softmax, ymish; got 'tanh'",
        ),
        ({"choices": {"ymish": {"row": "l2"}}}, r"attention.choices.ymish.row is not known"),
        ({"choices": {"ymish": 3}}, "attention.choices.ymish must be a mapping"),
        ({"normalisers": ["elu"] * 8 + ["softmax"]}, "one of 8 heads a distribution"),
    ],
)
def test_what_cannot_be_mixed_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**settings)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"_target_": "headwise.attention.scores.ScoreAttention"},
            "attention.normalisers can hold what turns a head's scores .*, unlike other; "
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
def test_a_yaml_that_cannot_be_a_member_is_refused(
    node: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {"softmax": group_node("attention", "softmax"), "other": node}
    monkeypatch.setattr(mixed, "group_choices", lambda group: list(nodes))
    monkeypatch.setattr(mixed, "group_node", lambda group, name: nodes[name])
    with pytest.raises(ConfigError, match=message):
        build(normalisers=["softmax", "other"])


def test_a_members_limits_and_what_stands_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {**group_node("attention", "entmax15"), "instead": {"cross": "softmax"}}
    monkeypatch.setattr(mixed, "group_node", lambda group, name: node)
    assert build(normalisers=["entmax15"]).distribution_heads() == (True,) * H
    monkeypatch.setattr(Entmax15, "unsupported_sites", {"cross": "for a test"})
    with pytest.raises(ConfigError, match="cannot hold entmax15 at cross: for a test"):
        build(normalisers=["entmax15"])


def test_mixed_at_one_site_says_which_heads_are_distributions() -> None:
    node = {**group_node("attention", "mixed"), "normalisers": ["alpha_entmax", "tanh"]}
    softmax = group_node("attention", "softmax")
    make_attention = AttentionFactory({"attention": softmax}, {"attention": {"cross": node}})
    attention = make_attention(PLACE)
    states = torch.randn(B, Q, H * E)
    plain = attention(states, states, states, Mask())
    shown, weights = with_weights(attention, states, states, states, Mask())
    assert torch.equal(plain, shown)
    is_distribution = torch.tensor(attention.distribution_heads())
    assert is_distribution.tolist() == [True, False] * 4
    assert (weights[:, is_distribution] >= 0).all()
    assert (weights[:, ~is_distribution] < 0).any()


def test_a_pruned_model_keeps_the_alphas_of_its_heads() -> None:
    node = {**group_node("attention", "mixed"), "normalisers": ["softmax", "alpha_entmax", "tanh"]}
    config = ModelConfig("mixed", 1, 1, d_model=24, n_heads=6, d_ff=8)

    def model_of(heads: dict[str, list[list[int]]] | None) -> Transformer:
        factory = AttentionFactory({"attention": node})
        return Transformer(replace(config, heads=heads), 12, 12, True, factory, seed=3).eval()

    kept = {"encoder_self": [[1, 3, 5]], "decoder_self": [[3, 6]], "cross": [[2, 4, 5]]}
    model, smaller = model_of(None), model_of(kept)
    smaller.load_state_dict(pruned_state(model, smaller))
    check_pruned(model, kept, smaller, vocab=12)
    whole = alphas(model)
    assert alphas(smaller) == {
        "encoder_self": [[None, None, whole["encoder_self"][0][4]]],
        "cross": [[whole["cross"][0][1], None, whole["cross"][0][4]]],
    }


def test_members_take_choices_of_their_own_and_a_run_keeps_all_of_them() -> None:
    node = {**group_node("attention", "mixed"), "choices": {"ymish": {"dead_zone": True}}}
    kept = completed("attention", node)
    assert kept["choices"]["ymish"] == {**group_node("attention", "ymish"), "dead_zone": True}
    assert kept["choices"]["softmax"] == group_node("attention", "softmax")
    for settings in (node, kept):
        module = instantiate(settings, "attention", place=PLACE)
        assert [m.dead_zone for m in module.modules() if isinstance(m, Ymish)] == [True]
    kept["choices"]["ymish"]["kappa"] = 9.0  # and not what the yaml says now
    module = instantiate(kept, "attention", place=PLACE)
    assert [m.kappa for m in module.modules() if isinstance(m, Ymish)] == [9.0]

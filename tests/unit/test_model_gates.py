"""Hard Concrete gates (Voita et al. 2019, section 5), compared with the formula."""

import math

import pytest
import torch
from torch import nn

from headwise.attention.attention import MultiHeadAttention
from headwise.attention.place import Place
from headwise.config.register import typed
from headwise.model.build import build_model
from headwise.model.gates import (
    HardConcrete,
    HardConcreteGate,
    gate_penalty,
    head_gates,
)
from headwise.train.optim import build_optimizer, set_learning_rate

B, H, E, Q = 2, 4, 3, 5
LOG_A = (-3.0, -0.4, 0.7, 2.5)
V = 11
SMALL = ("model.d_model=8", "model.n_heads=2", "model.d_ff=8", "attention=softmax")


def make_gate(log_a=LOG_A, stretch=(-0.1, 1.1), temperature=0.33, penalty=0.1):
    gates = HardConcrete(penalty, temperature=temperature, stretch=list(stretch), log_a=0.0)
    gate = HardConcreteGate(len(log_a), gates).double()
    with torch.no_grad():
        gate.log_a.copy_(torch.tensor(log_a, dtype=torch.float64))
    return gate


def reference_g(u, log_a, stretch=(-0.1, 1.1), temperature=0.33):
    """Gates of uniform draws u: sigmoid, stretched, clipped."""
    s, (low, high) = torch.sigmoid((torch.logit(u) + log_a) / temperature), stretch
    return (s * (high - low) + low).clamp(0, 1)


def gate_weights(model):
    return {name for name in model.state_dict() if ".gate." in name}


def model_of(make, *overrides):
    return build_model(typed(make([*SMALL, *overrides])), V, V, joint=True)


@pytest.mark.parametrize("stretch", [(-0.1, 1.1), (-0.3, 1.05)])
@pytest.mark.parametrize("temperature", [0.33, 0.7])
def test_draw_matches_the_formula(stretch, temperature):
    gate = make_gate(stretch=stretch, temperature=temperature).train()
    torch.manual_seed(3)
    factors = gate.factors()
    torch.manual_seed(3)
    uniforms, log_a = torch.rand(H, dtype=torch.float64), torch.tensor(LOG_A, dtype=torch.float64)
    expected = reference_g(uniforms, log_a, stretch, temperature)
    torch.testing.assert_close(factors.detach(), expected, rtol=0, atol=1e-10)


def test_probability_of_an_open_head_matches_the_paper():
    p_open = make_gate().p_open().tolist()
    for value, log_a in zip(p_open, LOG_A, strict=True):
        assert value == pytest.approx(1 / (1 + math.exp(-(log_a + 0.7913))), abs=1e-5)
    # shares of the gates above 0 and at 1, over many evenly spaced u
    gate, n_draws = make_gate(stretch=(-0.3, 1.05)), 20000
    u = (torch.arange(n_draws).double()[:, None] + 0.5) / n_draws
    g = reference_g(u, torch.tensor(LOG_A, dtype=torch.float64), (-0.3, 1.05))
    for actual, is_so in ((gate.p_open(), g > 0), (gate.p_one(), g == 1)):
        torch.testing.assert_close(actual, is_so.double().mean(0), rtol=0, atol=1e-4)


def test_one_draw_per_head_and_batch():
    gate = make_gate((0.3,) * H, temperature=2.0).train()  # so that few are clipped
    context = torch.ones(B, H, Q, E, dtype=torch.float64)
    torch.manual_seed(0)
    first, second = gate(context), gate(context)
    assert torch.equal(first, first[:1, :, :1, :1].expand_as(first))
    assert not torch.equal(first, second)
    assert len(set(first[0, :, 0, 0].tolist())) == H


def test_draw_of_exactly_zero_gives_finite_gradients(monkeypatch):
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    gate = make_gate().float().train()
    factors = gate.factors()
    factors.sum().backward()
    assert torch.equal(factors, torch.zeros(H))
    assert torch.isfinite(gate.log_a.grad).all()


def test_penalty_and_its_gradient():
    gate = make_gate(penalty=0.25)
    p_open = [1 / (1 + math.exp(-(a - 0.33 * math.log(0.1 / 1.1)))) for a in LOG_A]
    penalty = gate.penalty()
    assert penalty.item() == pytest.approx(0.25 * sum(p_open), abs=1e-10)
    (gradient,) = torch.autograd.grad(penalty, gate.log_a)
    expected = [0.25 * p * (1 - p) for p in p_open]
    torch.testing.assert_close(gradient.tolist(), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(gate.stats()["gate_open"].tolist(), p_open)


def test_eval_mode_uses_the_more_likely_state():
    gate = make_gate((-0.01, 0.0, 0.01, 3.0)).eval()
    context = torch.randn(B, H, Q, E, dtype=torch.float64)
    gated = gate(context)
    assert torch.equal(gated[:, 0], torch.zeros(B, Q, E, dtype=torch.float64))
    assert torch.equal(gated[:, 1:], context[:, 1:])
    # with an asymmetric stretch the threshold is not at log a = 0
    threshold = 0.5 * 0.33 * (math.log(0.4 / 1.1) + math.log(1.4 / 0.1))
    asymmetric = make_gate((threshold - 0.01, threshold + 0.01), stretch=(-0.4, 1.1)).eval()
    assert asymmetric.open_heads().tolist() == [False, True]


def test_gates_are_at_the_configured_sites(make):
    model = model_of(make, "gates=hard_concrete", "gates.sites=[encoder_self]")
    gated = {
        (site, layer)
        for site, layer, attention in model.attentions()
        if isinstance(attention, MultiHeadAttention) and attention.gate is not None
    }
    assert gated == {("encoder_self", 1), ("encoder_self", 2)}
    assert gate_weights(model) == {f"encoder.layers.{i}.self_attention.gate.log_a" for i in (0, 1)}
    penalty = gate_penalty(model)
    assert penalty.item() == pytest.approx(0.1 * 4 / (1 + math.exp(-2.7913)), abs=1e-5)
    for site, layer, attention in model.attentions():
        assert ("gate_open" in attention.stats()) == ((site, layer) in gated)
    assert gate_penalty(model_of(make)) is None


@pytest.mark.parametrize("sharing", ["all", "none"])
def test_frozen_stack_is_unchanged_but_its_gates_learn(make, sharing):
    freeze = ("gates=hard_concrete", "gates.freeze=[decoder]", f"model.share_embeddings={sharing}")
    model = model_of(make, *freeze)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    gates = gate_weights(model)
    assert gates <= trained
    for name, _ in model.named_parameters():
        if name.startswith(("decoder.", "target_embedding.", "output.")):
            assert (name in trained) == (name in gates), name
        if name.startswith("encoder."):
            assert name in trained, name
    # an embedding shared with the frozen decoder is frozen as well
    assert model.source_embedding.token.weight.requires_grad == (sharing == "none")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    ids = torch.tensor([[4, 5, 6, 3]])
    optimizer = build_optimizer({"_target_": "torch.optim.AdamW", "lr": 0.01}, model)
    torch.manual_seed(1)
    model.train()(ids, torch.tensor([4]), ids).logsumexp(-1).sum().backward()
    penalty = gate_penalty(model)
    penalty.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    for name, parameter in model.named_parameters():
        if not name.endswith("key.bias"):  # without effect, hence without a gradient
            assert torch.equal(parameter, before[name]) == (name not in trained), name


def test_gates_have_a_learning_rate_factor(make):
    model = model_of(make, "gates=hard_concrete", "gates.lr_factor=10")
    node = {"_target_": "torch.optim.AdamW", "lr": 0.01, "weight_decay": 0.5}
    optimizer = build_optimizer(node, model)
    groups = optimizer.param_groups
    gates = {id(p) for gate in head_gates(model) for p in gate.parameters()}
    assert [{id(p) for p in group["params"]} == gates for group in groups] == [False, False, True]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert groups[2]["weight_decay"] == 0
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in groups] == [0.25, 0.25, 2.5]
    resumed = build_optimizer(node, model)
    resumed.load_state_dict(optimizer.state_dict())
    set_learning_rate(resumed, 0.5)
    assert [group["lr"] for group in resumed.param_groups] == [0.5, 0.5, 5.0]


def test_no_gate_without_heads():
    assert HardConcrete()(Place("cross", 1, 0, E, 8, ())) is None
    assert HardConcrete(sites=["cross"])(Place("encoder_self", 1, 2, E)) is None

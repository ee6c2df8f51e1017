"""An update: learning rates, groups of the optimizer, and no wait for an accelerator.

Tensors on the meta device have no values: whatever reads one back (`item`, `nonzero`, a branch on
a tensor, a copy to the host) raises there. Code takes the path of accelerators on it.
"""

import inspect
import itertools
import math
from contextlib import nullcontext

import pytest
import torch
import torch._dynamo  # else first needed where torch.Generator, which its types name, is patched

from headwise.config.instantiate import target_class
from headwise.config.register import group_choices, group_node, typed
from headwise.errors import ConfigError
from headwise.train.optim import (
    Constant,
    Cosine,
    InverseSqrt,
    Noam,
    build_optimizer,
    set_learning_rate,
)
from slow_marks import slow_but
from training_steps import batch, small_model, step_of

META = torch.device("meta")
LOSSES = slow_but(group_choices("loss"), "cross_entropy", "entmax")
MODEL = [
    "model.encoder_layers=2", "model.decoder_layers=2", "model.d_model=32", "model.n_heads=2",
    "model.d_ff=32", "trainer.clip_norm=1", "trainer.precision=fp32",
    "+optimizer.fused=false",  # which torch has for real devices only
]  # fmt: skip


@pytest.fixture
def _replace_missing_on_meta(monkeypatch):
    """Torch has no autocast (float32 needs none) and no generators for the meta device."""
    make_generator = torch.Generator
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    monkeypatch.setattr(torch, "autocast", lambda kind, enabled=True: nullcontext())
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": make_generator())


@pytest.mark.usefixtures("_replace_missing_on_meta")
@pytest.mark.parametrize("choice", LOSSES)
def test_no_loss_reads_back(make, choice):
    step = step_of(typed(make([*MODEL, f"loss={choice}"])), META, vocab_size=2000)
    step(1, [batch(5, 9)])


def test_reading_back_a_meta_value_raises():
    with pytest.raises(RuntimeError, match=r"meta|item"):
        torch.ones(2, device=META).sum().item()


ADAMW = {"_target_": "torch.optim.AdamW", "lr": 0.01}


def after_a_step(weight_decay):
    model = small_model()
    optimizer = build_optimizer({**ADAMW, "weight_decay": weight_decay}, model)
    ids = torch.tensor([[4, 5, 6, 3]])
    output = model(ids, torch.tensor([4]), ids)
    output.logsumexp(-1).sum().backward()
    optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_alpha_biases_and_norms_have_no_weight_decay():
    without, decayed = after_a_step(0.0), after_a_step(0.5)
    assert any(name.endswith("alpha_logit") for name in without)
    for name, value in without.items():
        is_free = name.endswith(("bias", "alpha_logit")) or "norm" in name
        assert torch.equal(value, decayed[name]) == is_free, name


@pytest.mark.parametrize("variant", group_choices("attention"))
def test_every_parameter_is_in_one_group(variant):
    model = small_model(attention=variant)
    optimizer = build_optimizer({**ADAMW, "weight_decay": 0.5}, model)
    decayed, free = (group["params"] for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    assert sorted(map(id, [*decayed, *free])) == sorted(map(id, model.parameters()))
    assert all(p.ndim > 1 for p in decayed)
    learned = [p for name, p in model.named_parameters() if name.endswith("alpha_logit")]
    assert {id(p) for p in learned} <= {id(p) for p in free}
    assert all(p.is_contiguous() for p in model.parameters())  # else the fused step is not used


@pytest.mark.parametrize("share", ["none", "site"])
def test_alpha_has_a_factor_of_its_learning_rate(share):
    model = small_model(layers=2, share=share, depends_on="query", lr_factor=0.5)
    optimizer = build_optimizer({**ADAMW, "weight_decay": 0.5}, model)
    set_learning_rate(optimizer, 0.5)
    own = {id(p) for name, p in model.named_parameters() if "alpha_" in name}
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates == {id(p): 0.25 if id(p) in own else 0.5 for p in model.parameters()}


def test_frozen_parameters_are_omitted():
    model = small_model()
    model.output.weight.requires_grad_(False)
    optimizer = build_optimizer(ADAMW, model)
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert id(model.output.weight) not in trained


def test_model_without_trainable_parameters_is_rejected():
    """Gates of layers whose heads are all pruned have an empty parameter."""
    model = small_model().requires_grad_(False)
    model.register_parameter("no_gate", torch.nn.Parameter(torch.empty(0)))
    with pytest.raises(ConfigError, match="no parameter is left to train"):
        build_optimizer(ADAMW, model)


def test_fused_step_is_used_where_available():
    def is_fused(node, model):
        return any(group.get("fused") for group in build_optimizer(node, model).param_groups)

    assert is_fused(ADAMW, small_model())
    assert not is_fused({**ADAMW, "foreach": True}, small_model())
    assert not is_fused({**ADAMW, "differentiable": True}, small_model())
    assert not is_fused({"_target_": "torch.optim.RMSprop", "lr": 0.1}, small_model())
    model = small_model()
    model.output.weight = torch.nn.Parameter(model.output.weight.detach().t().contiguous().t())
    assert not is_fused(ADAMW, model)


def test_loaded_optimizer_keeps_its_unfused_step():
    model = small_model()
    before = build_optimizer({**ADAMW, "fused": None}, model)
    after = build_optimizer(ADAMW, model)
    after.load_state_dict(before.state_dict())
    assert not any(group["fused"] for group in after.param_groups)


BASE = 7e-4


NOAM = Noam(warmup_updates=20_000, d_model=512, factor=2.0)
SQRT, COSINE = InverseSqrt(400), Cosine(100, total_updates=1100, final_fraction=0.2)
QUARTER = 0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # papers: factor 2, D = 512 and 20k warm-up peak at 6.25e-4, whatever the base is
        (NOAM, {20_000: 6.25e-4 / BASE}),
        (NOAM, {u: 2 * 512**-0.5 * min(u**-0.5, u * 20_000**-1.5) / BASE for u in (1, 777, 10**5)}),
        (SQRT, {1: 1 / 400, 200: 1 / 2, 400: 1, 1600: 1 / 2}),
        (COSINE, {50: 1 / 2, 100: 1, 350: QUARTER, 600: 0.6, 1100: 0.2, 5000: 0.2}),
        (Constant(), {1: 1, 99: 1}),
        (Constant(10), {5: 1 / 2, 99: 1}),
    ],
)
def test_learning_rate_by_update(schedule, expected):
    rates = {update: schedule.learning_rate(update, BASE) / BASE for update in expected}
    assert rates == pytest.approx(expected, rel=1e-12)
    other = schedule.learning_rate(50, 123.0)
    assert other == pytest.approx(
        schedule.learning_rate(50, BASE) * (1 if schedule is NOAM else 123.0 / BASE)
    )


@pytest.mark.parametrize(
    "schedule",
    [InverseSqrt(300), Noam(300, 64), Cosine(300, 2000), Constant(300)],
    ids=lambda schedule: type(schedule).__name__,
)
def test_no_jump_at_the_end_of_the_warmup(schedule):
    learning_rates = [schedule.learning_rate(update, BASE) for update in range(1, 600)]
    highest = max(learning_rates)
    assert learning_rates.index(highest) == 299
    assert all(lr > 0 for lr in learning_rates)
    steps = [abs(after - before) for before, after in itertools.pairwise(learning_rates)]
    assert max(steps) <= highest / 300 * (1 + 1e-9)


@pytest.mark.parametrize("name", group_choices("scheduler"))
def test_yamls_have_the_defaults(name):
    node = group_node("scheduler", name)
    arguments = inspect.signature(target_class(node, "scheduler")).parameters.values()
    defaults = {a.name: a.default for a in arguments if a.default is not a.empty}
    assert {key: node[key] for key in defaults} == defaults

import pytest
import torch

from headwise.config.folders import group_choices
from headwise.errors import ConfigError
from headwise.train.optim import build_optimizer, set_learning_rate
from training_steps import small_model

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

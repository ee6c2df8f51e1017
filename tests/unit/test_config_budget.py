"""Estimates of the dry run compared with the model."""

import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from command_line import composer
from headwise.config.instantiate import instantiate
from headwise.config.register import typed
from headwise.config.schema import SITES, TokenizerConfig
from headwise.data.tokenizer import TokenizerPair
from headwise.data.tokenizer_training import train_tokenizer
from headwise.model.build import build_model
from headwise.model.family import n_parameters
from headwise.ops.flops import register_flops
from headwise.tasks.dry_run import budget, describe_budget
from headwise.tasks.task import task_of
from headwise.train.optim import build_optimizer

pytestmark = pytest.mark.slow

SMALL = ["model.d_model=32", "model.n_heads=4", "model.d_ff=48", "tokenizer.vocab_size=150"]
N_ROWS, LENGTH = 4, 30  # a length that equals no width


def density_budget(*overrides):
    """The estimate for windows of 512 bytes, none of whose widths is 512."""
    small = ("data=text", "model.layers=2", "model.d_model=32", "model.n_heads=4", "model.d_ff=48")
    sizes = ("data.window=512", "trainer.max_tokens=1500", "trainer.precision=fp32")
    with composer() as make:
        config = typed(make([*small, *sizes, "attention=softmax", *overrides]))
    return budget(task_of(config))


def estimate(config, *length):
    return budget(task_of(config), *length)


def config_of(*overrides):
    with composer() as make:
        return typed(make([*SMALL, f"trainer.max_tokens={N_ROWS * LENGTH}", *overrides]))


def measured(config):
    """Return the FLOPs of one batch, forward and backward."""
    vocab = config.tokenizer.vocab_size
    model = build_model(config, vocab, vocab, config.tokenizer.joint)
    ids = torch.randint(4, vocab, (N_ROWS, LENGTH))
    lengths = torch.full((N_ROWS,), LENGTH - 1)
    half = config.trainer.precision == "bf16"
    register_flops()
    with FlopCounterMode(display=False) as counter:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            states_BTD = model.train().states(ids, lengths, ids)
            weight_VD = model.output.weight
            states_RD = states_BTD.flatten(0, 1)
            criterion = instantiate(config.loss, "loss")
            loss = criterion.from_states(states_RD, weight_VD, ids.flatten()).loss
        loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("attention", "overrides"),
    [
        ("softmax", ()),
        ("alpha_entmax", ("trainer.precision=bf16",)),
        ("tanh", ("model.cls_tokens=16",)),
        ("linear", ()),
    ],
)
def test_estimates_are_close_to_measurements(attention, overrides):
    sizes = ("model.encoder_layers=3", "model.decoder_layers=2", "trainer.precision=fp32")
    config = config_of(f"attention={attention}", *sizes, *overrides)
    estimated = estimate(config, LENGTH)
    assert sum(estimated.flops.values()) == pytest.approx(measured(config), rel=0.05)


def test_recomputation_adds_a_forward_pass():
    sizes = ("model.encoder_layers=2", "model.decoder_layers=4", "trainer.precision=fp32")
    plain, saving = config_of(*sizes), config_of(*sizes, "model.recompute=true")
    recomputed, without = estimate(saving, LENGTH), estimate(plain, LENGTH)
    assert sum(recomputed.flops.values()) == pytest.approx(measured(saving), rel=0.05)
    assert recomputed.flops["vocabulary"] == without.flops["vocabulary"]


def test_pruned_heads_cost_nothing():
    config = config_of("trainer.precision=fp32")
    config.model.heads = {site: [[1], [1, 2, 3]] for site in SITES}
    pruned, whole = estimate(config, LENGTH), estimate(config_of("trainer.precision=fp32"), LENGTH)
    assert pruned.n_parameters == n_parameters(build_model(config, 150, 150, True))
    for part in ("projections", "attention"):
        assert pruned.flops[part] == whole.flops[part] / 2  # 4 of 8 heads per site
    assert pruned.flops["feed-forward"] == whole.flops["feed-forward"]


def test_parameters_and_alphas_equal_those_of_the_model():
    config = config_of("tokenizer.joint=false", "model.share_embeddings=none")
    estimated = estimate(config)
    assert estimated.n_parameters == n_parameters(build_model(config, 150, 150, False))
    assert estimated.n_alphas == 6 * 4  # layers and sites, times heads
    config = config_of("attention=softmax", "tokenizer=byte")
    estimated = estimate(config)
    assert estimated.n_parameters == n_parameters(build_model(config, 260, 260, True))
    assert estimated.n_alphas == 0


def test_weight_bytes_include_gradients_and_moments():
    config = config_of()
    model = build_model(config, 150, 150, True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = build_optimizer(config.optimizer, model)
    optimizer.step()
    n_bytes_expected = sum(
        moment.nbytes for state in optimizer.state.values() for moment in state.values()
    )
    n_bytes_expected += 2 * sum(parameter.nbytes for parameter in model.parameters())
    assert estimate(config).weight_bytes == pytest.approx(n_bytes_expected, rel=0.01)


def test_accumulation_adds_flops():
    one, four = estimate(config_of()), estimate(config_of("trainer.accumulate=4"))
    assert sum(four.flops.values()) == 4 * sum(one.flops.values())


def test_description_adds_up_over_batches_and_updates():
    config = config_of("trainer.accumulate=2", "trainer.max_updates=1000", "model.recompute=true")
    text = describe_budget(task_of(config), estimate(config))
    ((tokens, flops, unit),) = re.findall(r"update: (\S+) .*, (\S+) (\w)FLOP", text)
    assert int(tokens) == 2 * N_ROWS * LENGTH
    total = sum(estimate(config).flops.values())
    assert float(flops) * {"M": 1e6, "G": 1e9}[unit] == pytest.approx(total, rel=0.01)
    assert f"1,000 updates: {flops} {'GT'['MG'.index(unit)]}FLOP per rank" in text
    for expected in ("parameters", "GiB", "attention: ", "dropout: "):
        assert expected in text


def test_vocabulary_size_is_that_of_the_given_tokenizer(tmp_path):
    tokenizer = train_tokenizer(iter(["ab cd"] * 9), TokenizerConfig(kind="char", vocab_size=99))
    TokenizerPair(tokenizer, tokenizer, joint=True).save(tmp_path)
    from_folder = estimate(config_of("tokenizer=given", f"tokenizer.folder={tmp_path}"))
    from_size = estimate(config_of(f"tokenizer.vocab_size={tokenizer.vocab_size}"))
    assert from_folder == from_size


@pytest.mark.parametrize(
    ("recipe", "millions"), [("enwik8", 95), ("cifar10", 59), ("imagenet64", 152), ("music", 152)]
)
def test_density_recipes_have_the_published_number_of_parameters(recipe, millions):
    with composer() as make:
        config = typed(make([f"experiment=child2019/{recipe}"]))
    task = task_of(config)
    with torch.device("meta"):
        model = task.model(task.sizes())
    assert n_parameters(model) == pytest.approx(millions * 1e6, rel=0.02)


def test_windows_of_a_density_model_are_whole_rows():
    estimated = density_budget()
    width, inner, n = 32, 48, 512
    forward = 2 * n * 2 * (4 * width**2 + 2 * width * inner)
    attention = 2 * n * 2 * 2 * n * width
    vocabulary = 2 * n * width * 260
    total = 3 * (forward + vocabulary) + 3.5 * attention  # scores are formed again in the backward
    assert sum(estimated.flops.values()) == pytest.approx(2 * total, rel=0.01)
    assert density_budget("trainer.max_tokens=1024").flops == estimated.flops
    one = density_budget("trainer.max_tokens=100")  # a window, whatever its length
    assert sum(one.flops.values()) == sum(estimated.flops.values()) / 2


@pytest.mark.parametrize("learned", ["head", "query"])
def test_models_with_a_scaling_are_estimated(learned):
    scaled, plain = density_budget("scaling=length", f"scaling.learned={learned}"), density_budget()
    per_head = {"head": 2, "query": 2 * (32 + 1)}[learned]  # a map of each query has d_model + 1
    assert scaled.n_parameters - plain.n_parameters == 2 * 4 * per_head  # layers, heads


@pytest.mark.parametrize("attention", ["softmax", "alpha_entmax"])
def test_a_pattern_counts_its_own_keys(attention):
    dense = density_budget(f"attention={attention}")
    strided = density_budget(f"attention={attention}", "pattern=strided", "pattern.stride=16")
    slots = 2 * 16 + 512 // 16
    expected = dense.flops["attention"] * slots / 512
    # without the scores that the backward pass forms again
    assert strided.flops["attention"] == pytest.approx(expected * 6 / 7)
    assert strided.flops["feed-forward"] == dense.flops["feed-forward"]

"""The dry run's figures against the model itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from command_line import composer
from headwise.config.instantiate import instantiate
from headwise.config.schema import SITES, Config, TokenizerConfig, typed
from headwise.data.tokenizer import TokenizerPair
from headwise.data.tokenizer_training import train_tokenizer
from headwise.model.build import build_model
from headwise.model.family import n_parameters
from headwise.tasks.translation import Translation
from headwise.train.budget import Budget, budget, describe_budget
from headwise.train.optim import build_optimizer
from saved_memory import n_bytes, saved_storages

SMALL = ["model.d_model=32", "model.n_heads=4", "model.d_ff=48", "tokenizer.vocab_size=150"]
TASK = Translation()
N_ROWS, LENGTH = 4, 30  # a length that no width has


def make_model(config: Config) -> Any:
    return TASK.model(config, TASK.sizes(config))


def planned(config: Config, *length: int) -> Budget:
    return budget(config, make_model, *length)


def config_of(*overrides: str) -> Any:
    with composer() as make:
        return typed(make([*SMALL, f"trainer.max_tokens={N_ROWS * LENGTH}", *overrides]))


def measured(config: Any) -> tuple[int, int]:
    """FLOPs of one batch, forward and backward, and the bytes autograd kept."""
    vocab = config.tokenizer.vocab_size
    model = build_model(config, vocab, vocab, config.tokenizer.joint)
    ids = torch.randint(4, vocab, (N_ROWS, LENGTH))
    lengths = torch.full((N_ROWS,), LENGTH - 1)
    half = config.trainer.precision == "bf16"
    with FlopCounterMode(display=False) as counter, saved_storages(model) as saved:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            states_BTD = model.train().states(ids, lengths, ids)
            weight_VD = model.output.weight
            states_RD = states_BTD.flatten(0, 1)
            criterion = instantiate(config.loss, "loss")
            loss = criterion.of_states(states_RD, weight_VD, ids.flatten()).loss
        loss.backward()
    return counter.get_total_flops(), n_bytes(saved)


@pytest.mark.parametrize(
    ("attention", "overrides"),
    [
        ("softmax", ()),
        ("alpha_entmax", ("trainer.precision=bf16",)),
        ("tanh", ("model.register_tokens=16",)),
        ("linear", ()),
    ],
)
def test_the_count_is_near_what_is_measured(attention: str, overrides: tuple[str, ...]) -> None:
    sizes = ("model.encoder_layers=3", "model.decoder_layers=2", "trainer.precision=fp32")
    config = config_of(f"attention={attention}", *sizes, *overrides)
    found = planned(config, LENGTH)
    flops, kept_bytes = measured(config)
    assert sum(found.flops.values()) == pytest.approx(flops, rel=0.05)
    assert found.activation_bytes == pytest.approx(kept_bytes, rel=0.6)


def test_recomputation_costs_a_forward_pass_and_saves_memory() -> None:
    sizes = ("model.encoder_layers=2", "model.decoder_layers=4", "trainer.precision=fp32")
    plain, saving = config_of(*sizes), config_of(*sizes, "model.recompute=true")
    found, without = planned(saving, LENGTH), planned(plain, LENGTH)
    assert sum(found.flops.values()) == pytest.approx(measured(saving)[0], rel=0.05)
    assert found.flops["vocabulary"] == without.flops["vocabulary"]
    assert found.activation_bytes < 0.4 * without.activation_bytes


def test_heads_that_were_pruned_cost_nothing() -> None:
    config = config_of("trainer.precision=fp32")
    config.model.heads = {site: [[1], [1, 2, 3]] for site in SITES}
    found, whole = planned(config, LENGTH), planned(config_of("trainer.precision=fp32"), LENGTH)
    assert found.n_parameters == n_parameters(build_model(config, 150, 150, True))
    for part in ("projections", "dense attention"):
        assert found.flops[part] == whole.flops[part] / 2  # 4 of 8 heads a site
    assert found.flops["feed-forward"] == whole.flops["feed-forward"]


def test_parameters_and_alphas_are_those_of_the_built_model() -> None:
    config = config_of("tokenizer.joint=false", "model.share_embeddings=none")
    found = planned(config)
    assert found.n_parameters == n_parameters(build_model(config, 150, 150, False))
    assert found.n_alphas == 6 * 4  # layers and sites, times heads
    config = config_of("attention=softmax", "tokenizer=byte")
    found = planned(config)
    assert found.n_parameters == n_parameters(build_model(config, 260, 260, True))
    assert found.n_alphas == 0


def test_weights_gradients_and_moments_are_those_of_the_optimizer() -> None:
    config = config_of()
    model = build_model(config, 150, 150, True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = build_optimizer(config.optimizer, model)
    optimizer.step()
    held = sum(moment.nbytes for state in optimizer.state.values() for moment in state.values())
    held += 2 * sum(parameter.nbytes for parameter in model.parameters())
    assert planned(config).weight_bytes == pytest.approx(held, rel=0.01)


def test_accumulation_costs_arithmetic_but_no_memory() -> None:
    one, four = planned(config_of()), planned(config_of("trainer.accumulate=4"))
    assert sum(four.flops.values()) == 4 * sum(one.flops.values())
    assert four.activation_bytes == one.activation_bytes


def test_the_text_adds_up_over_batches_and_updates() -> None:
    config = config_of("trainer.accumulate=2", "trainer.max_updates=1000", "model.recompute=true")
    text = describe_budget(config, make_model)
    ((tokens, flops, unit),) = re.findall(r"an update: (\S+) .*, (\S+) (\w)FLOP", text)
    assert int(tokens) == 2 * N_ROWS * LENGTH
    total = sum(planned(config).flops.values())
    assert float(flops) * {"M": 1e6, "G": 1e9}[unit] == pytest.approx(total, rel=0.01)
    assert f"1,000 updates: {flops} {'GT'['MG'.index(unit)]}FLOP a rank" in text
    for wanted in ("parameters", "GiB", "dense attention", "every layer's input"):
        assert wanted in text


def test_the_vocabulary_is_that_of_a_given_tokenizer(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(iter(["ab cd"] * 9), TokenizerConfig(kind="char", vocab_size=99))
    TokenizerPair(tokenizer, tokenizer, joint=True).save(tmp_path)
    given = planned(config_of("tokenizer=given", f"tokenizer.folder={tmp_path}"))
    same = planned(config_of(f"tokenizer.vocab_size={tokenizer.vocab_size}"))
    assert given == same

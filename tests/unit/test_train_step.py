"""An update on an accelerator never waits for it.

Tensors on the meta device have no values: whatever reads one back (`item`, `nonzero`, a branch on
a tensor, a copy to the host) raises there. Code takes the path of accelerators on it: it is no CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # else first needed where torch.Generator, which its types name, is patched
from torch import Tensor

from command_line import composer
from headwise.config_dir import group_choices
from headwise.data.batching import Batch, collate
from headwise.data.store import EncodedSplit
from headwise.entmax import triton_device, triton_loss
from headwise.instantiate import instantiate
from headwise.model.build import build_model
from headwise.model.gates import gate_penalty
from headwise.train.distributed import Ranks
from headwise.train.optim import build_optimizer
from headwise.train.settings import typed
from headwise.train.step import TrainingStep

META = torch.device("meta")
N_WORDS = 40
MODEL = [
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "model.d_model=32",
    "model.n_heads=2",
    "model.d_ff=32",
    "trainer.clip_norm=1",
    "trainer.precision=fp32",
    "+optimizer.fused=false",  # which torch has for real devices only
]
VARIANTS = [
    *([f"attention={choice}"] for choice in group_choices("attention") if choice != "linformer"),
    ["attention=linformer", "attention.max_length=512"],  # a longer sentence is refused
    *([f"pattern={choice}", "attention=entmax15"] for choice in group_choices("pattern")),
    *([f"scaling={choice}"] for choice in group_choices("scaling")),
    *([f"gates={choice}"] for choice in group_choices("gates")),
    *([f"repulsion={choice}"] for choice in group_choices("repulsion")),
    ["attention.depends_on=query"],
    ["model.register_tokens=2"],
    ["model.recompute=true"],
]
# Without a kernel these solve most rows over a few classes and look at how many are left:
# one look costs less than the passes over the whole vocabulary that it saves.
LOSSES_THAT_LOOK = ["entmax", "entmax15", "sparsemax"]


@pytest.fixture(scope="module")
def make() -> Iterator[Any]:
    with composer() as compose:
        yield compose


@pytest.fixture(autouse=True)
def _what_meta_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has no autocast (float32 needs none) and no generators for the meta device."""
    make_generator = torch.Generator
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    monkeypatch.setattr(torch, "autocast", lambda kind, enabled=True: nullcontext())
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": make_generator())


def step_of(config: Any) -> TrainingStep:
    model = build_model(config, N_WORDS, N_WORDS, joint=True).to(META)
    repulsion = instantiate(config.repulsion, "repulsion")
    return TrainingStep(
        model,
        instantiate(config.loss, "loss"),
        build_optimizer(config.optimizer, model),
        instantiate(config.scheduler, "scheduler"),
        config.trainer,
        1,
        Ranks(0, 1, META),
        lambda update: repulsion(model, update, 1),
        lambda: gate_penalty(model),
    )


def batch(*lengths: int) -> Batch:
    """Rows of some lengths, in host memory."""
    rows = [[4 + i % 30 for i in range(n)] for n in lengths]
    split = EncodedSplit.from_lists(rows, rows[::-1])
    return collate(split, np.arange(len(rows), dtype=np.int32))


@pytest.mark.parametrize("chosen", VARIANTS, ids=" ".join)
def test_an_update_reads_nothing_back(make: Any, chosen: list[str]) -> None:
    step = step_of(typed(make([*MODEL, *chosen])))
    assert step(1, [batch(5, 9), batch(300)]) == 317
    assert step(2, [batch(7)]) == 8
    assert step.window.is_meta


@pytest.mark.parametrize("choice", group_choices("loss"))
def test_only_entmax_losses_read_back(make: Any, choice: str) -> None:
    step = step_of(typed(make([*MODEL, f"loss={choice}"])))
    looks = pytest.raises(NotImplementedError, match="nonzero")
    with looks if choice in LOSSES_THAT_LOOK else nullcontext():
        step(1, [batch(5, 9)])


@pytest.mark.parametrize("choice", group_choices("loss"))
def test_with_a_kernel_no_loss_reads_back(
    make: Any, choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(scores: Tensor, alpha: float, with_total: bool) -> tuple[Tensor, ...]:
        of_rows = scores.new_empty(len(scores))
        return of_rows, of_rows, of_rows if with_total else None, scores.new_empty(len(scores), 2)

    monkeypatch.setattr(triton_device, "takes", lambda scores: True)
    monkeypatch.setattr(triton_loss, "read", read)  # nothing can be launched on meta
    monkeypatch.setattr(triton_loss, "write_gradient", lambda *given: None)
    step = step_of(typed(make([*MODEL, f"loss={choice}"])))
    step(1, [batch(5, 9)])


def test_every_rank_draws_its_own_and_bears_its_share_of_a_penalty(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[tuple[int, ...]] = []
    monkeypatch.setattr("headwise.train.step.seed_everything", lambda *given: seeds.append(given))
    step = step_of(typed(make(MODEL)))
    weight = torch.ones((), requires_grad=True)
    step.penalty = lambda: 6 * weight
    step.ranks = Ranks(1, 3, META)
    monkeypatch.setattr(Ranks, "sum_gradients", lambda self, parameters: None)
    step(7, [batch(4)])
    assert seeds == [(1, 7, 1)]
    assert weight.grad == 2


def test_a_value_read_back_would_be_noticed() -> None:
    with pytest.raises(RuntimeError, match=r"meta|item"):
        torch.ones(2, device=META).sum().item()

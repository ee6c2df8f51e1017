"""An update on an accelerator does not wait for it.

Tensors on the meta device have no values: whatever reads one back (`item`, `nonzero`, a branch on
a tensor, a copy to the host) raises there. Code takes the path of accelerators on it.
"""

from contextlib import nullcontext

import pytest
import torch
import torch._dynamo  # else first needed where torch.Generator, which its types name, is patched

from headwise.config.folders import group_choices
from headwise.config.register import typed
from headwise.ops import check
from headwise.ops.losses import triton as triton_losses
from headwise.ops.triton import device as triton_device
from headwise.train.distributed import Ranks
from slow_marks import slow_but
from training_steps import batch, step_of

META = torch.device("meta")
LOSSES = slow_but(group_choices("loss"), "cross_entropy", "entmax")
MODEL = [
    "model.encoder_layers=2", "model.decoder_layers=2", "model.d_model=32", "model.n_heads=2",
    "model.d_ff=32", "trainer.clip_norm=1", "trainer.precision=fp32",
    "+optimizer.fused=false",  # which torch has for real devices only
]  # fmt: skip


@pytest.fixture(autouse=True)
def _replace_missing_on_meta(monkeypatch):
    """Torch has no autocast (float32 needs none) and no generators for the meta device."""
    make_generator = torch.Generator
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    monkeypatch.setattr(torch, "autocast", lambda kind, enabled=True: nullcontext())
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": make_generator())


@pytest.mark.parametrize("choice", LOSSES)
def test_no_loss_reads_back(make, choice):
    step = step_of(typed(make([*MODEL, f"loss={choice}"])), META, vocab_size=2000)
    step(1, [batch(5, 9)])


@pytest.mark.parametrize("choice", LOSSES)
def test_no_kernel_reads_back(make, choice, monkeypatch):
    def read(scores, alpha, with_total):
        of_rows = scores.new_empty(len(scores))
        return of_rows, of_rows, of_rows if with_total else None, scores.new_empty(len(scores), 2)

    monkeypatch.setattr(triton_device, "supports", lambda scores: True)
    monkeypatch.setattr(check, "failure", lambda library: None)
    monkeypatch.setattr(triton_losses, "read", read)  # nothing can be launched on meta
    monkeypatch.setattr(triton_losses, "write_gradient", lambda *arguments: None)
    step = step_of(typed(make([*MODEL, f"loss={choice}"])), META)
    step(1, [batch(5, 9)])


def test_ranks_share_penalties_and_have_different_seeds(make, monkeypatch):
    seeds = []
    monkeypatch.setattr(
        "headwise.train.step.seed_everything", lambda *arguments: seeds.append(arguments)
    )
    step = step_of(typed(make(MODEL)), META)
    weight = torch.ones((), requires_grad=True)
    step.penalty = lambda: 6 * weight
    step.ranks = Ranks(1, 3, META)
    monkeypatch.setattr(Ranks, "sum_gradients", lambda self, parameters: None)
    step(7, [batch(4)])
    assert seeds == [(1, 7, 1)]
    assert weight.grad == 2


def test_reading_back_a_meta_value_raises():
    with pytest.raises(RuntimeError, match=r"meta|item"):
        torch.ones(2, device=META).sum().item()

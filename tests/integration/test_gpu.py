"""Training on a real GPU: what its stand-in (`test_training_devices.py`) cannot tell."""

import pytest
import torch

from command_line import composer, train_small, write_corpus
from headwise.config.register import typed
from headwise.ops import dispatch
from headwise.seed import seed_everything
from headwise.train.checkpoint import load_checkpoint
from standin_gpu_jobs import SAME_NUMBERS, TINY
from training_steps import UPDATES, batch, step_of
from triton_marks import IS_INTERPRETED

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(IS_INTERPRETED or not torch.cuda.is_available(), reason="no GPU"),
]
LENGTHS = [[9, 7, 11, 3], [30, 26, 4], [17, 17]]


def last_loss(choices, device, may_wait=True):
    """The loss of the last update; from the second one on the host may not wait for the GPU."""
    with composer() as compose:
        config = typed(compose([*TINY, *SAME_NUMBERS, *choices]))
    seed_everything(1, "model")
    step = step_of(config, torch.device(device))
    try:
        for update, lengths in enumerate(LENGTHS, start=1):
            step(update, [batch(*lengths)])
            if not may_wait:
                torch.cuda.set_sync_debug_mode("error")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return float(step.window[0])


@pytest.mark.parametrize("choices", UPDATES, ids=" ".join)
def test_updates_match_the_cpu_without_host_waits(choices):
    on_gpu = last_loss(choices, "cuda")  # compiles and checks kernels
    assert not dispatch.failures()
    if "gates=hard_concrete" not in choices:  # whose noise each device draws
        assert on_gpu == pytest.approx(last_loss(choices, "cpu"), rel=1e-4)
    assert last_loss(choices, "cuda", may_wait=False) == pytest.approx(on_gpu, rel=1e-5)


@pytest.mark.parametrize("attention", ["softmax", "entmax15", "alpha_entmax", "linear", "tanh"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resumed_run_equals_uninterrupted_one(attention, precision, tmp_path):
    write_corpus(tmp_path / "text")
    settings = (f"attention={attention}", f"trainer.precision={precision}", "trainer.device=cuda")
    settings += ("trainer.save_every=4", "model.dropout=0.1", "model.attention_dropout=0.1")
    weights = []
    for name, stops in (("straight", [8]), ("halves", [4, 8])):
        for stop in stops:
            run = train_small(
                tmp_path, *settings, f"trainer.max_updates={stop}", f"experiment_name={name}"
            )
        weights.append(load_checkpoint(run / "checkpoints" / "last.pt")["model"])
    different = [name for name, one in weights[0].items() if not torch.equal(one, weights[1][name])]
    assert not different


def test_commands_run(headwise, tmp_path):
    write_corpus(tmp_path / "text")
    run = train_small(tmp_path, "attention=alpha_entmax", "trainer.precision=bf16")
    for command in ("evaluate", "analyze", "prune"):
        headwise.ok(command, f"run={run}", "device=cuda")

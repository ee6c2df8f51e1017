"""A run that is interrupted, in any way, ends bitwise equal to one that is not."""

import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import pytest

from headwise.train.checkpoint import load_checkpoint
from training_runs import NO_DROPOUT, free_port, read_log, run_outputs, run_python
from warm_python import PROCESSES

KILL = signal.SIGKILL
PAIR = {**NO_DROPOUT, "model.lr": 0.01, "trainer.clip_norm": 1, "trainer.max_tokens": 80}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
# The text is encoded again in each epoch; the run has more than one epoch.
BPE_DROPOUT = {
    "tokenizer": "bpe", "tokenizer.vocab_size": 60, "tokenizer.dropout": 0.3,
    "trainer.accumulate": 2, "trainer.max_tokens": 320,
}  # fmt: skip


@dataclass(frozen=True)
class Interruption:
    """Signals that a run gets, one after the other, see `Runs.train`.

    Files are replaced in this order: config, overrides, environment, (data,) at update 5 the
    numbered copy, last.pt, last.json; at 8 best.pt; at 10 as at 5. Two log lines are written at
    each of 3, 6, 8, 9, …: those after the last save must be removed on resuming. The eighth is of
    the validation at 8, the seventh of the validation's scores.
    """

    name: str
    signals: tuple[tuple[str, int, int], ...]
    changes: Mapping[str, object] = field(default_factory=dict)
    n_ranks: int = 1
    slow: bool = False


CASES = [
    Interruption("killed before a save", (("record", 2, KILL), ("replace", 5, KILL)), slow=True),
    Interruption("killed amid records", (("record", 8, KILL), ("record", 8, KILL))),
    Interruption(
        "killed at the first checkpoint", (("replace", 8, KILL), ("replace", 5, KILL)), slow=True
    ),
    Interruption(
        "killed between files of a checkpoint", (("replace", 10, KILL), ("replace", 12, KILL))
    ),
    Interruption("killed with BPE-dropout", (("record", 6, KILL),), BPE_DROPOUT, slow=True),
    Interruption("Ctrl-C between two updates", (("record", 5, signal.SIGINT),)),
    Interruption("hung up in a validation", (("record", 7, signal.SIGHUP),)),
    Interruption(
        "out of time, twice", (("record", 9, signal.SIGUSR1), ("record", 6, signal.SIGTERM))
    ),
    Interruption("a rank of two is killed", (("record", 8, KILL),), PAIR, n_ranks=2),
]


@pytest.fixture(scope="module")
def whole(runs):
    """Settings and number of ranks -> the folder of a run that is not interrupted."""

    @cache
    def trained(changes, n_ranks):
        outputs = f"whole-{n_ranks}-{len(changes)}"
        if n_ranks == 1:
            runs.train(outputs, dict(changes))
        else:
            results = runs.train_ranks(outputs, dict(changes), n_ranks)
            assert {result.code for result in results} == {0}, results
        return runs.run_folder(outputs)

    return lambda changes=None, n_ranks=1: trained(tuple((changes or {}).items()), n_ranks)


def test_logged_updates_have_no_gaps_or_duplicates(whole):
    lines = read_log(whole() / "metrics.jsonl")
    logged = [line["update"] for line in lines if "train/loss" in line]
    validated = [line["update"] for line in lines if "valid/loss" in line]
    assert logged == list(range(3, 25, 3))
    assert validated == [8, 16, 24]
    assert [line["update"] for line in lines] == sorted(line["update"] for line in lines)
    payload = load_checkpoint(whole() / "checkpoints" / "last.pt")
    assert payload["state"]["metrics_lines"] == len(lines)


@pytest.mark.slow
def test_train_script_is_bitwise_equal(runs, whole):
    """`python train.py` as a user starts it, in another folder and a new process."""
    completed = run_python(["train.py", *runs.arguments("again", {})])
    assert completed.returncode == 0, completed.stderr
    assert run_outputs(runs.run_folder("again")) == run_outputs(whole())


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.slow if case.slow else ())
        for case in CASES
    ],
)
def test_interrupted_run_is_bitwise_equal(runs, whole, case):
    outputs = case.name.replace(" ", "-").replace(",", "")

    def train(signal_at=None):
        if case.n_ranks > 1:
            return runs.train_ranks(outputs, case.changes, case.n_ranks, signal_at)
        return [runs.result(runs.arguments(outputs, case.changes), signal_at)]

    stopped_at = 0
    for signal_at in case.signals:
        number = signal_at[-1]
        first, *others = train(signal_at)
        assert first.code == (-KILL if number == KILL else 128 + number), first
        assert all(other.code != 0 for other in others), others
        if number == KILL:
            continue
        folder = runs.run_folder(outputs)
        assert "Give the same command again to resume" in first.output
        assert "Traceback" not in first.output
        assert not (folder / "error.json").exists()
        before, stopped_at = stopped_at, load_checkpoint(folder / "checkpoints" / "last.pt")
        stopped_at = stopped_at["state"]["update"]
        assert f"stopped at update {stopped_at}" in first.output
        assert before == 0 or f"resuming in {folder} at update {before}\n" in first.output
    last, *others = train()
    assert {one.code for one in (last, *others)} == {0}, last
    folder = runs.run_folder(outputs)
    assert run_outputs(folder) == run_outputs(whole(case.changes, case.n_ranks))
    assert not [p.name for p in folder.rglob("*.tmp")]
    assert not (folder / "scratch").exists()
    if stopped_at:
        assert stopped_at % 5, "not an update at which it saves anyway"
        assert f"resuming in {folder} at update {stopped_at}\n" in last.output
        log = (folder / "log.txt").read_text()
        resumed = f"INFO resuming in {folder} at update {stopped_at}\n"
        assert -1 < log.find(f"stopped at update {stopped_at}") < log.find(resumed)


@pytest.mark.slow
def test_bpe_dropout_has_more_than_one_epoch(whole):
    assert read_log(whole(BPE_DROPOUT) / "metrics.jsonl")[-2]["train/epoch"] > 1


# One rank is slow, the other is killed once, before an update.
KILLED = """
import os, signal, time
from headwise import cli
from headwise.train.step import TrainingStep

update_weights = TrainingStep.__call__

def update_or_die(step, update, batches):
    if int(os.environ["RANK"]) != {rank}:
        time.sleep(0.05)
    elif update == {update} and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return update_weights(step, update, batches)

TrainingStep.__call__ = update_or_die
cli.main("train")
"""


@pytest.mark.slow
def test_torchrun_restarts_a_killed_rank(runs, whole, tmp_path):
    chosen = random.Random(1)
    rank, update = chosen.randrange(2), chosen.randrange(2, 24)
    script = tmp_path / "killed.py"
    script.write_text(KILLED.format(rank=rank, update=update))
    arguments = runs.arguments("restarted", PAIR)
    completed = run_python([*TORCHRUN, "--max-restarts=1", script, *arguments])
    assert completed.returncode == 0, completed.stderr
    assert run_outputs(runs.run_folder("restarted")) == run_outputs(whole(PAIR, 2))


def wait_for_others(variables, ready):
    """Wait in a rendezvous as the rank of the variables."""
    from headwise.train.distributed import process_group
    from headwise.train.interrupt import stop_request

    os.environ.update(variables)
    with stop_request(""):
        ready.set()
        with process_group("cpu"):
            pass


@pytest.mark.parametrize(("rank", "number"), [("0", signal.SIGINT), ("1", signal.SIGTERM)])
def test_signal_ends_a_process_that_waits_for_others(rank, number):
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ready = PROCESSES.Event()
    process = PROCESSES.Process(target=wait_for_others, args=({**address, "RANK": rank}, ready))
    process.start()
    try:
        assert ready.wait(120)
        time.sleep(0.5)
        os.kill(process.pid or 0, number)
        process.join(10)
        assert process.exitcode == -number
    finally:
        process.kill()

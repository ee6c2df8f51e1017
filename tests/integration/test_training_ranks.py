"""Two ranks over gloo compared with one rank with twice the tokens per batch."""

import os
import random
import signal
import time

import pytest

from training_runs import (
    NO_DROPOUT,
    assert_same_metrics,
    free_port,
    run_outputs,
    run_python,
)
from warm_python import PROCESSES

ONE = {**NO_DROPOUT, "model.lr": 0.01, "trainer.clip_norm": 1}
PAIR = {**ONE, "trainer.max_tokens": 80}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

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


@pytest.fixture(scope="module")
def pair(runs):
    """The folder of a run of two ranks."""
    assert [rank.code for rank in runs.train_ranks("pair", PAIR)] == [0, 0]
    return runs.run_folder("pair")


def test_two_ranks_equal_one_with_twice_the_tokens(runs, pair):
    runs.train("one", {**ONE, "trainer.max_tokens": 160})
    one = runs.run_folder("one")
    assert_same_metrics(one, pair)
    for split, n_lines in (("valid", 6), ("test_a", 5)):  # an odd number on two ranks
        texts = [(run / "hypotheses" / f"{split}.txt").read_text() for run in (one, pair)]
        assert texts[0] == texts[1]
        assert len(texts[1].splitlines()) == n_lines


def test_rank_without_rows_trains(runs):
    """With one training pair the second rank has no rows."""
    few = {"data.max_train_pairs": 1, "trainer.max_updates": 6}
    results = runs.train_ranks("few-pair", {**PAIR, **few})
    assert [rank.code for rank in results] == [0, 0], results
    runs.train("few-one", {**ONE, **few, "trainer.max_tokens": 160})
    assert_same_metrics(runs.run_folder("few-one"), runs.run_folder("few-pair"))


def test_killed_ranks_resume_bitwise_equal(runs, pair):
    first = runs.train_ranks("killed", PAIR, signal_at=("record", 8, signal.SIGKILL))
    assert first[0].code == -signal.SIGKILL
    assert first[1].code != 0
    assert [rank.code for rank in runs.train_ranks("killed", PAIR)] == [0, 0]
    assert run_outputs(runs.run_folder("killed")) == run_outputs(pair)


@pytest.mark.slow
def test_torchrun_restarts_a_killed_rank(runs, pair, tmp_path):
    rank, update = random.randrange(2), random.randrange(2, 24)
    script = tmp_path / "killed.py"
    script.write_text(KILLED.format(rank=rank, update=update))
    arguments = runs.arguments("restarted", PAIR)
    completed = run_python([*TORCHRUN, "--max-restarts=1", script, *arguments])
    assert completed.returncode == 0, (rank, update, completed.stderr)
    assert run_outputs(runs.run_folder("restarted")) == run_outputs(pair), (rank, update)


def test_another_number_of_ranks_resumes(runs, pair):
    """After a signal to one rank, which stops all."""
    stopped = runs.train_ranks("fewer", PAIR, signal_at=("record", 5, signal.SIGTERM))
    assert [rank.code for rank in stopped] == [143, 143], stopped
    assert "same command again" in stopped[0].output
    assert "started with 2 processes, resuming with 1" in runs.train("fewer", PAIR)
    assert_same_metrics(runs.run_folder("fewer"), pair)


def test_rank_without_data_ends_all_with_one_message(runs):
    (runs.folder / "text-0").symlink_to(runs.text)
    without = {**PAIR, "data.dir": f"{runs.folder}/text-${{oc.env:RANK}}"}
    first, second = runs.train_ranks("without", without)
    assert 0 not in (first.code, second.code), (first, second)
    assert "text-1" in second.output
    assert "another process of this run has ended" in first.output
    assert "Traceback" not in first.output + second.output


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

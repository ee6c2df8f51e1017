"""Killed and stopped runs end bitwise equal to an uninterrupted run."""

import signal

import pytest

from headwise.train.checkpoint import load_checkpoint
from slow_marks import slow_but
from training_runs import read_log, run_outputs, run_python

KILL = signal.SIGKILL
BPE_DROPOUT = {"tokenizer": "bpe", "tokenizer.vocab_size": 60, "tokenizer.dropout": 0.3}


@pytest.fixture(scope="module")
def whole(runs):
    """Outputs of an uninterrupted run."""
    runs.train("whole")
    return run_outputs(runs.run_folder("whole"))


def test_logged_updates_have_no_gaps_or_duplicates(runs, whole):
    lines = read_log(runs.run_folder("whole") / "metrics.jsonl")
    logged = [line["update"] for line in lines if "train/loss" in line]
    validated = [line["update"] for line in lines if "valid/loss" in line]
    assert logged == list(range(3, 25, 3))
    assert validated == [8, 16, 24]
    assert [line["update"] for line in lines] == sorted(line["update"] for line in lines)
    payload = load_checkpoint(runs.run_folder("whole") / "checkpoints" / "last.pt")
    assert payload["state"]["metrics_lines"] == len(lines)


@pytest.mark.slow
def test_train_script_is_bitwise_equal(runs, whole):
    """`python train.py` as a user starts it, in another folder and a new process."""
    completed = run_python(["train.py", *runs.arguments("again", {})])
    assert completed.returncode == 0, completed.stderr
    assert run_outputs(runs.run_folder("again")) == whole


# Files are replaced in this order: config, overrides, environment, (data,) at update 5 the numbered
# copy, last.pt, last.json; at 8 best.pt; at 10 as at 5. Two log lines are written at each of 3, 6,
# 8, 9, …: those after the last save must be removed on resuming.
KILLED_AT = {
    "before-anything-was-saved": [("record", 2), ("replace", 5)],
    "amid-records": [("record", 8), ("record", 8)],
    "around-the-first-checkpoint": [("replace", 8), ("replace", 5)],
    "between-the-files-of-a-checkpoint": [("replace", 10), ("replace", 12)],
}


@pytest.mark.parametrize(
    "outputs", slow_but(KILLED_AT, "amid-records", "between-the-files-of-a-checkpoint")
)
def test_run_killed_twice_is_bitwise_equal(runs, whole, outputs):
    for event, n in KILLED_AT[outputs]:
        runs.train(outputs, signal_at=(event, n, KILL), code=-KILL)
    runs.train(outputs)
    assert run_outputs(runs.run_folder(outputs)) == whole
    leftovers = [p.name for p in runs.run_folder(outputs).rglob("*.tmp")]
    assert not leftovers


@pytest.mark.parametrize("number", slow_but([signal.SIGINT, signal.SIGHUP], signal.SIGHUP))
def test_run_stopped_by_signal_is_bitwise_equal(runs, whole, number):
    outputs = f"stopped-{number.name}"
    output = runs.train(outputs, signal_at=("record", 7, number), code=128 + number)
    folder = runs.run_folder(outputs)
    assert "Give the same command again to resume" in output
    assert "Traceback" not in output
    assert not (folder / "error.json").exists()
    update = load_checkpoint(folder / "checkpoints" / "last.pt")["state"]["update"]
    assert f"stopped at update {update}" in output
    assert update % 5  # not an update at which it saves anyway
    assert f"resuming in {folder} at update {update}\n" in runs.train(outputs)
    assert run_outputs(folder) == whole
    log = (folder / "log.txt").read_text()
    resumed = f"INFO resuming in {folder} at update {update}\n"
    assert -1 < log.find(f"stopped at update {update}") < log.find(resumed)


@pytest.mark.slow
def test_killed_run_with_bpe_dropout_is_bitwise_equal(runs):
    """The text is encoded again in each epoch; the run has more than one epoch."""
    changes = {**BPE_DROPOUT, "trainer.accumulate": 2, "trainer.max_tokens": 320}
    runs.train("bpe-whole", changes)
    whole = run_outputs(runs.run_folder("bpe-whole"))
    assert read_log(runs.run_folder("bpe-whole") / "metrics.jsonl")[-2]["train/epoch"] > 1
    runs.train("bpe-killed", changes, signal_at=("record", 6, KILL), code=-KILL)
    runs.train("bpe-killed", changes)
    assert run_outputs(runs.run_folder("bpe-killed")) == whole
    assert not (runs.run_folder("bpe-killed") / "scratch").exists()

"""Two ranks over gloo compared with one rank with twice the tokens per batch."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from training_runs import NO_DROPOUT, Runs, assert_same_metrics, run_outputs, run_python

ONE = {**NO_DROPOUT, "model.lr": 0.01}
PAIR = {**ONE, "trainer.max_tokens": 80}


@pytest.fixture(scope="module")
def pair(runs: Runs) -> Path:
    """The folder of a run started by torchrun."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    completed = run_python([*torchrun, "train.py", *runs.arguments("pair", PAIR)])
    assert completed.returncode == 0, completed.stderr
    return runs.run_folder("pair")


def test_two_ranks_equal_one_with_twice_the_tokens(runs: Runs, pair: Path) -> None:
    runs.train("one", {**ONE, "trainer.max_tokens": 160})
    one = runs.run_folder("one")
    assert_same_metrics(one, pair)
    for split, n_lines in (("valid", 6), ("test_a", 5)):  # an odd number on two ranks
        texts = [(run / "hypotheses" / f"{split}.txt").read_text() for run in (one, pair)]
        assert texts[0] == texts[1]
        assert len(texts[1].splitlines()) == n_lines


def test_rank_without_rows_trains(runs: Runs) -> None:
    """With one training pair the second rank has no rows."""
    few: dict[str, Any] = {"data.max_train_pairs": 1, "trainer.max_updates": 6}
    results = runs.train_ranks("few-pair", {**PAIR, **few})
    assert [rank.code for rank in results] == [0, 0], results
    runs.train("few-one", {**ONE, **few, "trainer.max_tokens": 160})
    assert_same_metrics(runs.run_folder("few-one"), runs.run_folder("few-pair"))


def test_killed_ranks_resume_bitwise_equal(runs: Runs, pair: Path) -> None:
    first = runs.train_ranks("killed", PAIR, signal_at=("record", 8, signal.SIGKILL))
    assert first[0].code == -signal.SIGKILL
    assert first[1].code != 0
    assert [rank.code for rank in runs.train_ranks("killed", PAIR)] == [0, 0]
    assert run_outputs(runs.run_folder("killed")) == run_outputs(pair)


def test_signal_to_one_rank_stops_all_ranks(runs: Runs, pair: Path) -> None:
    stopped = runs.train_ranks("stopped", PAIR, signal_at=("record", 5, signal.SIGTERM))
    assert [rank.code for rank in stopped] == [143, 143], stopped
    assert "same command again" in stopped[0].output
    assert [rank.code for rank in runs.train_ranks("stopped", PAIR)] == [0, 0]
    assert run_outputs(runs.run_folder("stopped")) == run_outputs(pair)

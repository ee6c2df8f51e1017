"""Two ranks over gloo compared with one rank with twice the tokens per batch."""

import signal

import pytest

from training_runs import NO_DROPOUT, assert_same_metrics

ONE = {**NO_DROPOUT, "model.lr": 0.01, "trainer.clip_norm": 1}
PAIR = {**ONE, "trainer.max_tokens": 80}


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

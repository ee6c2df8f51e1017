from types import SimpleNamespace

import pytest
import torch
from torch import nn

from headwise.config.schema import TrainerConfig
from headwise.errors import counted
from headwise.runs.folder import RunFolder
from headwise.train.average import choose_weights
from headwise.train.checkpoint import save_checkpoint
from headwise.train.distributed import Ranks


def write_checkpoints(tmp_path):
    """Weights 1 at update 10, 3 at 20, 5 at 30; the best is 100."""
    folder = RunFolder(tmp_path)
    folder.make()
    for name, value in (("update_10", 1), ("update_20", 3), ("update_30", 5), ("best", 100)):
        weights = {"weight": torch.full((1, 1), float(value))}
        save_checkpoint(folder.checkpoints / f"{name}.pt", {"model": weights})
    return folder


def choose(folder, n_averaged, scores, validates_part=True):
    """Choose weights; weight -> its score on the whole validation set."""
    model = nn.Linear(1, 1, bias=False)

    def evaluate(whole):
        assert whole
        return None, scores[int(model.weight.item())]

    trainer = SimpleNamespace(
        evaluate=evaluate, state=SimpleNamespace(best_score=9.0), model=model, folder=folder,
        ranks=Ranks(0, 1, torch.device("cpu")), config=TrainerConfig(average=n_averaged),
    )  # fmt: skip
    return choose_weights(trainer, validates_part), model.weight.item()


def test_better_average_is_saved(tmp_path, caplog):
    """The best checkpoint's score at its validation, 9.0 on a part of the set, does not count."""
    caplog.set_level("INFO", "headwise")
    folder = write_checkpoints(tmp_path)
    assert choose(folder, 2, {4: 7.5, 100: 7.0}) == ("average", 4.0)
    assert (folder.checkpoints / "average.pt").is_file()
    assert "of the last 2 checkpoints is better than the best one" in caplog.text


@pytest.mark.parametrize("score", [7.0, 6.9])
def test_average_that_is_not_better_is_removed(tmp_path, score):
    folder = write_checkpoints(tmp_path)
    assert choose(folder, 2, {4: score, 100: 7.0}) == ("best", 100.0)
    assert not (folder.checkpoints / "average.pt").exists()


@pytest.mark.parametrize(("score", "chosen"), [(9.1, "average"), (9.0, "best")])
def test_best_checkpoint_is_not_measured_twice(tmp_path, score, chosen):
    """Validations of the whole set gave it 9.0."""
    name, _ = choose(write_checkpoints(tmp_path), 2, {4: score}, validates_part=False)
    assert name == chosen


def test_best_checkpoint_is_used_without_averaging(tmp_path):
    assert choose(write_checkpoints(tmp_path), 0, {}) == ("best", 100.0)


def test_log_of_one_checkpoint_is_singular(tmp_path, caplog):
    caplog.set_level("INFO", "headwise")
    choose(write_checkpoints(tmp_path), 1, {5: 7.5, 100: 7.0})
    assert "the last checkpoint is" in caplog.text


def test_counted():
    counts = counted(1, "run"), counted(2000, "run"), counted(1, "process"), counted(0, "process")
    assert counts == ("1 run", "2,000 runs", "1 process", "0 processes")

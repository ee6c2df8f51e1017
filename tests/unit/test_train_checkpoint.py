import errno
import io
import os
import pickle
import random
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from headwise.config.schema import TrainerConfig
from headwise.errors import CheckpointError, HeadwiseError, counted
from headwise.runs.folder import RunFolder
from headwise.train.average import choose_weights
from headwise.train.checkpoint import (
    FORMAT_VERSION,
    KIND,
    average_weights,
    checkpoint_path,
    load_checkpoint,
    load_weights,
    numbered_checkpoints,
    save_checkpoint,
)
from headwise.train.distributed import Ranks


def saved_checkpoint(path, **more):
    save_checkpoint(path, {"model": {"weight": torch.arange(600.0)}, **more})
    return path


def test_round_trip_and_reproducible_bytes(tmp_path):
    content = {"state": {"update": 3, "score": None, "name": "α"}, "list": [1, 2.5, True]}
    first = saved_checkpoint(tmp_path / "first.pt", **content)
    (tmp_path / "elsewhere").mkdir()
    second = saved_checkpoint(tmp_path / "elsewhere" / "second.pt", **content)
    loaded = load_checkpoint(first)
    assert {key: loaded[key] for key in content} == content
    assert torch.equal(loaded["model"]["weight"], torch.arange(600.0))
    assert load_checkpoint(first, "meta")["model"][
        "weight"
    ].is_meta  # whatever device it was saved from
    assert first.read_bytes() == second.read_bytes()


class FullDisk(io.FileIO):
    """A file on a disk with room for 1,000 bytes."""

    def write(self, data):
        if self.tell() + len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_full_disk_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    path = saved_checkpoint(tmp_path / "last.pt", update=1)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", FullDisk)
        with pytest.raises(HeadwiseError, match=r"last\.pt.*No space.*same command.*intact"):
            saved_checkpoint(path, update=2)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


class Evil:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def cut(share):
    def write(path):
        content = saved_checkpoint(path).read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

    return write


def holding(content):
    return lambda path: torch.save(content, path)


def of_model(model):
    return lambda path: save_checkpoint(path, {"model": model})


def of_format(version):
    return lambda path: torch.save({**torch.load(saved_checkpoint(path)), "format": version}, path)


OTHER, WEIGHTS = "not a headwise checkpoint", "model must map names to tensors"
BAD = [  # how it is written, and words of the message
    (lambda path: None, ""),
    *((cut(share), "truncated") for share in (0.0, 0.001, 0.5, 0.99)),
    *((write, "") for write in (holding(Evil()), of_model({"weight": Evil()}))),
    (lambda path: path.write_bytes(pickle.dumps(Evil())), ""),
    *((holding(content), OTHER) for content in ({"weight": torch.zeros(2)}, [1, 2])),
    *((holding({"kind": kind, "format": 1}), OTHER) for kind in ("other", KIND)),
    *((of_model(model), WEIGHTS) for model in ([1], {1: torch.zeros(2)}, {"a": 1})),
    (of_model({"a": torch.eye(2).to_sparse()}), WEIGHTS),
    *((of_format(v), f"format {v};.*reads format {FORMAT_VERSION}") for v in (0, 99, None)),
]


@pytest.mark.parametrize(("write", "words"), BAD)
def test_bad_checkpoints_are_refused_and_execute_no_code(tmp_path, monkeypatch, write, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "best.pt")
    with pytest.raises(CheckpointError, match=rf"best\.pt.*{words}"):
        load_checkpoint(tmp_path / "best.pt")
    assert not (tmp_path / "executed").exists()


def test_damaged_bytes_are_rejected_or_harmless(tmp_path):
    path = saved_checkpoint(tmp_path / "last.pt")
    content = path.read_bytes()
    generator = random.Random(1)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(3):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        path.write_bytes(damaged)
        try:
            loaded = load_checkpoint(path)
        except CheckpointError:
            continue
        assert torch.equal(loaded["model"]["weight"], torch.arange(600.0))


def test_checkpoints_are_in_order_of_their_numbers(tmp_path):
    names = [f"update_{number:08d}.pt" for number in (2, 10, 10**8, 10**9)]
    for name in (*names, "best.pt", "update_x.pt"):
        (tmp_path / name).touch()
    assert [path.name for path in numbered_checkpoints(tmp_path)] == names


def trained(path, weights, files):
    """A run of 6 updates, the best at 4, finished with the scores of `weights`."""
    folder = RunFolder(path)
    folder.make()
    folder.write_json("checkpoints/last.json", {"update": 6, "train_seconds": 1, "best_update": 4})
    for name in files:
        (folder.checkpoints / f"{name}.pt").touch()
    if weights is not None:
        results = {"status": "finished", "updates": 6, "best_update": 4, "weights": weights}
        folder.write_json("results.json", results)
    return folder


@pytest.mark.parametrize(
    ("weights", "files", "loaded"),
    [
        ("best", ["last", "update_00000004", "update_00000006"], "update_00000004"),
        ("best", ["average", "best", "last"], "best"),
        ("average", ["average", "best", "last"], "average"),
        (None, ["last", "update_00000004"], "update_00000004"),
        ("best", ["last", "update_00000006"], None),
        ("average", ["best", "last", "update_00000006"], None),
    ],
)
def test_scored_weights_are_loaded_or_missed(tmp_path, weights, files, loaded):
    folder = trained(tmp_path, weights, files)
    if loaded is not None:
        assert checkpoint_path(folder, "auto") == folder.checkpoints / f"{loaded}.pt"
        return
    missing = rf"{weights or 'best'}\.pt is missing.*copy it back.*checkpoint={files[0]}"
    with pytest.raises(CheckpointError, match=missing):
        checkpoint_path(folder, "auto")


@pytest.mark.parametrize("record", ["results.json", "checkpoints/last.json"])
def test_broken_record_is_that_of_an_unfinished_run(tmp_path, record):
    folder = trained(tmp_path, None, ["best", "last"])
    (tmp_path / record).write_text("{", encoding="utf-8")
    assert checkpoint_path(folder, "auto") == folder.checkpoints / "best.pt"


def test_corrupted_checkpoint_error_names_the_others(tmp_path):
    path = saved_checkpoint(tmp_path / "last.pt")
    saved_checkpoint(tmp_path / "best.pt")
    damaged = bytearray(path.read_bytes())
    offset = damaged.index(torch.arange(100.0, 110.0).numpy().tobytes())
    damaged[offset] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"corrupted.*checkpoint=best.*init_from"):
        load_checkpoint(path)
    (tmp_path / "best.pt").unlink()
    with pytest.raises(CheckpointError, match=r"is corrupted\)\.$"):
        load_checkpoint(path)


def test_error_for_weights_of_another_model_names_keys():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = dict(nn.Sequential(nn.Linear(5, 4), nn.Identity(), nn.Linear(1, 1)).state_dict())
    with pytest.raises(CheckpointError) as error:
        load_weights(model, weights, "the run A")
    message = str(error.value)
    for part in ("the run A", "1.weight", "2.weight", "0.weight: got (4, 5), must be (4, 3)"):
        assert part in message
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.output = nn.Linear(3, 5, bias=False)
        self.output.weight = self.table.weight


def test_average_is_the_mean_and_keeps_ties_and_types(tmp_path):
    models = [_Tied() for _ in range(3)]
    paths = []
    for number, model in enumerate(models):
        weights = {**model.state_dict(), "half": torch.full((2,), number, dtype=torch.bfloat16)}
        paths.append(tmp_path / f"{number}.pt")
        save_checkpoint(paths[-1], {"model": weights})
    mean = average_weights(paths)
    expected = torch.stack([model.table.weight.detach() for model in models]).double().mean(0)
    assert torch.equal(mean["table.weight"], expected.float())
    assert torch.equal(mean["output.weight"], mean["table.weight"])
    assert mean["half"].dtype == torch.bfloat16
    assert mean["half"].tolist() == [1, 1]
    tied = _Tied()
    del mean["half"]
    load_weights(tied, mean, "the average")
    assert tied.output.weight is tied.table.weight
    assert torch.equal(tied.table.weight, expected.float())


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


@pytest.mark.parametrize(
    ("n_averaged", "scores", "validates_part", "chosen", "logged"),
    [
        # the best checkpoint's score at its validation, 9.0 on a part of the set, does not count
        (2, {4: 7.5, 100: 7.0}, True, ("average", 4.0), "of the last 2 checkpoints is better than"),
        (2, {4: 7.0, 100: 7.0}, True, ("best", 100.0), "is no better than"),
        (2, {4: 6.9, 100: 7.0}, True, ("best", 100.0), "is no better than"),
        # validations of the whole set gave it 9.0: it is not measured twice
        (2, {4: 9.1}, False, ("average", 4.0), "is better than"),
        (2, {4: 9.0}, False, ("best", 100.0), "is no better than"),
        (1, {5: 7.5, 100: 7.0}, True, ("average", 5.0), "the last checkpoint is better"),
        (0, {}, True, ("best", 100.0), ""),
    ],
)
def test_better_of_average_and_best_is_chosen(
    tmp_path, caplog, n_averaged, scores, validates_part, chosen, logged
):
    caplog.set_level("INFO", "headwise")
    folder = write_checkpoints(tmp_path)
    assert choose(folder, n_averaged, scores, validates_part) == chosen
    assert (folder.checkpoints / "average.pt").is_file() == (chosen[0] == "average")
    assert logged in caplog.text
    assert bool(caplog.text) == bool(logged)


def test_counted():
    counts = counted(1, "run"), counted(2000, "run"), counted(1, "process"), counted(0, "process")
    assert counts == ("1 run", "2,000 runs", "1 process", "0 processes")

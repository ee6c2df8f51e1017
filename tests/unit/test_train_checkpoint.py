import errno
import io
import os
import pickle
import random

import pytest
import torch
from torch import nn

from headwise.errors import CheckpointError, HeadwiseError
from headwise.runs.folder import RunFolder
from headwise.train import checkpoint as module
from headwise.train.checkpoint import (
    average_weights,
    checkpoint_path,
    load_checkpoint,
    load_weights,
    numbered_checkpoints,
    save_checkpoint,
)


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
    monkeypatch.setattr(module, "open", FullDisk, raising=False)
    with pytest.raises(HeadwiseError, match=r"last\.pt.*No space.*same command.*intact"):
        saved_checkpoint(path, update=2)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_missing_checkpoint_error_names_the_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"best\.pt"):
        load_checkpoint(tmp_path / "best.pt")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_truncated_checkpoint_is_rejected(tmp_path, share):
    path = saved_checkpoint(tmp_path / "last.pt")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match="truncated"):
        load_checkpoint(path)


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


class _Evil:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("kind", ["pickle", "torch", "inside"])
def test_loading_executes_no_code(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "best.pt"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(_Evil()))
    elif kind == "torch":
        torch.save(_Evil(), path)
    else:
        save_checkpoint(path, {"model": {"weight": _Evil()}})
    with pytest.raises(CheckpointError, match=r"best\.pt"):
        load_checkpoint(path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "content",
    [{"weight": torch.zeros(2)}, [1, 2], {"kind": "other"}, {"kind": module.KIND, "format": 1}],
)
def test_checkpoint_of_another_program_is_rejected(tmp_path, content):
    path = tmp_path / "best.pt"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="not a headwise checkpoint"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "model", [[1], {1: torch.zeros(2)}, {"a": torch.eye(2).to_sparse()}, {"a": 1}]
)
def test_weights_must_be_named_tensors(tmp_path, model):
    save_checkpoint(tmp_path / "best.pt", {"model": model})
    with pytest.raises(CheckpointError, match="model must map names to tensors"):
        load_checkpoint(tmp_path / "best.pt")


@pytest.mark.parametrize("version", [0, 99, None])
def test_other_format_versions_are_rejected(tmp_path, monkeypatch, version):
    monkeypatch.setattr(module, "FORMAT_VERSION", version)
    path = saved_checkpoint(tmp_path / "best.pt")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=rf"format {version};.*reads format 1"):
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

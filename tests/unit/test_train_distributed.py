"""How a process stands among the ranks, and how it leaves them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from headwise.errors import ConfigError, Interrupted, RunError
from headwise.train import distributed
from headwise.train.distributed import TIMEOUT, Ranks, choose_device, process_group

CPU = torch.device("cpu")


@pytest.fixture(params=["cpu", "cuda"])
def left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """The kind of device, and what fills when the group of two is left: no group is made."""
    found: list[str] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    device = torch.device(request.param, 0)
    monkeypatch.setattr(distributed, "choose_device", lambda name, rank: device)
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *names, **options: None)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: found.append("left"))
    return request.param, found


@pytest.mark.parametrize("error", [None, Interrupted("stopped", 15)], ids=repr)
def test_ranks_leave_together(left: tuple[str, list[str]], error: Exception | None) -> None:
    try:
        with process_group("auto") as ranks:
            assert (ranks.rank, ranks.world_size) == (1, 2)
            if error is not None:
                raise error
    except Interrupted:
        assert error is not None
    assert left[1] == ["left"]


def test_a_failed_rank_does_not_wait_for_others_on_gpus(left: tuple[str, list[str]]) -> None:
    kind, found = left
    with pytest.raises(RunError, match="out of memory"), process_group("auto"):
        raise RunError("out of memory")
    assert found == (["left"] if kind == "cpu" else [])


def test_backend_and_timeout(left: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr("torch.cuda.set_device", told.append)
    monkeypatch.setattr(
        "torch.distributed.init_process_group", lambda kind, timeout: told.append((kind, timeout))
    )
    with process_group("auto") as ranks:
        pass
    gpu = [ranks.device, ("nccl", TIMEOUT)]
    assert told == (gpu if left[0] == "cuda" else [("gloo", TIMEOUT)])


def test_every_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(distributed, "disable_cudnn_attention", lambda: None)
    for name in ("auto", "cuda"):
        assert [choose_device(name, rank).index for rank in (0, 1)] == [0, 1]
        with pytest.raises(ConfigError, match="process 3 of this machine sees 2 GPUs"):
            choose_device(name, 2)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_rank_goes_first(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr("torch.distributed.barrier", lambda: order.append("barrier"))
    with Ranks(rank, 2, CPU).first_alone():
        order.append("block")
    assert order == (["block", "barrier"] if rank == 0 else ["barrier", "block"])


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("n_items", [0, 1, 2, 7])
def test_gather_inverts_share(monkeypatch: pytest.MonkeyPatch, n_ranks: int, n_items: int) -> None:
    items = list("abcdefg"[:n_items])
    ranks = [Ranks(rank, n_ranks, CPU) for rank in range(n_ranks)]
    shares = [rank.share(items) for rank in ranks]
    assert sorted(item for share in shares for item in share) == items

    def all_gather(into: list[Any], own: list[Any]) -> None:
        into[:] = shares

    monkeypatch.setattr(dist, "all_gather_object", all_gather)
    for rank, share in zip(ranks, shares, strict=True):
        assert rank.gather(share) == items

"""How a process leaves the group of ranks."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import RunError
from headwise.train import distributed
from headwise.train.distributed import process_group
from headwise.train.interrupt import Interrupted


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
def test_ranks_that_end_together_leave(
    left: tuple[str, list[str]], error: Exception | None
) -> None:
    try:
        with process_group("auto") as ranks:
            assert (ranks.rank, ranks.world_size) == (1, 2)
            if error is not None:
                raise error
    except Interrupted:
        assert error is not None
    assert left[1] == ["left"]


def test_a_rank_that_fails_does_not_wait_for_the_others_on_gpus(
    left: tuple[str, list[str]],
) -> None:
    kind, found = left
    with pytest.raises(RunError, match="out of memory"), process_group("auto"):
        raise RunError("out of memory")
    assert found == (["left"] if kind == "cpu" else [])

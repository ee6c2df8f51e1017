"""Ranks: process groups, choice of devices, shares of items."""

import signal
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from headwise.errors import ConfigError, Interrupted, RunError
from headwise.train import distributed
from headwise.train.distributed import TIMEOUT, Ranks, choose_device, process_group
from headwise.train.interrupt import ended_by_signals, stop_request

CPU = torch.device("cpu")
TWO = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(params=["cpu", "cuda"])
def group(request, monkeypatch):
    """Kind of device, and a list that grows when the fake group of two is destroyed."""
    destroyed = []
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    device = torch.device(request.param, 0)
    monkeypatch.setattr(distributed, "choose_device", lambda name, rank: device)
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
    store = torch.distributed.HashStore()
    monkeypatch.setattr(distributed, "rendezvous", lambda *_, **__: iter([(store, 1, 2)]))
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *names, **options: None)
    monkeypatch.setattr(
        "torch.distributed.destroy_process_group", lambda: destroyed.append("destroyed")
    )
    return request.param, destroyed


@pytest.mark.parametrize("error", [None, Interrupted("stopped", 15)], ids=repr)
def test_group_is_destroyed_at_the_end_and_on_interruption(group, error):
    try:
        with process_group("auto") as ranks:
            assert (ranks.rank, ranks.world_size) == (1, 2)
            if error is not None:
                raise error
    except Interrupted:
        assert error is not None
    assert group[1] == ["destroyed"]


def test_failed_rank_does_not_wait_for_others_on_gpus(group):
    kind, destroyed = group
    with pytest.raises(RunError, match="out of memory"), process_group("auto"):
        raise RunError("out of memory")
    assert destroyed == (["destroyed"] if kind == "cpu" else [])


def test_backend_and_timeout(group, monkeypatch):
    calls = []
    monkeypatch.setattr("torch.cuda.set_device", calls.append)
    monkeypatch.setattr(
        "torch.distributed.init_process_group",
        lambda kind, timeout, **_: calls.append((kind, timeout)),
    )
    with process_group("auto") as ranks:
        pass
    gpu = [ranks.device, ("nccl", TIMEOUT)]
    assert calls == (gpu if group[0] == "cuda" else [("gloo", TIMEOUT)])


def test_restarted_processes_do_not_read_keys_of_the_former_ones(group, monkeypatch):
    stores = []
    monkeypatch.setattr(
        "torch.distributed.init_process_group", lambda _, store, **__: stores.append(store)
    )
    for restart in "01":
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        with process_group("auto"):
            stores[-1].set("address", restart)
    assert [store.get("address") for store in stores] == [b"0", b"1"]


def test_every_process_has_a_different_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(distributed, "disable_cudnn_attention", lambda: None)
    for name in ("auto", "cuda"):
        assert [choose_device(name, rank).index for rank in (0, 1)] == [0, 1]
        with pytest.raises(ConfigError, match="process 3 of this machine sees 2 GPUs"):
            choose_device(name, 2)


@pytest.mark.parametrize("rank", [0, 1])
def test_first_alone_runs_the_first_rank_first(rank, monkeypatch):
    order = []
    monkeypatch.setattr("torch.distributed.barrier", lambda: order.append("barrier"))
    with Ranks(rank, 2, CPU).first_alone():
        order.append("block")
    assert order == (["block", "barrier"] if rank == 0 else ["barrier", "block"])


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("n_items", [0, 1, 2, 7])
def test_gather_inverts_share(monkeypatch, n_ranks, n_items):
    items = list("abcdefg"[:n_items])
    ranks = [Ranks(rank, n_ranks, CPU) for rank in range(n_ranks)]
    shares = [rank.share(items) for rank in ranks]
    assert sorted(item for share in shares for item in share) == items

    def all_gather(into, value):
        into[:] = shares

    monkeypatch.setattr(dist, "all_gather_object", all_gather)
    for rank, share in zip(ranks, shares, strict=True):
        assert rank.gather(share) == items


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "2"}, "MASTER_ADDR .* is not set"),
        ({**TWO, "RANK": ""}, "RANK .* from 0 to 1, got ''"),
        ({**TWO, "RANK": "5"}, "RANK .* from 0 to 1, got '5'"),
        ({**TWO, "WORLD_SIZE": "abc"}, "WORLD_SIZE .* got 'abc'"),
        ({"WORLD_SIZE": "", "RANK": "5", "LOCAL_RANK": "x"}, None),
    ],
)
def test_variables_of_ranks(variables, message, monkeypatch):
    for name in (*TWO, "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    expected = nullcontext() if message is None else pytest.raises(ConfigError, match=message)
    with expected, process_group("cpu") as ranks:
        assert (ranks.rank, ranks.world_size) == (0, 1)


def test_failed_connection_is_one_message(monkeypatch):
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)

    error = dist.DistNetworkError("the port is in use\n0: C++ stack")
    monkeypatch.setattr(distributed, "rendezvous", Mock(side_effect=error))
    message = r"127.0.0.1:29500: the port is in use$"
    with pytest.raises(RunError, match=message), process_group("cpu"):
        pass


@pytest.mark.parametrize(
    ("call", "argument"), [("barrier", None), ("any", True), ("gather", []), ("sum_gradients", [])]
)
@pytest.mark.parametrize("is_deferred", [False, True])
def test_signal_ends_a_wait_unless_the_loop_defers_it(monkeypatch, call, argument, is_deferred):
    """In C++ Python would not call its handler."""
    handlers = []
    for name in ("barrier", "all_reduce", "all_gather_object"):
        wait = lambda *_: handlers.append(signal.getsignal(signal.SIGTERM))  # noqa: E731
        monkeypatch.setattr(dist, name, wait)
    with stop_request("", is_deferred) as stop:
        getattr(Ranks(0, 2, CPU), call)(*[] if argument is None else [argument])
        assert signal.getsignal(signal.SIGTERM) == stop.handle
        assert handlers == [stop.handle if is_deferred else signal.SIG_DFL]


def test_second_interrupt_ends_a_deferred_wait():
    with pytest.raises(KeyboardInterrupt), stop_request("", is_deferred=True):  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)
        with ended_by_signals():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        signal.raise_signal(signal.SIGINT)

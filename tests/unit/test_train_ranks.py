"""Ranks: process groups, choice of devices, shares of items, sums of gradients over gloo."""

import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from headwise.errors import ConfigError, Interrupted, RunError
from headwise.losses.loss import CrossEntropy
from headwise.seed import derived_seed
from headwise.tasks.translation.batches import collate
from headwise.train.distributed import TIMEOUT, Ranks, choose_device, process_group
from headwise.train.interrupt import ended_by_signals, stop_request
from headwise.train.optim import Constant
from headwise.train.step import TrainingStep
from training_runs import free_port
from training_steps import CONFIG, PAIRS, small_model
from warm_python import PROCESSES

CPU = torch.device("cpu")
HANDLERS = import_module("torch.distributed.rendezvous")._rendezvous_handlers
TWO = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs, for what chooses a device; the devices that were set."""
    chosen = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    monkeypatch.setattr("torch.backends.cuda.enable_cudnn_sdp", lambda enabled: None)
    return chosen


@pytest.fixture
def meet(monkeypatch):
    """Sets how the processes of `TWO` meet: a function that returns a store."""
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)

    def replace_by(make_store):
        by_variables = lambda url, **_: iter([(make_store(), 1, 2)])  # noqa: E731
        monkeypatch.setitem(HANDLERS, "env", by_variables)

    return replace_by


@pytest.fixture(params=["cpu", "cuda"])
def group(request, gpus, meet, monkeypatch):
    """Kind of device, and the calls that torch gets for a group of two."""
    calls = []
    store = dist.HashStore()
    meet(lambda: store)
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **options: calls.append((backend, options))
    )
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroyed"))
    return request.param, calls


@pytest.mark.parametrize("error", [None, Interrupted("stopped", 15)], ids=repr)
def test_group_is_destroyed_at_the_end_and_on_interruption(group, gpus, error):
    kind, calls = group
    with pytest.raises(Interrupted) if error else nullcontext(), process_group(kind) as ranks:
        assert (ranks.rank, ranks.world_size) == (1, 2)
        if error is not None:
            raise error
    (backend, options), *end = calls
    assert backend == {"cpu": "gloo", "cuda": "nccl"}[kind]
    assert (options["timeout"], options["rank"], options["world_size"]) == (TIMEOUT, 1, 2)
    assert end == ["destroyed"]
    assert gpus == ([ranks.device] if kind == "cuda" else [])


def test_failed_rank_does_not_wait_for_others_on_gpus(group):
    kind, calls = group
    with pytest.raises(RunError, match="out of memory"), process_group(kind):
        raise RunError("out of memory")
    assert calls[1:] == (["destroyed"] if kind == "cpu" else [])


def test_restarted_processes_do_not_read_keys_of_the_former_ones(group, monkeypatch):
    kind, calls = group
    for restart in "01":
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        with process_group(kind):
            calls[-1][1]["store"].set("address", restart)
    stores = [call[1]["store"] for call in calls if call != "destroyed"]
    assert [store.get("address") for store in stores] == [b"0", b"1"]


def test_failed_connection_is_one_message(meet):
    def fail():
        raise dist.DistNetworkError("the port is in use\n0: C++ stack")

    meet(fail)
    message = r"127.0.0.1:29500: the port is in use$"
    with pytest.raises(RunError, match=message), process_group("cpu"):
        pass


def test_every_process_has_a_different_gpu(gpus):
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
        ({**TWO, "RANK": "2"}, "RANK .* from 0 to 1, got '2'"),
        ({**TWO, "LOCAL_RANK": "2"}, "LOCAL_RANK .* from 0 to 1, got '2'"),
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


SUMS = ("overlapped", "flat")  # without and with `trainer.compile`
# Rows of the batches of each update; two ranks share [4], so that one has none.
BATCHES = {"one": [[0, 1, 2, 3, 4]], "several": [[0, 1], [2, 3]], "no rows last": [[0, 1, 2], [4]]}
PENALISED = 600_000  # weights in more than one bucket of DistributedDataParallel
N_UPDATES = 4


def batches_of(rows, rank, n_ranks):
    for batch in rows:
        share = collate(PAIRS, np.array(batch[rank::n_ranks], dtype=np.int32))
        yield replace(share, global_targets=int((PAIRS.target.lengths[batch] + 1).sum()))


class Training:
    """A model with a frozen layer, a weight that no batch uses, and penalised weights."""

    def __init__(self, ranks, kind):
        self.kind = kind
        self.model = small_model(layers=2)
        self.model.decoder.requires_grad_(False)
        self.model.unused = nn.Parameter(torch.ones(3))
        self.model.first = nn.Parameter(torch.linspace(0.1, 1, PENALISED))
        self.model.second = nn.Parameter(torch.linspace(1, 2, PENALISED))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3, weight_decay=0.1, momentum=0.5)
        self.step = TrainingStep(
            self.model, CrossEntropy(0.1), optimizer, Constant(), CONFIG, 1, ranks,
            penalty=lambda: (self.model.first * self.model.second).sin().mean() * (1 + ranks.rank),
        )  # fmt: skip
        if kind == "flat":
            self.step.overlapped = None

    def train(self, rows, updates):
        ranks = self.step.ranks
        for update in updates:
            self.step(update, list(batches_of(rows, ranks.rank, ranks.world_size)))
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def resumed(self):
        """As in a new process."""
        other = Training(self.step.ranks, self.kind)
        other.model.load_state_dict(self.model.state_dict())
        other.step.optimizer.load_state_dict(self.step.optimizer.state_dict())
        return other


def train(path, rank, n_ranks, port):
    """Save weights by (sum, batches), and those of a resumed training by (sum, "resumed")."""
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n_ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)
    weights = {}
    with process_group("cpu") as ranks:
        for kind in SUMS:
            for name, rows in BATCHES.items():
                weights[kind, name] = Training(ranks, kind).train(rows, range(1, N_UPDATES + 1))
            training = Training(ranks, kind)
            training.train(BATCHES["one"], range(1, 3))
            resumed = training.resumed()
            weights[kind, "resumed"] = resumed.train(BATCHES["one"], range(3, N_UPDATES + 1))
    torch.save(weights, path / f"{rank}.pt")


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def trained(request, tmp_path_factory):
    """Number of ranks, and the weights of each."""
    folder, port, n_ranks = tmp_path_factory.mktemp("weights"), free_port(), request.param
    started = [
        PROCESSES.Process(target=train, args=(folder, rank, n_ranks, port))
        for rank in range(n_ranks)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
        assert process.exitcode == 0
    return n_ranks, [torch.load(folder / f"{rank}.pt") for rank in range(n_ranks)]


def assert_close(some, others):
    for name, value in some.items():
        torch.testing.assert_close(value, others[name], rtol=1e-6, atol=1e-6)


def equal(some, others):
    return all(torch.equal(value, others[name]) for name, value in some.items())


@pytest.mark.parametrize("name", BATCHES)
def test_overlapped_sum_equals_flat_sum(trained, name):
    n_ranks, (weights, *others) = trained
    overlapped, flat = (weights[kind, name] for kind in SUMS)
    assert_close(overlapped, flat)
    assert n_ranks > 2 or equal(overlapped, flat)  # two numbers have one sum
    assert all(equal(other[kind, name], weights[kind, name])
               for other in others for kind in SUMS)  # fmt: skip
    assert torch.equal(overlapped["unused"], torch.ones(3))  # without a gradient: no weight decay


def test_resumed_sum_has_the_same_bits(trained):
    weights = trained[1][0]
    for kind in SUMS:
        assert equal(weights[kind, "resumed"], weights[kind, "one"])


def test_ranks_share_penalties_and_have_different_seeds(monkeypatch):
    weight, seeds = torch.ones((), requires_grad=True), []
    model = small_model()
    step = TrainingStep(
        model, CrossEntropy(0.1), torch.optim.SGD(model.parameters(), lr=0.1), Constant(), CONFIG,
        seed=1, ranks=Ranks(0, 1, CPU), penalty=lambda: 6 * weight,
        transform=lambda update: seeds.append(torch.initial_seed()),
    )  # fmt: skip
    step.ranks = Ranks(1, 3, CPU)
    monkeypatch.setattr(dist, "all_reduce", lambda gradients: None)
    step(7, list(batches_of([[0, 1]], 0, 1)))
    assert seeds == [derived_seed(1, 7, 1)]
    assert weight.grad == 2

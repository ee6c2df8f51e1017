"""Sums of gradients over ranks, during the backward pass and after it, over gloo."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headwise.losses.loss import CrossEntropy
from headwise.tasks.translation.batches import collate
from headwise.train.distributed import process_group
from headwise.train.schedule import Constant
from headwise.train.step import TrainingStep
from training_runs import free_port
from training_steps import CONFIG, PAIRS, small_model
from warm_python import PROCESSES

SUMS = ("overlapped", "flat")  # without and with `trainer.compile`
# Rows of the batches of each update; two ranks share [4], so that one has none.
BATCHES = {"one": [[0, 1, 2, 3, 4]], "several": [[0, 1], [2, 3]], "no rows last": [[0, 1, 2], [4]]}
PENALISED = 600_000  # weights in more than one bucket of DistributedDataParallel
N_UPDATES = 4

Weights = dict[str, Tensor]


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

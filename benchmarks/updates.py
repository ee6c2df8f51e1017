"""Updates of training as `python train.py` makes them, on batches of random ids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from headwise.config.folders import composed, group_node
from headwise.config.instantiate import instantiate
from headwise.config.register import typed
from headwise.config.schema import Config, ModelConfig
from headwise.data.batch import Batch, Column
from headwise.model.build import build_model
from headwise.model.family import Model
from headwise.precision import autocast, resolve_precision
from headwise.seed import seed_everything
from headwise.train.distributed import Ranks
from headwise.train.memory import n_bytes, saved_storages
from headwise.train.step import build_step

CPU = torch.device("cpu")
SENTENCES, LENGTH, SHORTEST = 128, 16, 12  # of a batch like those of Multi30k


def run_config(*overrides: str) -> Config:
    """The configuration of `python train.py` with some overrides."""
    return typed(composed(*overrides))


def model_config(name: str) -> ModelConfig:
    """Sizes of `conf/model`."""
    return ModelConfig(**dict(group_node("model", name)))


def full_rows(n_rows: int, length: int, vocabulary: int, shortest: int | None = None) -> Batch:
    """Targets of one length; sources too, or of any from `shortest` on."""
    numbers = torch.Generator().manual_seed(1)
    sides = [torch.randint(4, vocabulary, (n_rows, length), generator=numbers) for _ in range(2)]
    of_target = torch.full((n_rows,), length)
    of_source = of_target
    if shortest is not None:
        of_source = torch.randint(shortest, length + 1, (n_rows,), generator=numbers)
    source, target = sides
    columns = {"source": Column(source, of_source), "target": Column(target, of_target)}
    scored, n_targets = torch.arange(target.numel()), target.numel()
    return Batch(columns, scored, target.flatten(), list(range(n_rows)), n_targets)


class Updates:
    """A model that is trained on some batches over and over.

    Args:
        config: of the run.
        model: a model, or the size of either vocabulary of a Transformer.
        batches: one an update.
    """

    def __init__(
        self, config: Config, model: Model | int, batches: Sequence[Batch],
        device: torch.device = CPU,
    ) -> None:  # fmt: skip
        config.trainer.precision = resolve_precision(config.trainer.precision, device)
        seed_everything(config.seed, "model")
        if isinstance(model, int):
            model = build_model(config, model, model, config.tokenizer.joint)
        self.device = device
        loss, alone = instantiate(config.loss, "loss"), Ranks(0, 1, device)
        self.step = build_step(config, model.to(device), loss, alone)
        self.batches, self.n_batches = itertools.cycle(batches), len(batches)
        self.n_updates = 0

    @classmethod
    def of_short_sentences(cls, vocabulary: int, *overrides: str) -> Updates:
        """Of a run with some overrides, on one batch like those of Multi30k."""
        batch = full_rows(SENTENCES, LENGTH, vocabulary, SHORTEST)
        return cls(run_config(*overrides), vocabulary, [batch])

    def __call__(self) -> None:
        """One update."""
        self.n_updates += 1
        self.step(self.n_updates, [next(self.batches)])

    def round(self) -> None:
        """An update of each batch."""
        for _ in range(self.n_batches):
            self()

    def saved_bytes(self) -> int:
        """Return the bytes that autograd saves in the forward pass of all layers of a batch."""
        model, batch = self.step.model.train(), next(self.batches).to(self.device)
        precision = self.step.config.precision
        with saved_storages(model) as saved, autocast(self.device, precision):
            model.states(**model.inputs(batch))
        return n_bytes(saved)

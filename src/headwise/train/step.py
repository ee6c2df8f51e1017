"""One update of a model: the gradients of all its batches, and the optimizer's step.

On a GPU nothing here makes the host wait: what is to be logged is added up where it is, and
`Trainer` fetches it when it logs. Only the entmax losses wait, and only where Triton is missing: to
look at how many rows their short cut has solved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.config.instantiate import instantiate
from headwise.config.schema import Config, TrainerConfig
from headwise.data.batch import Batch
from headwise.losses.loss import Loss
from headwise.model.family import Model
from headwise.model.gates import gate_penalty
from headwise.precision import autocast
from headwise.seed import seed_everything
from headwise.train.distributed import Ranks
from headwise.train.memory import PeakMemory
from headwise.train.optim import build_optimizer, set_rate
from headwise.train.schedule import Schedule


@dataclass
class TrainingStep:
    """One update after the other.

    Args:
        model: the plain module; it is what checkpoints hold.
        loss: what is minimised.
        optimizer, schedule: the step and its rate.
        config, seed: human choices.
        ranks: this process among the others.
        transform: given the number of the update, changes its summed gradients in place.
        penalty: a term of the loss that depends on weights alone, added once an update; None
            where there is none.

    Attributes:
        window: loss and measure of this rank since it was last set to 0, (2,) float64. What is
            added are float32 numbers of like size, whose sums float64 holds exactly: after a
            resume, which leaves the sum of all ranks to the first, the bits are those of a run
            that was never stopped.
        memory: the most that an update held.
    """

    model: Model
    loss: Loss
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    config: TrainerConfig
    seed: int
    ranks: Ranks
    transform: Callable[[int], None] = lambda update: None
    penalty: Callable[[], Tensor | None] = lambda: None

    def __post_init__(self) -> None:
        self.base_rate = float(self.optimizer.param_groups[0]["lr"])
        # what is compiled is a method: the module, and so its checkpoints, stay plain
        states = self.model.states
        self.states = torch.compile(states) if self.config.compile else states
        self.window = torch.zeros(2, dtype=torch.float64, device=self.ranks.device)
        self.memory = PeakMemory(self.ranks.device, self.optimizer)

    def __call__(self, update: int, batches: Sequence[Batch]) -> int:
        """Update number `update`, counted from 1; returns its target tokens over all ranks."""
        n_tokens = sum(batch.global_targets for batch in batches)
        seed_everything(self.seed, update, self.ranks.rank)
        self.model.train()
        self.memory.begin(update)
        for batch in batches:
            if batch.n_targets:
                self._backward(batch, n_tokens)
        penalty = self.penalty()
        if penalty is not None:
            torch.autograd.backward(penalty / self.ranks.world_size)
        self.ranks.sum_gradients(self.model.parameters())
        self.transform(update)
        if self.config.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        set_rate(self.optimizer, self.rate(update))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.memory.end()
        return n_tokens

    def rate(self, update: int) -> float:
        """The learning rate of an update."""
        return self.schedule.rate(update, self.base_rate)

    def _backward(self, batch: Batch, n_update_tokens: int) -> None:
        device = self.ranks.device
        batch = batch.to(device)
        with autocast(device, self.config.precision):
            states_BND = self.states(**self.model.inputs(batch))
            self.memory.all_alive()
            states_RD = batch.scored(states_BND)
            sums = self.model.output.loss(states_RD, batch.targets_R, self.loss)
        torch.autograd.backward(sums.loss / n_update_tokens)
        self.window += torch.stack((sums.loss.detach(), sums.measure)).double()


def build_step(config: Config, model: Model, loss: Loss, ranks: Ranks) -> TrainingStep:
    """The step with the optimizer, schedule, repulsion and gates that a config names.

    Raises:
        ConfigError: one that cannot be built, by key.
    """
    repulsion = instantiate(config.repulsion, "repulsion")
    return TrainingStep(
        model,
        loss,
        build_optimizer(config.optimizer, model),
        instantiate(config.scheduler, "scheduler"),
        config.trainer,
        config.seed,
        ranks,
        transform=lambda update: repulsion(model, update, config.seed),
        penalty=lambda: gate_penalty(model),
    )

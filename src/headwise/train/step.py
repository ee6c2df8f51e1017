"""One update of a model: the gradients of all its batches, and the optimizer's step.

On a GPU it does not synchronise: the sums to log stay on the device until `Trainer` logs them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.config.instantiate import instantiate
from headwise.config.schema import Config, TrainerConfig
from headwise.data.batch import Batch
from headwise.errors import require
from headwise.losses.loss import Loss
from headwise.model.family import Model
from headwise.model.gates import gate_penalty
from headwise.ops.triton.device import MISSING_TOOL
from headwise.precision import autocast
from headwise.seed import seed_everything
from headwise.train.distributed import Ranks
from headwise.train.optim import Schedule, build_optimizer, set_learning_rate


def check_compiler(config: TrainerConfig) -> None:
    """Raise `ConfigError` if `torch.compile` has no compiler on this machine."""
    compiler = os.environ.get("CXX", "g++")
    missing = None if shutil.which(compiler) else f"no {compiler}: install g++ or set CXX"
    if config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available()):
        missing = MISSING_TOOL
    require(not (config.compile and missing), "trainer.compile", f"false ({missing})", True)


class _Forward(nn.Module):
    """The forward pass of a batch as a module: Batch -> loss and measure.

    Every rank has a gradient of `zero`, also one whose batch has no targets.
    """

    def __init__(
        self,
        model: Model,
        sums: Callable[[Batch], tuple[Tensor, Tensor]],
        device: torch.device,
    ) -> None:
        super().__init__()
        self.model, self.sums = model, sums
        self.zero = nn.Parameter(torch.zeros((), device=device))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        zero = 0 * self.zero
        if not batch.n_targets:
            return zero, zero.detach()
        loss, measure = self.sums(batch)
        return loss + zero, measure


@dataclass
class TrainingStep:
    """Performs one update per call.

    Args:
        model: the uncompiled module, as saved in checkpoints.
        loss: minimised, per target token.
        optimizer, schedule: the optimizer and its learning rates.
        config, seed: settings.
        ranks: this rank and the number of ranks.
        transform: gets the number of the update; changes the summed gradients in place.
        penalty: returns a term of the loss that depends on weights only, added once per update,
            or None.

    Attributes:
        window: sums of loss and measure of this rank since the last log, (2,) float64. Sums of
            float32 numbers of similar size are exact in float64: a resumed run, whose first rank
            starts with the sum of all ranks, has the same bits as an uninterrupted one.
        gradient_norm: L2 norm of the last update's gradient before it was clipped, a scalar on the
            device, the same on every rank; None without `clip_norm`, which computes it.
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
        self.base_lr = float(self.optimizer.param_groups[0]["lr"])
        # compile the method, not the module, so that names in checkpoints do not change
        states = self.model.states
        self.states = torch.compile(states) if self.config.compile else states
        self.overlapped = None
        if self.ranks.world_size > 1 and not self.config.compile:
            forward = _Forward(self.model, self._sums, self.ranks.device)
            self.overlapped = self.ranks.overlapped(forward)
        self.window = torch.zeros(2, dtype=torch.float64, device=self.ranks.device)
        self.gradient_norm: Tensor | None = None

    def __call__(self, update: int, batches: Sequence[Batch]) -> int:
        """Perform update number `update`, from 1; returns its target tokens over all ranks."""
        n_tokens = sum(batch.global_targets for batch in batches)
        seed_everything(self.seed, update, self.ranks.rank)
        self.model.train()
        penalty = self.penalty()
        if penalty is not None:
            torch.autograd.backward(penalty / self.ranks.world_size)
        for batch in batches[:-1]:
            if batch.n_targets:
                with self.overlapped.no_sync() if self.overlapped else nullcontext():
                    self._backward(batch, n_tokens)
        if batches[-1].n_targets or self.overlapped:  # every rank takes part in the sum
            self._backward(batches[-1], n_tokens)
        if not self.overlapped:
            self.ranks.sum_gradients(self.model.parameters())
        self.transform(update)
        if self.config.clip_norm:
            parameters = self.model.parameters()
            self.gradient_norm = nn.utils.clip_grad_norm_(parameters, self.config.clip_norm)
        set_learning_rate(self.optimizer, self.learning_rate(update))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return n_tokens

    def learning_rate(self, update: int) -> float:
        """The learning rate of an update."""
        return self.schedule.learning_rate(update, self.base_lr)

    def _backward(self, batch: Batch, n_update_tokens: int) -> None:
        loss, measure = (self.overlapped or self._sums)(batch)
        torch.autograd.backward(loss / n_update_tokens)
        self.window += torch.stack((loss.detach(), measure)).double()

    def _sums(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and measure, summed over the targets of a batch."""
        device = self.ranks.device
        batch = batch.to(device)
        with autocast(device, self.config.precision):
            states_RD = batch.scored(self.states(**self.model.inputs(batch)))
            sums = self.model.output.loss(states_RD, batch.targets_R, self.loss)
        return sums.loss, sums.measure


def build_step(config: Config, model: Model, loss: Loss, ranks: Ranks) -> TrainingStep:
    """Build the step with the optimizer, schedule, repulsion and gates of a config.

    Raises:
        ConfigError: one of them cannot be built; names its key.
    """
    repulsion = instantiate(config.repulsion, "repulsion")
    repulsion.check_model(model)
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

"""The training loop.

One update:

    get `accumulate` global batches with their number of target tokens
    seed the generators from (seed, update, rank)
    backward of the penalty
    for each batch: forward, summed loss / tokens of the whole update, backward
    sum the gradients over the ranks, transform, clip, step
    log, validate, save: in this order, so that a checkpoint covers all records

The loop is independent of attention variants, corpora and metrics: these are passed as callables.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from headwise.data.loader import Prefetched
from headwise.errors import HeadwiseError, Interrupted, Pruned
from headwise.metrics.metric import Measured
from headwise.runs.folder import RunFolder
from headwise.runs.log import RunLog
from headwise.track.base import HeadValues, Tracker
from headwise.train.checkpoint import load_weights, numbered_checkpoints, save_checkpoint
from headwise.train.interrupt import StopRequest
from headwise.train.memory import peak_memory, return_free_pages
from headwise.train.progress import ProcessorWatch, Progress
from headwise.train.step import TrainingStep

# Updates between checks of all ranks for a stop signal. On a GPU each check synchronises, and
# updates are short; on CPUs an update may take seconds, and a scheduler's grace period is short.
SIGNAL_CHECK_EVERY = {"cuda": 10, "cpu": 1}


class Trial(Protocol):
    """A run of a search, see `headwise.commands.search.RunningTrial`."""

    def start(self, run: Path) -> None:
        """Record the folder of the run."""

    def should_stop(self, update: int, score: float) -> bool:
        """Record the monitored score of a validation; whether it ends the run."""
        ...


WriteOutputs = Callable[[RunFolder, Tracker, int], None]


@dataclass(frozen=True)
class Validation:
    """Result of a validation.

    Attributes:
        measured: metrics per item.
        heads: computes statistics of heads: kind -> site -> layers -> heads.
        write: writes outputs of the model after `update` updates to (folder, tracker, update).
    """

    measured: Sequence[Measured]
    heads: Callable[[], Mapping[str, HeadValues]] = dict
    write: WriteOutputs = lambda folder, tracker, update: None

    def values(self) -> dict[str, float]:
        """Metric -> score."""
        return {name: value for part in self.measured for name, value in part.values().items()}


@dataclass
class TrainState:
    """Numbers that are saved with every checkpoint.

    Attributes:
        update: updates done.
        tokens: target tokens so far, over all ranks.
        data: position of the batch loader.
        metrics_lines, heads_lines: lengths of the records; resuming truncates to them.
        window_loss, window_measure, window_tokens: sums since the last logged update.
        best_score: of the monitored metric; None before the first validation.
        best_update: update of the best validation.
        bad_validations: number of validations since then.
        stopped_early: `patience` validations brought no better score.
    """

    update: int = 0
    tokens: int = 0
    data: dict[str, int] = field(default_factory=dict)
    metrics_lines: int = 0
    heads_lines: int = 0
    window_loss: float = 0.0
    window_measure: float = 0.0
    window_tokens: int = 0
    best_score: float | None = None
    best_update: int = 0
    bad_validations: int = 0
    stopped_early: bool = False


@dataclass
class Trainer:
    """Trains a model until `max_updates`, early stopping or a signal.

    Args:
        step: an update, with the model, its configuration, its loss and the ranks.
        loader: batches of this rank.
        folder: where to write.
        records: scalars and head statistics (rank 0 writes).
        validate: evaluates the model; with True, always on the whole validation set.
        reported: parameters of heads, such as α: name -> site -> layers -> heads.
        stop: set by signals.
        trial: of a search, which may end the run at a validation.
        state: counters and scores, saved with every checkpoint.
        seconds: of training, summed over all processes of the run.
        peak_bytes: largest `peak_memory` of a training process up to the last checkpoint.
    """

    step: TrainingStep
    loader: Prefetched
    folder: RunFolder
    records: RunLog
    validate: Callable[[bool], Validation]
    reported: Callable[[], Mapping[str, HeadValues]]
    stop: StopRequest
    trial: Trial | None = None
    state: TrainState = field(default_factory=TrainState)
    seconds: float = 0.0
    peak_bytes: int | None = None

    def __post_init__(self) -> None:
        self.model, self.config, self.ranks = self.step.model, self.step.config, self.step.ranks
        self._logged = 0, 0.0  # tokens and seconds when the speed was last logged
        self._saved_at = self._reported_at = -1
        self._counted_at = time.perf_counter()
        self._peak_memory: Callable[[], int | None] = lambda: None

    # -- saving and loading: mirror images, in the same order -----------------------------------

    def checkpoint(self) -> dict[str, Any]:
        """Everything the next update depends on."""
        window = self.ranks.sum(self.step.window)
        self.state.data = self.loader.state()
        self.state.window_loss, self.state.window_measure = window.tolist()
        self.state.metrics_lines, self.state.heads_lines = self.records.n_lines()
        return {
            "model": self.model.state_dict(),  # 1
            "optimizer": self.step.optimizer.state_dict(),  # 2
            "state": asdict(self.state),  # 3
            "world_size": self.ranks.n_shares,  # 4
        }

    def restore(self, payload: dict[str, Any]) -> None:
        """Resume from the content of a checkpoint."""
        load_weights(self.model, payload["model"], str(self.folder.last))  # 1
        self.step.optimizer.load_state_dict(payload["optimizer"])  # 2
        self.state = TrainState(**payload["state"])  # 3
        self.loader.restore(self.state.data)
        # rank 0 takes the sum over the ranks, the others start from zero
        if self.ranks.is_main:
            sums = (self.state.window_loss, self.state.window_measure)
            self.step.window.copy_(torch.tensor(sums, dtype=torch.float64))
        lengths = self.state.metrics_lines, self.state.heads_lines
        self.records.rewind(self.state.update, *lengths)
        self._saved_at = self.state.update
        if self.ranks.is_main:
            self._remove_old()  # a process killed while saving leaves one too many

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Train until the last update or early stopping.

        Raises:
            Interrupted: a signal was received; everything was saved.
            Pruned: `trial` has ended it.
            HeadwiseError: the loss is not finite; saved checkpoints are intact.
        """
        config, state = self.config, self.state
        self._peak_memory = peak_memory(self.ranks.device)
        progress = Progress(
            state.update, config.max_updates, config.progress and self.ranks.is_main
        )
        self._logged = state.tokens, self.seconds
        watch = ProcessorWatch(state.update, *self._logged)
        if state.update == 0:
            self._log_heads()  # the first point of the trajectories
        elif state.update < config.max_updates and not state.stopped_early:
            self._remove_former_end()
        with self.stop.deferred(), closing(progress):
            while state.update < config.max_updates and not state.stopped_early:
                self._counted_at = time.perf_counter()
                self.update()
                progress.advance()
                if self.ranks.is_main:
                    watch.check()
                last = state.update == config.max_updates
                if state.update % config.log_every == 0 or last:
                    self._log(progress)
                    if self.ranks.is_main:
                        watch.check_speed(state.update, state.tokens, self.seconds)
                self._count_seconds()
                if state.update % config.validate_every == 0 or last:
                    self._validate(progress)
                if state.update % config.save_every == 0 or last or state.stopped_early:
                    self.save(numbered=True)
                self._stop_if_requested()

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self.seconds, self._counted_at = self.seconds + now - self._counted_at, now

    def update(self) -> None:
        """One optimizer step."""
        state = self.state
        n_pieces = self.config.accumulate * self.ranks.n_pieces
        batches = [next(self.loader) for _ in range(n_pieces)]
        state.update += 1
        n_tokens = self.step(state.update, batches)
        state.tokens += n_tokens
        state.window_tokens += n_tokens

    def _log(self, progress: Progress) -> None:
        state = self.state
        loss, measure = (self.ranks.sum(self.step.window) / max(state.window_tokens, 1)).tolist()
        self.step.window.zero_()
        state.window_tokens = 0
        self._require_finite(loss, "training loss")
        self._count_seconds()  # reading the loss has synchronised the GPU
        n_tokens, seconds = state.tokens - self._logged[0], self.seconds - self._logged[1]
        speed = n_tokens / max(seconds, 1e-9)
        self._logged = state.tokens, self.seconds
        with torch.no_grad():
            penalty = self.step.penalty()
        optional = {"train/penalty": penalty, "train/gradient_norm": self.step.gradient_norm}
        self.records.log(
            state.update,
            {
                "train/loss": loss,
                f"train/{self.step.loss.measure}": measure,
                "train/lr": self.step.learning_rate(state.update),
                "train/tokens": state.tokens,
                "train/epoch": self.loader.state()["epoch"],
                "time/tokens_per_second": speed,
                "time/train_seconds": self.seconds,
                **{name: float(value) for name, value in optional.items() if value is not None},
            },
        )
        self._log_heads()
        progress.show(speed, loss=loss)

    def _log_heads(self) -> None:
        heads = self.reported()
        self._reported_at = self.state.update
        if heads:
            self.records.log_heads(self.state.update, heads)

    def _require_finite(self, value: float, what: str) -> None:
        if not math.isfinite(value):
            raise HeadwiseError(
                f"the {what} is {value} near update {self.state.update}. Saved checkpoints are "
                f"intact in {self.folder.checkpoints}. Try a lower optimizer.lr (of "
                "scheduler=noam: scheduler.factor), more scheduler.warmup_updates, "
                "trainer.clip_norm=1, or trainer.precision=fp32."
            )

    def _require_finite_weights(self) -> None:
        """Weights may be non-finite after a step with a finite loss."""
        largest = torch.stack([p.detach().abs().max() for p in self.model.parameters()]).max()
        self._require_finite(float(largest), "largest weight")

    def evaluate(self, whole: bool = False) -> tuple[Validation, float]:
        """Validate; returns the metrics and the monitored score, negated if lower is better.

        Args:
            whole: use the whole validation set, not a part of it.
        """
        self.model.eval()
        with torch.no_grad():
            validation = self.validate(whole)
        return_free_pages()
        monitor = self.config.monitor
        assert monitor is not None  # null was replaced by the task's default
        score = validation.values()[monitor]
        self._require_finite(score, f"valid/{monitor}")
        metrics = (metric for part in validation.measured for metric in part.metrics)
        return validation, next(score * m.sign for m in metrics if m.name == monitor)

    def _validate(self, progress: Progress) -> None:
        state = self.state
        self._require_finite_weights()
        validation, better = self.evaluate()
        values = validation.values()
        self.records.log(state.update, {f"valid/{name}": value for name, value in values.items()})
        logged = self.reported() if self._reported_at == state.update else {}
        new = {k: values for k, values in validation.heads().items() if logged.get(k) != values}
        if new:
            self.records.log_heads(state.update, new)
        metrics = (metric for part in validation.measured for metric in part.metrics)
        scopes = {metric.name: f" ({metric.scope})" for metric in metrics if metric.scope}
        progress.show(**{f"valid_{k}{scopes.get(k, '')}": value for k, value in values.items()})
        if self.ranks.is_main:
            validation.write(self.folder, self.records.tracker, state.update)
        if state.best_score is None or better > state.best_score:
            state.best_score, state.best_update, state.bad_validations = better, state.update, 0
            if self.ranks.is_main:
                best = {"model": self.model.state_dict()}
                save_checkpoint(self.folder.checkpoints / "best.pt", best)
        else:
            state.bad_validations += 1
            patience = self.config.patience
            state.stopped_early = bool(patience) and state.bad_validations >= patience
        if self.trial is None:
            return
        score = values[str(self.config.monitor)]
        if self.ranks.any(self.ranks.is_main and self.trial.should_stop(state.update, score)):
            raise Pruned(
                f"stopped by the pruner of the search at update {state.update} with "
                f"{self.config.monitor} {score:.6g}"
            )

    def save(self, numbered: bool) -> None:
        """Write `last.pt`, and a numbered copy of the weights for averaging."""
        if self._saved_at == self.state.update:
            return
        self._require_finite_weights()
        content = self.checkpoint()
        self._require_finite(self.state.window_loss, "training loss")
        self.records.sync()
        if self.ranks.is_main:
            if numbered and self.config.keep:
                save_checkpoint(self._numbered(), {"model": content["model"]})
            save_checkpoint(self.folder.last, content)
            self._remove_old()
            peaks = (self.peak_bytes, self._peak_memory())
            self.peak_bytes = max((n for n in peaks if n is not None), default=None)
            costs = {
                "train_seconds": round(self.seconds, 3),
                "peak_memory_bytes": self.peak_bytes,
                "world_size": self.ranks.n_shares,
                "best_update": self.state.best_update,
            }
            last = {"update": self.state.update, **costs}
            self.folder.write_json("checkpoints/last.json", last)
        self._saved_at = self.state.update

    def _remove_old(self) -> None:
        for old in numbered_checkpoints(self.folder.checkpoints)[: -self.config.keep or None]:
            old.unlink()

    def _numbered(self) -> Path:
        return self.folder.checkpoints / f"update_{self.state.update:08d}.pt"

    def _remove_former_end(self) -> None:
        """After `max_updates` was raised: remove the average, and a checkpoint off `save_every`."""
        if not self.ranks.is_main:
            return
        (self.folder.checkpoints / "average.pt").unlink(missing_ok=True)
        if self.config.average and self.state.update % self.config.save_every != 0:
            self._numbered().unlink(missing_ok=True)

    def _stop_if_requested(self) -> None:
        interval = SIGNAL_CHECK_EVERY[self.ranks.device.type] if self.ranks.world_size > 1 else 1
        is_last = self.state.update == self.config.max_updates or self.state.stopped_early
        is_due = is_last or self.state.update % interval == 0
        if not is_due or not self.ranks.any(bool(self.stop)):
            return
        self.save(numbered=False)
        raise Interrupted(
            f"stopped at update {self.state.update}; everything is saved in {self.folder.path}. "
            "Give the same command again to resume.",
            self.stop.signal_number or 15,
        )

"""A run in training: what makes it this run, and what it reads and writes in its folder."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

import torch

from headwise.analysis.collect import alphas, filled
from headwise.commands.outcome import draw, summary
from headwise.config.instantiate import instantiate
from headwise.config.saved import saved_settings
from headwise.config.schema import Config
from headwise.data.file_corpus import Corpus
from headwise.data.sources.digest import combined_digest
from headwise.errors import Interrupted, RunError, counted
from headwise.files import read_json, remove_partial, replacing
from headwise.model.family import Model
from headwise.runs.environment import CONVERTERS, git_commit, versions
from headwise.runs.folder import RunFolder
from headwise.runs.listing import read_summary
from headwise.runs.log import LogFile
from headwise.runs.record import Record
from headwise.runs.results import Results, Summary
from headwise.tasks.check import identity, init_weights
from headwise.tasks.data import Data
from headwise.tasks.evaluate import score, valid_heads
from headwise.tasks.task import Task
from headwise.track.base import Tracker
from headwise.train.average import choose_weights
from headwise.train.distributed import Ranks
from headwise.train.initial import start_from
from headwise.train.kernels import changes, kernels_of
from headwise.train.resume import can_resume
from headwise.train.trainer import Trainer, Trial

log = logging.getLogger(__name__)


class Clock:
    """Seconds of the phases of a run, one after the other.

    Args:
        started: of the first phase, by `time.perf_counter`; None: now.
    """

    def __init__(self, started: float | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter() if started is None else started

    def end(self, phase: str, training: float = 0.0) -> None:
        """End a phase, which had so many seconds of training; the next one starts."""
        now = time.perf_counter()
        self.seconds[phase] = round(now - self._since - training, 3)
        self._since = now


@dataclass(frozen=True)
class TrainingRun:
    """A run of a training, new or resumed.

    Attributes:
        task: with resolved settings.
        overrides: the command line.
        settings: resolved, as saved in the folder.
        identity: what makes it this run, see `headwise.tasks.check`.
        folder: of the run; not made before `opened`.
    """

    task: Task[Any]
    overrides: list[str]
    settings: dict[str, Any]
    identity: Mapping[str, Any]
    folder: RunFolder

    @classmethod
    def located(
        cls, task: Task[Any], overrides: list[str], corpus: Corpus, swept: Collection[str]
    ) -> TrainingRun:
        """The run of these settings on this text; see `identity` and `RunFolder.locate`."""
        config, settings = task.config, saved_settings(task.config)
        about = identity(config, settings, corpus, swept)
        outputs = Path(config.paths.outputs, config.experiment_name)
        folder = RunFolder.locate(outputs, overrides, about["identity"], settings)
        return cls(task, overrides, settings, about, folder)

    @property
    def config(self) -> Config:
        """The resolved settings."""
        return self.task.config

    @property
    def scratch(self) -> Path:
        """Folder for the ids of the current epoch with BPE-dropout."""
        return self.folder.path / "scratch"

    # -- whether it is finished: by its folder, before anything is computed -----------------------

    def valid_scores(self, results: Results, data: Any, splits: Sequence[str]) -> dict[str, Any]:
        """Split -> scores, if the references exist and the text is that of one of `splits` now.

        Scores of other splits are not compared with a text.
        """
        name, task = self.task.references, self.task
        return {
            split: scores
            for split, scores in results.scores.items()
            if (not name or (self.folder.path / name.format(split=split)).is_file())
            and (split not in splits or results.content(split) == task.contents(data, split)[0])
        }

    def is_finished(self, corpus: Corpus, ranks: Ranks) -> bool:
        """Whether it has figures, and scores of every test set; the first rank logs the results.

        Scores of another text than a test set has now (`Task.contents`) do not count.

        Raises:
            RunError: it was trained for longer.
        """
        folder, record = self.folder, Record(self.folder.path)
        results = record.results
        updates = max(results.updates if results else 0, record.last_saved().get("update", 0))
        max_updates = self.config.trainer.max_updates
        if updates > max_updates:
            raise RunError(
                f"{folder.path} was already trained for {counted(updates, 'update')}, more than "
                f"trainer.max_updates={max_updates}; set experiment_name=… for a shorter run"
            )
        if results is None or not (results.stopped_early or results.updates == max_updates):
            return False
        # a process that was killed while it drew has written no time of it
        has_figures = "figures" in results.other_seconds and folder.figures.is_dir()
        splits = self.task.splits(corpus)
        if not has_figures or not set(splits) <= results.scores.keys():
            return False
        data = self.task.prepare(corpus)  # in the cache, if not changed
        if not set(splits) <= self.valid_scores(results, data, splits).keys():
            return False
        if ranks.is_main:
            lines = summary(folder, results, self.task.command)
            log.info("this run is finished: %s\n%s", folder.path, lines)
        return True

    # -- its folder and tracker, while a process trains it ----------------------------------------

    @contextmanager
    def opened(self, ranks: Ranks, held_log: MemoryHandler, wait: bool) -> Iterator[None]:
        """Make and lock the folder, write the log and an error of the block to it.

        Args:
            ranks: of this process.
            held_log: what was logged before.
            wait: for another process that trains the run.
        """
        if not ranks.is_main:
            ranks.barrier()
            held_log.setTarget(logging.NullHandler())
            ranks.barrier()
            yield
            return
        self.folder.make()
        with self.folder.claimed(wait), self.folder.error_recorded(self.overrides):
            ranks.barrier()
            held_log.setTarget(LogFile(self.folder.path))
            check_checkpoints(self.folder)
            ranks.barrier()
            yield

    def describe(self, ranks: Ranks, trial: Trial | None) -> dict[str, Any]:
        """Write the settings and the start of the process, and log it.

        Returns:
            The `environment.json` of the process before, whose training is resumed; else empty.
        """
        if not ranks.is_main:
            return {}
        folder, trainer, resumes = self.folder, self.config.trainer, can_resume(self.folder)
        update = Record(folder.path).last_saved().get("update", 0)
        earlier: list[dict[str, Any]] = []  # processes that trained it
        if resumes:
            with suppress(RunError):  # a damaged file, which resuming does not need
                before = read_json(folder.path / "environment.json", missing_ok=True)
                earlier = [*before.pop("earlier", ()), before]
        # without those of which nothing was saved
        earlier = [process for process in earlier if process.get("update", 0) < update]
        (folder.path / "error.json").unlink(missing_ok=True)
        remove_partial(folder.path)
        folder.describe(self.settings, self.overrides, update=update, earlier=earlier)
        metric, n_updates = self.task.metric.name, trainer.max_updates
        about = self.task.name, metric, self.overrides, n_updates, update
        Summary(*about, started=time.time()).write(folder.path)
        if trial is not None:
            trial.start(folder.path)
        if resumes:
            logged = Record(folder.path).last_logged().get("update", update)
            unsaved = f", logged to {logged}" if logged > update else ""
            log.info("resuming in %s at update %d%s", folder.path, update, unsaved)
        else:
            log.info("training in %s", folder.path)
        if ranks.device.type == "cuda" and trainer.device == "auto":
            log.info(
                "batches of %d tokens on a GPU (trainer=gpu has larger ones, in bf16)",
                trainer.max_tokens,
            )
        return earlier[-1] if earlier else {}

    @contextmanager
    def tracked(self, ranks: Ranks, group: str | None) -> Iterator[Tracker]:
        """Open the tracker on the first rank, and finish it after the block."""
        if not ranks.is_main:
            yield Tracker()
            return
        tracker = instantiate(self.config.tracker, "tracker", Tracker)
        tracker.start(self.folder.path, group, self.settings)
        status = "failed"
        try:
            yield tracker
            status = "finished"
        except Interrupted:
            status = "interrupted"
            raise
        finally:
            tracker.finish(status)

    # -- what it is trained on, and with ----------------------------------------------------------

    def record_data(self, corpus: Corpus, data: Data) -> None:
        """Write `data.json`, or compare the data with that of the process before.

        Raises:
            RunError: packages of another version made other data of the same text.
        """
        path = self.folder.path / "data.json"
        if path.is_file():
            before = read_json(path)
            if before["fingerprint"] != data.fingerprint:
                # the fingerprint of the folder covers the text
                then, now = before.get("versions", {}), versions()
                raise RunError(
                    f"{self.folder.path} was started with data from "
                    f"{_other_versions(then, now)}, not from {_other_versions(now, then)}: "
                    "install the former, or set experiment_name=… for a new folder"
                )
            return
        data.save(self.folder.path)
        about = {
            "fingerprint": data.fingerprint,
            "text": combined_digest(corpus.hashes()),
            "vocabulary": data.vocabulary,
            "sizes": dict(data.sizes),
            "versions": versions(),
            **self.identity,
        }
        self.folder.write_json("data.json", {**about, **data.report})

    def model(self, data: Data, device: torch.device) -> Model:
        """The model with its initial weights, those of `init_from` in a new run."""
        model = self.task.model(data.sizes, data)
        if self.config.init_from is not None and not can_resume(self.folder):
            origin = RunFolder.existing(self.config.init_from, "init_from")
            start_from(model, self.config, origin, data.vocabulary)
            if init_weights(self.config) != self.identity["init_weights"]:
                raise RunError(f"init_from={origin.path} was changed: run the same command again")
        return model.to(device)

    def record_kernels(self, model: Model, ranks: Ranks, before: Mapping[str, Any]) -> None:
        """Write the kernels to environment.json; warn if they were others in `before`."""
        if not ranks.is_main:
            return
        precision = self.config.trainer.precision
        kernels = {"kernels": kernels_of(model, self.task.loss, precision, ranks.device)}
        now = read_json(self.folder.path / "environment.json") | kernels
        self.folder.write_json("environment.json", now)
        if before and (changed := "; ".join(changes(before, now))):
            log.warning("resumed with other software or threads, results may change: %s", changed)

    # -- its results ------------------------------------------------------------------------------

    def finish(
        self, trainer: Trainer, data: Data, splits: Sequence[str], tracker: Tracker, clock: Clock
    ) -> None:
        """Choose the weights, evaluate the splits, write the results and the figures."""
        task, folder, ranks, model = self.task, self.folder, trainer.ranks, trainer.model
        weights = choose_weights(trainer, task.validates_part(data))
        # skip splits that were evaluated with these weights, on the text of now
        earlier = Record(folder.path).results_at(trainer.state.update) or Results()
        scores = self.valid_scores(earlier, data, splits)
        for name in splits:
            if name not in scores:
                if name in earlier.scores:
                    why = "its text was replaced, or its references are gone"
                    log.info("%s is scored again: %s", name, why)
                progress = self.config.trainer.progress
                scores[name] = score(
                    task, model, data, ranks, folder, name, tracker=tracker, progress=progress
                )
        heads = valid_heads(task, model, data, ranks)
        state = trainer.state
        clock.end("evaluation")
        results = Results(
            scores=scores,
            # heads without an α parameter get the mean over their queries
            alpha=filled(alphas(model), heads.pop("alpha", {})),
            heads=heads,
            fingerprint=self.identity["identity"],
            seed=self.config.seed,
            updates=state.update,
            best_update=state.best_update,
            weights=weights,
            stopped_early=state.stopped_early,
            tokens=state.tokens,
            wall_seconds=round(trainer.seconds, 3),
            tokens_per_second=round(state.tokens / max(trainer.seconds, 1e-9), 1),
            other_seconds=clock.seconds,
            peak_memory_bytes=trainer.peak_bytes,
            git=git_commit(),
            versions=versions(),
            finished_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        )
        if ranks.is_main:
            read_summary(Record(folder.path)).with_results(results).write(folder.path)
            results.write(folder.results)  # before the figures, which may fail or take long
            metric = task.metric.name
            tracker.summary({f"{name}/{metric}": results.score(name, metric) for name in scores})
            draw(folder, tracker)
            folder.figures.mkdir(exist_ok=True)
            clock.end("figures")
            results = replace(results, other_seconds=clock.seconds)
            results.write(folder.results)
            shutil.rmtree(self.scratch, ignore_errors=True)
            log.info("%s", summary(folder, results, task.command))
        ranks.barrier()


def check_checkpoints(folder: RunFolder) -> None:
    """Restore a removed best.pt from the numbered checkpoint of its update.

    Raises:
        RunError: last.pt was removed, or best.pt and that checkpoint: training would overwrite
            the records, or choose other weights.
    """
    saved = Record(folder.path).last_saved()
    best, best_update = folder.checkpoints / "best.pt", saved.get("best_update", 0)
    numbered = folder.checkpoints / f"update_{best_update:08d}.pt"
    if not best.is_file() and numbered.is_file():
        with replacing(best) as temporary:
            shutil.copyfile(numbered, temporary)
    for path, update in ((folder.last, saved.get("update")), (best, best_update)):
        if update and not path.is_file():
            raise RunError(
                f"{path} is missing, though it was saved at update {update}: copy it back, or "
                f"remove {folder.path} to start again"
            )


def _other_versions(versions: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Versions of the packages that convert data, of those that differ from others."""
    differing = [name for name in CONVERTERS if versions.get(name) != others.get(name)]
    return " and ".join(f"{name} {versions.get(name)}" for name in differing or CONVERTERS[:1])

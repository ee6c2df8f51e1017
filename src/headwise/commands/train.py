"""`headwise train key=value …`: one run from its configuration to its results.

Repeating the command prints the results of a finished run, or resumes from the last checkpoint.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headwise.analysis.collect import alphas, filled, reported
from headwise.commands.finished import check_checkpoints, final_results, valid_scores
from headwise.commands.outcome import draw, summary
from headwise.config.instantiate import instantiate
from headwise.config.saved import saved_settings
from headwise.config.schema import Config
from headwise.data.file_corpus import Corpus
from headwise.data.prefetch import Prefetched
from headwise.data.sources.digest import combined_digest
from headwise.data.sources.download import IS_OFFLINE
from headwise.errors import DataError, Interrupted, RunError
from headwise.files import read_json, remove_partial
from headwise.model.family import Model
from headwise.precision import use_deterministic_kernels
from headwise.runs.environment import CONVERTERS, git_commit, rank_variables, versions
from headwise.runs.failure import error_recorded
from headwise.runs.folder import RunFolder
from headwise.runs.listing import Summary
from headwise.runs.log import LogFile, RunLog, text_log
from headwise.runs.record import Record
from headwise.runs.results import Results
from headwise.seed import seed_everything
from headwise.tasks.check import checked_task, resolve
from headwise.tasks.data import Data
from headwise.tasks.evaluate import main_metric, score, valid_heads, validate
from headwise.tasks.identity import identity, init_weights
from headwise.tasks.task import Task
from headwise.tasks.timing import describe_timing
from headwise.track.base import Tracker
from headwise.train.average import choose_weights
from headwise.train.batches import training_batches
from headwise.train.budget import budget, describe_budget
from headwise.train.clock import Clock
from headwise.train.distributed import Ranks, process_group
from headwise.train.initial import start_from
from headwise.train.interrupt import SAVING, StopRequest, stop_request
from headwise.train.kernels import changes, kernels_of
from headwise.train.memory import keep_freed_memory
from headwise.train.resume import can_resume, ranks_of_run, resume_or_start
from headwise.train.step import build_step, check_compiler
from headwise.train.trainer import Trainer, Trial

log = logging.getLogger(__name__)


def train(
    config: Config,
    overrides: list[str],
    group: str | None = None,
    trial: Trial | None = None,
    started: float | None = None,
    swept: Collection[str] = (),
) -> Path | None:
    """Train or resume a run; a finished run only prints its results.

    Args:
        config: composed by Hydra; derived settings are filled in.
        overrides: the command line, for the folder's name and record.
        group: name of the sweep, for the tracker.
        trial: of a search, to which validations are reported.
        started: when the process of this run alone started, by `time.perf_counter`.
        swept: keys with several values in the sweep of this run.

    Returns:
        The run folder; None after a dry run.

    Raises:
        Interrupted: a signal was received; nothing that was saved is lost.
    """
    clock = Clock(started)
    rank, *_ = rank_variables()
    with text_log() as held_log, stop_request("" if rank else SAVING) as stop:
        task = checked_task(config)
        check_compiler(config.trainer)
        if config.dry_run:
            if config.init_from is not None:
                RunFolder.existing(config.init_from, "init_from")
            needs = budget(task)
            print(describe_budget(task, needs))
            if not needs.is_measured:
                print("minutes: not measured, for a device elsewhere or updates of minutes")
                return None
        resolve(task)
        container = saved_settings(config)
        if config.trainer.threads is not None:
            torch.set_num_threads(config.trainer.threads)
        keep_freed_memory()
        with process_group(config.trainer.device) as ranks:
            use_deterministic_kernels(ranks.device)
            if config.dry_run:
                if ranks.is_main:
                    copy_context().run(_print_timing, task, Ranks(0, 1, ranks.device))
                return None
            with ranks.first_alone():  # the first rank downloads, the others read the cache
                corpus = task.open(task.cache)
                about = identity(config, container, corpus, swept)
            outputs = Path(config.paths.outputs, config.experiment_name)
            folder = RunFolder.locate(outputs, overrides, about["identity"], container)
            with ranks.first_alone():
                results = final_results(folder, task, corpus)
            if results is not None:
                if ranks.is_main:
                    lines = summary(folder, results, task.command)
                    log.info("this run is finished: %s\n%s", folder.path, lines)
                return folder.path
            if config.init_from is not None and not can_resume(folder):
                RunFolder.existing(config.init_from, "init_from")
            with ranks.first_alone():  # before a folder is made: a failure leaves none
                prepared = task.prepare(corpus)
            # a job of a search that was adopted may still be running
            with _locked(folder, ranks, overrides, wait=trial is not None):
                held_log.setTarget(LogFile(folder.path) if ranks.is_main else logging.NullHandler())
                if ranks.is_main:
                    check_checkpoints(folder)
                ranks.barrier()
                of_run = folder, ranks_of_run(folder, ranks), clock, stop, trial
                run = _Run(task, overrides, about, *of_run)
                run.describe(container)
                with _tracker(config, folder, ranks, group, container) as tracker:
                    run.train(corpus, prepared, tracker)
    return folder.path


def _print_timing(task: Task[Any], ranks: Ranks) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # the cache is read
    IS_OFFLINE.set(True)
    try:
        print(describe_timing(task, ranks))
    except DataError as error:
        print(f"no minutes and memory of the process, which need the data: {error}")


def _other_versions(versions: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Versions of the packages that convert data, of those that differ from others."""
    differing = [name for name in CONVERTERS if versions.get(name) != others.get(name)]
    return " and ".join(f"{name} {versions.get(name)}" for name in differing or CONVERTERS[:1])


@contextmanager
def _locked(folder: RunFolder, ranks: Ranks, overrides: list[str], wait: bool) -> Iterator[None]:
    """Lock the folder, and record an error of the block in it."""
    with ExitStack() as claims:
        if ranks.is_main:
            folder.make()
            claims.enter_context(folder.claimed(wait))
            claims.enter_context(error_recorded(folder, overrides))
        ranks.barrier()
        yield


@contextmanager
def _tracker(
    config: Config, folder: RunFolder, ranks: Ranks, group: str | None, container: dict[str, Any]
) -> Iterator[Tracker]:
    if not ranks.is_main:
        yield Tracker()
        return
    tracker = instantiate(config.tracker, "tracker", Tracker)
    tracker.start(folder.path, group, container)
    status = "failed"
    try:
        yield tracker
        status = "finished"
    except Interrupted:
        status = "interrupted"
        raise
    finally:
        tracker.finish(status)


@dataclass
class _Run:
    """The steps of one run, new or resumed; see `train`."""

    task: Task[Any]
    overrides: list[str]
    identity: Mapping[str, Any]
    folder: RunFolder
    ranks: Ranks
    clock: Clock
    stop: StopRequest
    trial: Trial | None

    def __post_init__(self) -> None:
        self.config = self.task.config
        self.resumes = can_resume(self.folder)
        self.metric = main_metric(self.task).name
        self._scratch = self.folder.path / "scratch"  # ids of the current epoch with BPE-dropout

    def describe(self, container: dict[str, Any]) -> None:
        """Write the settings and the start of the run, and log it."""
        folder, trainer = self.folder, self.config.trainer
        update = folder.read_last().get("update", 0)
        earlier: list[dict[str, Any]] = []  # processes that trained it
        about = self.task.name, self.metric, self.overrides, trainer.max_updates, update
        self.listed = Summary(*about, started=time.time())
        if not self.ranks.is_main:
            return
        if self.resumes:
            with suppress(RunError):  # a damaged file, which resuming does not need
                before = read_json(folder.path / "environment.json", missing_ok=True)
                earlier = [*before.pop("earlier", ()), before]
        # without those of which nothing was saved
        earlier = [process for process in earlier if process.get("update", 0) < update]
        self.before = earlier[-1] if earlier else {}
        (folder.path / "error.json").unlink(missing_ok=True)
        remove_partial(folder.path)
        folder.describe(container, self.overrides, update=update, earlier=earlier)
        self.listed.write(folder.path)
        if self.trial is not None:
            self.trial.start(folder.path)
        if self.resumes:
            logged = Record(folder.path).last_logged().get("update", update)
            unsaved = f", logged to {logged}" if logged > update else ""
            log.info("resuming in %s at update %d%s", folder.path, update, unsaved)
        else:
            log.info("training in %s", folder.path)
        if self.ranks.device.type == "cuda" and trainer.device == "auto":
            log.info(
                "batches of %d tokens on a GPU (trainer=gpu has larger ones, in bf16)",
                trainer.max_tokens,
            )

    def train(self, corpus: Corpus, prepared: Data, tracker: Tracker) -> None:
        """Train on the prepared data, evaluate."""
        records = RunLog(self.folder if self.ranks.is_main else None, tracker)
        try:
            if self.ranks.is_main:
                self._write_data(corpus, prepared)
            seed_everything(self.config.seed, "model")
            model = self._model(prepared)
            self._write_kernels(model)
            examples = self.task.examples(prepared, self.ranks, self._scratch)
            with training_batches(examples, self.ranks) as batches:
                trainer = self._trainer(model, prepared, batches, records)
                before = trainer.seconds
                self.clock.end("start")
                trainer.run()
                self.clock.end("validations", trainer.seconds - before)
        finally:
            records.close()
        self._finish(trainer, prepared, self.task.splits(corpus), tracker)

    def _write_data(self, corpus: Corpus, prepared: Data) -> None:
        path = self.folder.path / "data.json"
        if path.is_file():
            before = read_json(path)
            if before["fingerprint"] != prepared.fingerprint:
                # the fingerprint of the folder covers the text
                then, now = before.get("versions", {}), versions()
                raise RunError(
                    f"{self.folder.path} was started with data from "
                    f"{_other_versions(then, now)}, not from {_other_versions(now, then)}: "
                    "install the former, or set experiment_name=… for a new folder"
                )
            return
        prepared.save(self.folder.path)
        about = {
            "fingerprint": prepared.fingerprint,
            "text": combined_digest(corpus.hashes()),
            "vocabulary": prepared.vocabulary,
            "sizes": dict(prepared.sizes),
            "versions": versions(),
            **self.identity,
        }
        self.folder.write_json("data.json", {**about, **prepared.report})

    def _model(self, prepared: Data) -> Model:
        model = self.task.model(prepared.sizes, prepared)
        if self.config.init_from is not None and not self.resumes:
            origin = RunFolder.existing(self.config.init_from, "init_from")
            start_from(model, self.config, origin, prepared.vocabulary)
            if init_weights(self.config) != self.identity["init_weights"]:
                raise RunError(f"init_from={origin.path} was changed: run the same command again")
        return model.to(self.ranks.device)

    def _write_kernels(self, model: Model) -> None:
        """Write the kernels of the run to environment.json; warn if they were others before."""
        if not self.ranks.is_main:
            return
        precision, device = self.config.trainer.precision, self.ranks.device
        kernels = {"kernels": kernels_of(model, self.task.loss, precision, device)}
        now = read_json(self.folder.path / "environment.json") | kernels
        self.folder.write_json("environment.json", now)
        if self.before and (changed := "; ".join(changes(self.before, now))):
            log.warning("resumed with other software or threads, results may change: %s", changed)

    def _trainer(
        self, model: Model, prepared: Data, batches: Prefetched, records: RunLog
    ) -> Trainer:
        trainer = Trainer(
            step=build_step(self.config, model, self.task.loss, self.ranks),
            loader=batches,
            folder=self.folder,
            records=records,
            validate=partial(validate, self.task, model, prepared, self.ranks),
            reported=lambda: reported(model),
            stop=self.stop,
            trial=self.trial,
        )
        resume_or_start(trainer)
        return trainer

    def _finish(
        self, trainer: Trainer, prepared: Data, splits: Sequence[str], tracker: Tracker
    ) -> None:
        """Choose the weights, evaluate the splits, write the results and the figures."""
        config, folder, model = self.config, self.folder, trainer.model
        weights = choose_weights(trainer, self.task.validates_part(prepared))
        # skip splits that were evaluated with these weights, on the text of now
        earlier = folder.results_at(trainer.state.update) or Results()
        scores = valid_scores(folder, self.task, earlier, prepared, splits)
        for name in splits:
            if name not in scores:
                if name in earlier.scores:
                    why = "its text was replaced, or its references are gone"
                    log.info("%s is scored again: %s", name, why)
                scores[name] = score(
                    self.task, model, prepared, self.ranks, folder, name,
                    tracker=tracker, progress=config.trainer.progress,
                )  # fmt: skip
        heads = valid_heads(self.task, model, prepared, self.ranks)
        state, clock = trainer.state, self.clock
        clock.end("evaluation")
        results = Results(
            scores=scores,
            # heads without an α parameter get the mean over their queries
            alpha=filled(alphas(model), heads.pop("alpha", {})),
            heads=heads,
            fingerprint=self.identity["identity"],
            seed=config.seed,
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
        if self.ranks.is_main:
            self.listed.with_results(results).write(folder.path)
            results.write(folder.results)  # before the figures, which may fail or take long
            tracker.summary({f"{n}/{self.metric}": results.score(n, self.metric) for n in scores})
            draw(folder, tracker)
            folder.figures.mkdir(exist_ok=True)
            clock.end("figures")
            results = replace(results, other_seconds=clock.seconds)
            results.write(folder.results)
            shutil.rmtree(self._scratch, ignore_errors=True)
            log.info("%s", summary(folder, results, self.task.command))
        self.ranks.barrier()

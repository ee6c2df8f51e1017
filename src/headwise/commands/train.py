"""`headwise train key=value …`: one run from its configuration to its results.

Repeating the command prints the results of a finished run, or resumes from the last checkpoint.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headwise.analysis.collect import alphas, filled, reported
from headwise.commands.finished import check_checkpoints, final_results, valid_scores
from headwise.commands.outcome import draw, summary
from headwise.config.schema import Config
from headwise.data.prefetch import Prefetched
from headwise.data.sources.digest import combined_digest
from headwise.data.splits import Corpus
from headwise.data.tokenizer_training import load_tokenizers
from headwise.errors import Interrupted, RunError
from headwise.files import output_to, read_json, remove_partial
from headwise.model.family import Model
from headwise.model.kernels import kernels_of
from headwise.precision import matmul_dtype, use_deterministic_kernels
from headwise.runs.environment import git_commit, rank_variables, versions
from headwise.runs.failure import Failure, UntouchedRun
from headwise.runs.fingerprint import fingerprint
from headwise.runs.folder import RunFolder
from headwise.runs.listing import Summary
from headwise.runs.log import RunLog
from headwise.runs.results import Results
from headwise.seed import seed_everything
from headwise.tasks.check import check, resolve
from headwise.tasks.data import Data
from headwise.tasks.evaluate import main_metric, score, valid_heads, validate
from headwise.tasks.task import Task, task_of
from headwise.track.base import NullTracker, Tracker
from headwise.track.wandb_tracker import make_tracker
from headwise.train.average import choose_weights
from headwise.train.batches import training_batches
from headwise.train.budget import describe_budget
from headwise.train.clock import Clock
from headwise.train.distributed import Ranks, process_group
from headwise.train.initial import start_from
from headwise.train.interrupt import SAVING, StopRequest, stop_request
from headwise.train.memory import keep_freed_memory
from headwise.train.resume import can_resume, ranks_of_run, resume_or_start
from headwise.train.step import build_step
from headwise.train.trainer import Trainer, Trial

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes:
        folder: the run folder; None after a dry run.
        results: results of the run; None after a dry run.
    """

    folder: Path | None
    results: Results | None


@dataclass(frozen=True)
class _Launched:
    """How a run was started: see `train`."""

    overrides: list[str]
    group: str | None
    has_log: bool
    trial: Trial | None
    stop: StopRequest
    clock: Clock


def train(
    config: Config,
    overrides: list[str],
    group: str | None = None,
    has_log: bool = False,
    trial: Trial | None = None,
    started: float | None = None,
) -> Outcome:
    """Train or resume a run; a finished run only prints its results.

    Args:
        config: composed by Hydra; derived settings are filled in.
        overrides: the command line, for the folder's name and record.
        group: name of the sweep, for the tracker.
        has_log: append the output of training to log.txt in the run folder instead of printing it.
        trial: of a search, to which validations are reported.
        started: when the process of this run alone started, by `time.perf_counter`.

    Raises:
        Interrupted: a signal was received; nothing that was saved is lost.
    """
    if config.dry_run:
        check(config)
        if config.init_from is not None:
            RunFolder.existing(config.init_from, "init_from")
        print(describe_budget(task_of(config)))
        return Outcome(None, None)
    failure = Failure(
        lambda: _run_folder(config, resolve(config), overrides, []),
        overrides,
        in_sweep=group is not None,
    )
    rank, *_ = rank_variables()
    with stop_request("" if rank else SAVING) as stop, failure.recorded():
        check(config)
        container = resolve(config)
        # fail on an invalid name before data is read
        failure.folder = _run_folder(config, container, overrides, [])
        launched = _Launched(overrides, group, has_log, trial, stop, Clock(started))
        return _train(config, container, launched, failure)


def _train(
    config: Config, container: dict[str, Any], launched: _Launched, failure: Failure
) -> Outcome:
    overrides = launched.overrides
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    keep_freed_memory()
    with process_group(config.trainer.device) as ranks:
        use_deterministic_kernels(ranks.device)
        task = task_of(config)
        with ranks.first_alone():  # the first rank downloads, the others read the cache
            corpus = task.open(Path(config.paths.cache))
        folder = _run_folder(config, container, overrides, _content_hashes(config, corpus))
        failure.folder = folder
        results = final_results(folder, task, corpus)
        if results is not None:
            if ranks.is_main:
                lines = summary(folder, results, task.command)
                log.info("this run is finished: %s\n%s", folder.path, lines)
            return Outcome(folder.path, results)
        if config.init_from is not None and not can_resume(folder):
            RunFolder.existing(config.init_from, "init_from")
        with ranks.first_alone():  # before a folder is made: a failure leaves none
            prepared = task.prepare(corpus)
        # a job of a search that was adopted may still be running
        with _locked(folder, ranks, wait=launched.trial is not None):
            resumes = can_resume(folder)
            metric, update = main_metric(task).name, folder.read_last().get("update", 0)
            listed = Summary(task.name, metric, overrides, config.trainer.max_updates, update)
            if ranks.is_main:
                check_checkpoints(folder)
            ranks.barrier()
            ranks = ranks_of_run(folder, ranks)
            if ranks.is_main:
                folder.remove_error()
                _run_folder(config, container, overrides, []).remove_error()
                remove_partial(folder.path)
                folder.describe(container, overrides)
                listed.write(folder.path)
                if launched.trial is not None:
                    launched.trial.start(folder.path)
                log.info("%s %s", "resuming in" if resumes else "training in", folder.path)
                if ranks.device.type == "cuda" and config.trainer.device == "auto":
                    log.info(
                        "batches of %d tokens on a GPU (trainer=gpu has larger ones, in bf16)",
                        config.trainer.max_tokens,
                    )
            log_file = folder.path / "log.txt" if launched.has_log else None
            with (
                output_to(log_file),
                _tracker(config, folder, ranks, launched.group, container) as tracker,
            ):
                return _Run(task, config, folder, ranks, tracker, listed, launched).run(
                    corpus, prepared
                )


def _content_hashes(config: Config, corpus: Corpus) -> list[str]:
    """Hashes of the text, and of the tokenizer with tokenizer=given."""
    text = corpus.hashes()
    tokenizers = load_tokenizers(config.tokenizer)
    return text if tokenizers is None else [*text, tokenizers.fingerprint()]


def _run_folder(
    config: Config, container: dict[str, Any], overrides: list[str], text: list[str]
) -> RunFolder:
    """The folder for settings and hashes of text (`_content_hashes`; empty: text not read yet)."""
    digest = fingerprint(container, text)
    return RunFolder.locate(Path(config.paths.outputs), config.experiment_name, overrides, digest)


def _tokenizer_versions(versions: Mapping[str, str]) -> str:
    """Versions of the packages that affect tokenization."""
    return " and ".join(f"{name} {versions.get(name)}" for name in ("headwise", "sentencepiece"))


@contextmanager
def _locked(folder: RunFolder, ranks: Ranks, wait: bool) -> Iterator[None]:
    with ExitStack() as claims:
        if ranks.is_main:
            folder.make()
            try:
                claims.enter_context(folder.claimed(wait))
            except RunError as error:
                raise UntouchedRun(str(error)) from error
        ranks.barrier()
        yield


@contextmanager
def _tracker(
    config: Config, folder: RunFolder, ranks: Ranks, group: str | None, container: dict[str, Any]
) -> Iterator[Tracker]:
    if not ranks.is_main:
        yield NullTracker()
        return
    tracker = make_tracker(config.tracker, folder.path, group, container)
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
    """The steps of one run, new or resumed."""

    task: Task[Any]
    config: Config
    folder: RunFolder
    ranks: Ranks
    tracker: Tracker
    listed: Summary
    launched: _Launched

    def __post_init__(self) -> None:
        self.records = RunLog(self.folder if self.ranks.is_main else None, self.tracker)
        self._scratch = self.folder.path / "scratch"  # ids of the current epoch with BPE-dropout

    def run(self, corpus: Corpus, prepared: Data) -> Outcome:
        """Train on the prepared data, evaluate."""
        try:
            if self.ranks.is_main:
                self._write_data(corpus, prepared)
            seed_everything(self.config.seed, "model")
            model = self._model(prepared)
            self._verify_kernels(model)
            examples = self.task.examples(prepared, self.ranks, self._scratch)
            batches = training_batches(examples, self.ranks)
            with batches:
                trainer = self._trainer(model, prepared, batches)
                if self.ranks.is_main:
                    update, now = trainer.state.update, time.time()
                    self.listed = replace(self.listed, update=update, started=now)
                    self.listed.write(self.folder.path)
                before = trainer.seconds
                self.launched.clock.end("start")
                trainer.run()
                self.launched.clock.end("validations", trainer.seconds - before)
        finally:
            self.records.close()
        results = self._finish(trainer, prepared, self.task.splits(corpus))
        return Outcome(self.folder.path, results)

    def _write_data(self, corpus: Corpus, prepared: Data) -> None:
        path = self.folder.path / "data.json"
        if path.is_file():
            before = read_json(path)
            if before["fingerprint"] != prepared.fingerprint:
                # the fingerprint of the folder covers the text
                raise RunError(
                    f"{self.folder.path} was started with tokens from "
                    f"{_tokenizer_versions(before.get('versions', {}))}, not from "
                    f"{_tokenizer_versions(versions())}: "
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
        }
        self.folder.write_json("data.json", {**about, **prepared.report})

    def _model(self, prepared: Data) -> Model:
        model = self.task.model(prepared.sizes, prepared)
        if self.config.init_from is not None and not can_resume(self.folder):
            origin = RunFolder.existing(self.config.init_from, "init_from")
            start_from(model, self.config, origin, prepared.vocabulary)
        return model.to(self.ranks.device)

    def _verify_kernels(self, model: Model) -> None:
        """Verify the kernels of the run, and write their names to environment.json."""
        dtype = matmul_dtype(self.config.trainer.precision, self.ranks.device)
        used = kernels_of(model, getattr(self.task.loss, "alpha", 1.0), dtype, self.ranks.gather)
        if self.ranks.is_main:
            environment = read_json(self.folder.path / "environment.json")
            self.folder.write_json("environment.json", environment | {"kernels": used})

    def _trainer(self, model: Model, prepared: Data, batches: Prefetched) -> Trainer:
        trainer = Trainer(
            step=build_step(self.config, model, self.task.loss, self.ranks),
            loader=batches,
            folder=self.folder,
            records=self.records,
            validate=partial(validate, self.task, model, prepared, self.ranks),
            reported=lambda: reported(model),
            stop=self.launched.stop,
            trial=self.launched.trial,
        )
        resume_or_start(trainer)
        return trainer

    def _finish(self, trainer: Trainer, prepared: Data, splits: Sequence[str]) -> Results:
        """Choose the weights, evaluate the splits, write the results and the figures."""
        config, folder, model = self.config, self.folder, trainer.model
        weights = choose_weights(trainer, self.task.validates_part(prepared))
        # skip splits that were evaluated with these weights
        earlier = folder.results_at(trainer.state.update)
        scores = valid_scores(folder, self.task, earlier) if earlier is not None else {}
        for name in splits:
            if name not in scores:
                scores[name] = score(
                    self.task, model, prepared, self.ranks, folder, name,
                    tracker=self.tracker, progress=config.trainer.progress,
                )  # fmt: skip
        heads = valid_heads(self.task, model, prepared, self.ranks)
        state, clock = trainer.state, self.launched.clock
        clock.end("evaluation")
        results = Results(
            scores=scores,
            # heads without an α parameter get the mean over their queries
            alpha=filled(alphas(model), heads.pop("alpha", {})),
            heads=heads,
            fingerprint=folder.path.name.rpartition("-")[2],
            seed=config.seed,
            updates=state.update,
            best_update=state.best_update,
            weights=weights,
            stopped_early=state.stopped_early,
            tokens=state.tokens,
            wall_seconds=round(trainer.seconds, 3),
            tokens_per_second=round(state.tokens / max(trainer.seconds, 1e-9), 1),
            other_seconds=clock.seconds,
            peak_memory_bytes=trainer.step.memory.bytes,
            git=git_commit(),
            versions=versions(),
            finished_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        )
        if self.ranks.is_main:
            self.listed.with_results(results).write(folder.path)
            results.write(folder.results)  # before the figures, which may fail or take long
            metric = main_metric(self.task).name
            split_scores = {f"{name}/{metric}": results.score(name, metric) for name in scores}
            self.tracker.summary(split_scores)
            draw(folder, self.tracker)
            folder.figures.mkdir(exist_ok=True)
            clock.end("figures")
            results = replace(results, other_seconds=clock.seconds)
            results.write(folder.results)
            shutil.rmtree(self._scratch, ignore_errors=True)
            log.info("%s", summary(folder, results, self.task.command))
        self.ranks.barrier()
        return results

"""`headwise train key=value …`: one run from its configuration to its results.

Plan of a run:

    task    = the checked settings; with dry_run=true print its needs, and end
    corpus  = where the text is, and hashes of its content
    run     = the folder of these settings and this text; if finished, print its results, and end
    data    = the text as ids, from the cache
    lock the folder, write the settings, open the tracker
    model   = built from the seed, or with the weights of init_from
    trainer = one step, the batches and the validation; resumed from the last checkpoint
    trainer.run()
    results = the best weights, scored on each split; figures

Repeating the command prints the results of a finished run, or resumes from the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

from headwise.analysis.collect import reported
from headwise.commands.training_run import Clock, TrainingRun
from headwise.config.schema import Config
from headwise.runs.environment import rank_variables
from headwise.runs.log import RunLog, text_log
from headwise.seed import seed_everything
from headwise.tasks.check import checked_task, resolve
from headwise.tasks.dry_run import dry_run
from headwise.tasks.evaluate import validate
from headwise.train.distributed import training_batches, training_process
from headwise.train.interrupt import SAVING, stop_request
from headwise.train.resume import check_origin, ranks_of_run, resume_or_start
from headwise.train.step import build_step, check_compiler
from headwise.train.trainer import Trainer, Trial


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
            dry_run(task)
            return None
        resolve(task)
        with training_process(config.trainer) as ranks:
            with ranks.first_alone():  # the first rank downloads, the others read the cache
                corpus = task.open(task.cache)
                run = TrainingRun.located(task, overrides, corpus, swept)
            with ranks.first_alone():
                is_finished = run.is_finished(corpus, ranks)
            if is_finished:
                return run.folder.path
            check_origin(run.folder, config.init_from)
            with ranks.first_alone():  # before a folder is made: a failure leaves none
                data = task.prepare(corpus)
            # a job of a search that was adopted may still be running
            with run.opened(ranks, held_log, wait=trial is not None):
                ranks = ranks_of_run(run.folder, ranks)
                before = run.describe(ranks, trial)
                with run.tracked(ranks, group) as tracker:
                    records = RunLog(run.folder if ranks.is_main else None, tracker)
                    try:
                        if ranks.is_main:
                            run.record_data(corpus, data)
                        seed_everything(config.seed, "model")
                        model = run.model(data, ranks.device)
                        run.record_kernels(model, ranks, before)
                        examples = task.examples(data, ranks, run.scratch)
                        with training_batches(examples, ranks) as batches:
                            trainer = Trainer(
                                step=build_step(config, model, task.loss, ranks),
                                loader=batches,
                                folder=run.folder,
                                records=records,
                                validate=partial(validate, task, model, data, ranks),
                                reported=partial(reported, model),
                                stop=stop,
                                trial=trial,
                            )
                            resume_or_start(trainer)
                            seconds = trainer.seconds
                            clock.end("start")
                            trainer.run()
                            clock.end("validations", trainer.seconds - seconds)
                    finally:
                        records.close()
                    run.finish(trainer, data, task.splits(corpus), tracker, clock)
    return run.folder.path

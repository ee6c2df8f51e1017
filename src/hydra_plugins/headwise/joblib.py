"""`hydra/launcher=joblib`: jobs in a pool of processes on this machine.

Beyond the plugin of Hydra: Ctrl-C and SIGTERM let the running jobs save, a process that dies takes
no other job with it, each process has a GPU of its own.
"""

from __future__ import annotations

import logging
import multiprocessing
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log

from headwise.errors import Interrupted, counted
from headwise.train.interrupt import StopRequest
from hydra_plugins.headwise._process import (
    POLL_SECONDS,
    JobProcess,
    ended_job,
    lost_job,
    n_jobs_here,
    sweep_of,
    visible_gpus,
    waiting_for_jobs,
)

try:
    from hydra_plugins.hydra_joblib_launcher.joblib_launcher import JoblibLauncher as HydraLauncher
except ImportError:  # Hydra imports every plugin, also without the extra
    HydraLauncher = object

log = logging.getLogger(__name__)
Overrides = Sequence[str]


class JoblibLauncher(HydraLauncher):  # type: ignore[misc]
    """Runs jobs in a pool of processes.

    Args:
        n_jobs: jobs at a time; null: one per GPU, else one per core. Each has cores / n_jobs
            threads, unless OMP_NUM_THREADS is set.
        options: of `joblib.Parallel`.
    """

    def __init__(self, n_jobs: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.n_jobs = n_jobs or n_jobs_here(1)

    def launch(self, job_overrides: Sequence[Overrides], initial_job_idx: int) -> list[JobReturn]:
        """Run the jobs; returns of those that were started, in order.

        A worker that dies breaks the pool. The jobs that were running are then run one at a time:
        the job whose worker dies again is lost, the others resume.
        """
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        jobs = dict(enumerate(job_overrides, initial_job_idx))
        log.info("%s, %d at a time", counted(len(jobs), "job"), self.n_jobs)
        sweep = sweep_of(self.task_function)
        returns: dict[int, JobReturn] = {}
        suspects: list[int] = []
        with waiting_for_jobs() as stop, _forwarded(stop):
            while len(returns) < len(jobs) and not stop:
                batch = suspects or [n for n in jobs if n not in returns]
                started: list[int] = []
                numbers = _until_stopped(batch, stop, started)
                at_a_time = 1 if suspects else self.n_jobs
                try:
                    for index, job in enumerate(self._run(jobs, numbers, at_a_time)):
                        returns[started[index]] = job
                except TerminatedWorkerError:
                    running = [n for n in started if n not in returns]
                    if suspects and not stop:
                        returns[running[0]] = lost_job(sweep, running[0], jobs[running[0]])
                    suspects = [n for n in suspects or running if n not in returns]
                else:
                    suspects = []
        return [returns[number] for number in sorted(returns)]

    def _run(
        self, jobs: Mapping[int, Overrides], numbers: Iterator[int], at_a_time: int
    ) -> Iterator[JobReturn]:
        """Yield the returns of jobs, in order."""
        from joblib import Parallel, delayed

        process = JobProcess(sweep_of(self.task_function).folder, visible_gpus())
        shared = (self.hydra_context, self.config, self.task_function, Singleton.get_state())
        # with n_jobs=1 joblib would run the jobs in this process
        pool = Parallel(
            **self.joblib,
            n_jobs=max(self.n_jobs, 2),
            pre_dispatch=at_a_time,
            batch_size=1,
            return_as="generator",
        )
        yield from pool(delayed(_run_job)(process, n, list(jobs[n]), *shared) for n in numbers)


def _run_job(process: JobProcess, number: int, overrides: list[str], *shared: Any) -> JobReturn:
    """Run a job in a worker."""
    from hydra_plugins.hydra_joblib_launcher._core import execute_job

    process.prepare()
    try:
        job: JobReturn = execute_job(number, overrides, *shared)
    except Interrupted as error:
        return ended_job(overrides, error)
    return job


def _until_stopped(numbers: Sequence[int], stop: StopRequest, started: list[int]) -> Iterator[int]:
    """Yield numbers until a signal; append them to `started`."""
    for number in numbers:
        if stop:
            return
        started.append(number)
        yield number


@contextmanager
def _forwarded(stop: StopRequest) -> Iterator[None]:
    """Send SIGTERM to the workers after a signal, repeatedly: a worker may just be starting."""
    ended = threading.Event()

    def forward() -> None:
        while not ended.wait(POLL_SECONDS):
            for worker in multiprocessing.active_children() if stop else ():
                worker.terminate()

    threading.Thread(target=forward, daemon=True).start()
    try:
        yield
    finally:
        ended.set()

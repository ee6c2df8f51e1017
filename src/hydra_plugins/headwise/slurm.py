"""`hydra/launcher=submitit_slurm` and `submitit_local`: one process per job, by submitit.

Beyond the plugin of Hydra: a job saves before it is requeued, a job that is cancelled or lost does
not stop the others, jobs on one machine wait for a free GPU or core, pickles are private.
"""

from __future__ import annotations

import getpass
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log
from omegaconf import OmegaConf

from headwise.data.workers import n_cores
from headwise.errors import ConfigError, Interrupted, RunError, counted, require
from headwise.train.interrupt import SIGNALS, StopRequest, stop_request
from hydra_plugins.headwise._process import JobProcess

try:
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
except ImportError:  # Hydra imports every plugin, also without the extra
    BaseSubmititLauncher = object

log = logging.getLogger(__name__)

WAITING = (
    "waiting until the running jobs have saved; no other job starts. Ctrl-C (again) exits "
    "immediately."
)
SAVED = "stopped; the jobs are saved. Give the same command again to resume."
LEFT = "the jobs stay in the queue. Give the same command again when they have ended."
Running = Mapping[int, Any]  # number -> job of submitit


class _Launcher(BaseSubmititLauncher):  # type: ignore[misc]
    """Runs each job in a process of its own."""

    poll_seconds = 0.5
    n_jobs = sys.maxsize  # at a time
    gpus: Sequence[str] = ()
    leave_jobs = False  # end at Ctrl-C without stopping the jobs

    def __call__(self, *arguments: Any) -> JobReturn:
        """Run a job, in its process.

        After a signal the former handler of submitit is called, when all is saved: after USR2,
        before the time limit, it requeues the job. There is no result then, so that the launching
        process waits for the requeued job.
        """
        handlers = self.process.prepare()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            job: JobReturn = super().__call__(*arguments)
            return job
        except Interrupted as stop:
            os.umask(0o077)
            handler = handlers.get(signal.Signals(stop.signal_number))
            if callable(handler):
                handler(stop.signal_number, None)
            sys.exit(stop.exit_code)
        finally:
            os.umask(0o077)  # of submitit's pickles

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        """Run the jobs; returns of those that were started, in order.

        Raises:
            ConfigError: the command does not train.
            RunError: the jobs cannot be submitted.
        """
        sweep = self.task_function.sweep  # of `headwise.cli.Call`
        if sweep is None:
            raise ConfigError("hydra/launcher=… works with headwise train -m only")
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        jobs = dict(enumerate(map(list, job_overrides), initial_job_idx))
        sweep.folder.mkdir(parents=True, exist_ok=True)
        self.process = JobProcess(sweep.folder, self.gpus, self.params.get("cpus_per_task"))
        executor, state = self._executor(), Singleton.get_state()
        log.info("%s, %d at a time", counted(len(jobs), "job"), min(self.n_jobs, len(jobs)))
        waiting = list(jobs)
        running: dict[int, Any] = {}
        returns: dict[int, JobReturn] = {}
        with stop_request("" if self.leave_jobs else WAITING, is_deferred=True) as stop:
            while running or (waiting and not stop):
                n_free = 0 if stop else self.n_jobs - len(running)
                if numbers := waiting[:n_free]:
                    waiting = waiting[n_free:]
                    rows = [(jobs[n], "hydra.sweep.dir", n, str(n), state) for n in numbers]
                    with _submitting():
                        submitted = executor.map_array(self, *zip(*rows, strict=True))
                    running.update(zip(numbers, submitted, strict=True))
                if stop:
                    if self.leave_jobs:
                        break
                    self.stop(running)
                for number in self.ended(running):
                    job = running.pop(number)
                    returns[number] = self._result(number, jobs[number], job, stop)
                time.sleep(self.poll_seconds)
        if stop.signal_number is not None:
            raise Interrupted(LEFT if self.leave_jobs else SAVED, stop.signal_number)
        return [returns[number] for number in sorted(returns)]

    def ended(self, running: Running) -> Collection[int]:
        """Numbers of jobs that have ended."""
        raise NotImplementedError

    def stop(self, running: Running) -> None:
        """Let running jobs save and end; called repeatedly."""
        raise NotImplementedError

    def _executor(self) -> Any:
        import submitit

        parameters = {name: value for name, value in self.params.items() if value is not None}
        folder = parameters.pop("submitit_folder")
        private = Path(str(folder).partition("%")[0])
        try:
            private.mkdir(mode=0o700, parents=True, exist_ok=True)
            private.chmod(0o700)  # pickles are code
        except OSError as error:
            raise RunError(f"{private} must be a folder of yours: {error.strerror}") from error
        shared = set(OmegaConf.structured(BaseQueueConf))

        def named(name: str) -> str:
            return name if name in shared else f"{self._EXECUTOR}_{name}"

        limit = {named("max_num_timeout"): parameters.pop("max_num_timeout")}
        try:
            executor = submitit.AutoExecutor(folder, cluster=self._EXECUTOR, **limit)
        except RuntimeError as error:  # no srun
            raise RunError(f"hydra/launcher=submitit_{self._EXECUTOR}: {error}") from error
        executor.update_parameters(**{named(name): value for name, value in parameters.items()})
        return executor

    def _result(self, number: int, overrides: list[str], job: Any, stop: StopRequest) -> JobReturn:
        from submitit.core.utils import UncompletedJobError

        if job.paths.result_pickle.exists():
            with suppress(UncompletedJobError):  # requeued too often: recorded as interrupted
                (result,) = job.results()
                return result  # type: ignore[no-any-return]
        sweep = self.task_function.sweep
        error: BaseException
        if "interrupted" in sweep.read(number) or stop:
            message = f"a job was stopped: {' '.join(overrides)}. The same command resumes it."
            error = Interrupted(message, stop.signal_number or signal.SIGTERM)
        else:
            error = RunError(
                "the process of the job was killed (out of memory?) or its machine failed; its "
                f"output is in {sweep.log(number)}"
            )
            sweep.record(number, overrides, None, error)
        ended = JobReturn(overrides=overrides, status=JobStatus.FAILED)
        ended.return_value = error
        return ended


class LocalLauncher(_Launcher):
    """Runs jobs on this machine.

    Args:
        n_jobs: jobs at a time; null: one per GPU, else one per `cpus_per_task` cores.
        parameters: of submitit's executor.
    """

    _EXECUTOR = "local"

    def __init__(self, n_jobs: int | None = None, **parameters: Any) -> None:
        super().__init__(**parameters)
        is_allowed = n_jobs is None or (isinstance(n_jobs, int) and n_jobs >= 1)
        require(is_allowed, "hydra.launcher.n_jobs", "null or at least 1", n_jobs)
        self.gpus = _visible_gpus()
        self.n_jobs = n_jobs or len(self.gpus) or max(n_cores() // self.params["cpus_per_task"], 1)

    def ended(self, running: Running) -> Collection[int]:
        """Numbers of jobs whose process has ended."""
        return [number for number, job in running.items() if job.done()]

    def stop(self, running: Running) -> None:
        """Send SIGTERM to the processes that control the jobs, which pass it on."""
        for job in running.values():
            with suppress(ProcessLookupError):
                os.kill(int(job.job_id), signal.SIGTERM)


class SlurmLauncher(_Launcher):
    """Submits a job array to Slurm and waits for it.

    Args:
        leave_jobs: after Ctrl-C leave the jobs in the queue instead of stopping them.
        parameters: of submitit's executor.
    """

    _EXECUTOR = "slurm"
    poll_seconds = 5.0

    def __init__(self, leave_jobs: bool = False, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.leave_jobs = leave_jobs
        self._gone: set[str] = set()

    def ended(self, running: Running) -> Collection[int]:
        """Numbers of jobs with a result, and of those that left the queue without one.

        A job that is requeued stays in the queue. The queue needs no accounting, as sacct does.
        """
        done = [n for n, job in running.items() if job.paths.result_pickle.exists()]
        command = ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"]
        queue = subprocess.run(command, capture_output=True, text=True, check=False)
        if queue.returncode == 0:
            queued = set(queue.stdout.split())
            gone = {job.job_id for job in running.values()} - queued
            # seen twice: a file of another node may arrive late
            done += [n for n, job in running.items() if job.job_id in gone & self._gone]
            self._gone = gone
        return set(done)

    def stop(self, running: Running) -> None:
        """Cancel pending jobs; send SIGTERM to running ones, without Slurm's limit of time."""
        ids = [job.job_id for job in running.values()]
        for option in ("--state=PENDING", "--signal=TERM"):
            subprocess.run(["scancel", option, *ids], capture_output=True, check=False)


def _visible_gpus() -> list[str]:
    """Names of the GPUs of this machine for CUDA_VISIBLE_DEVICES, listed without CUDA."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is not None:
        # CUDA ignores what follows an entry that is none, such as -1 or NoDevFiles
        return list(takewhile(re.compile(r" *(\d+|(GPU|MIG)-.+)").fullmatch, variable.split(",")))
    return [str(n) for n, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


@contextmanager
def _submitting() -> Iterator[None]:
    """Write private files, and let started processes ignore signals to the process group.

    They inherit the blocked signals; SIGTERM is passed on to jobs.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, set(SIGNALS) - {signal.SIGTERM})
    umask = os.umask(0o077)
    try:
        yield
    except (FailedJobError, FailedSubmissionError) as error:
        raise RunError(f"the jobs were not submitted: {error}") from error
    finally:
        os.umask(umask)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

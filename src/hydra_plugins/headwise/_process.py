"""What launchers of other processes share: the processes of jobs, lost jobs, stopping."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus

from headwise.commands.sweep import Sweep
from headwise.config.register import register
from headwise.data.workers import n_cores
from headwise.errors import ConfigError, Interrupted, RunError
from headwise.files import guard_streams, lock
from headwise.train.interrupt import Handlers, StopRequest, stop_request

WAITING = (
    "waiting until the running jobs have saved; no other job starts. Ctrl-C (again) exits "
    "immediately."
)
SAVED = "stopped; the jobs are saved. Give the same command again to resume."
LEFT = "the jobs stay in the queue. Give the same command again when they have ended."
POLL_SECONDS = 0.5
# Plugins whose configs conf/hydra/ replaces.
REPLACED = {"joblib_launcher", "submitit_launcher", "optuna_sweeper"}
_locks: list[IO[str]] = []  # open as long as this process


def visible_gpus() -> list[str]:
    """Names of the GPUs of this machine for CUDA_VISIBLE_DEVICES, listed without CUDA."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is not None:
        return [name for name in variable.split(",") if name]
    return [str(n) for n, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def n_jobs_here(cores_per_job: int) -> int:
    """Jobs that run at a time on this machine: one per GPU, else one per `cores_per_job`."""
    return len(visible_gpus()) or max(n_cores() // cores_per_job, 1)


@dataclass(frozen=True)
class JobProcess:
    """Set-up of a process that runs jobs.

    Attributes:
        folder: of the sweep.
        gpus: each process uses one that no other does; empty: leave CUDA_VISIBLE_DEVICES.
        cores: threads of torch, unless OMP_NUM_THREADS is set; None: leave them.
        arguments: the command line, for messages and environment.json.
        umask: of the launching process.
    """

    folder: Path
    gpus: Sequence[str] = ()
    cores: int | None = None
    arguments: Sequence[str] = field(default_factory=lambda: list(sys.argv))
    umask: int = field(default_factory=lambda: _umask())

    def prepare(self) -> Handlers:
        """Set up this process; return the former signal handlers.

        From now on signals are recorded, and stop the job that runs or the next one.
        """
        guard_streams()
        handlers = StopRequest(is_deferred=True).install()
        register()
        os.umask(self.umask)
        sys.argv[:] = self.arguments
        if self.cores:
            os.environ.setdefault("OMP_NUM_THREADS", str(self.cores))
        if self.gpus and not _locks:
            os.environ["CUDA_VISIBLE_DEVICES"] = self._free_gpu()
        return handlers

    def _free_gpu(self) -> str:
        for index, name in enumerate(self.gpus):
            file = open(self.folder / f"gpu-{index}.lock", "w")  # noqa: SIM115
            if lock(file) is False:
                file.close()
                continue
            _locks.append(file)
            return name
        return ",".join(self.gpus)  # more jobs than GPUs


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


@contextmanager
def waiting_for_jobs(leave_jobs: bool = False) -> Iterator[StopRequest]:
    """Record signals; raise `Interrupted` after the block, in which jobs end or are left."""
    with stop_request("" if leave_jobs else WAITING, is_deferred=True) as stop:
        yield stop
    if stop.signal_number is not None:
        message = LEFT if leave_jobs else SAVED
        raise Interrupted(message, stop.signal_number)


def ended_job(overrides: Sequence[str], error: BaseException) -> JobReturn:
    """The return of a job that did not return."""
    job = JobReturn(overrides=list(overrides), status=JobStatus.FAILED)
    job.return_value = error
    return job


def lost_job(sweep: Sweep, number: int, overrides: Sequence[str]) -> JobReturn:
    """Record a job whose process ended without a result."""
    error = RunError(
        "the process of the job was killed (out of memory?) or its machine failed; its output is "
        f"in log.txt of the run and {sweep.log(number)}"
    )
    sweep.record(number, overrides, None, error)
    return ended_job(overrides, error)


def sweep_of(task_function: Any) -> Sweep:
    """The sweep of the command, which `headwise.cli` attaches to the function of a job.

    Raises:
        ConfigError: it is not of training.
    """
    sweep: Sweep | None = task_function.sweep
    if sweep is None:
        raise ConfigError("hydra/launcher=… works with headwise train -m only")
    return sweep


def _prefer_yaml() -> None:
    """Remove the configs of replaced plugins, now and whenever Hydra imports these again.

    Hydra 1.3 otherwise takes them for schemas of the yaml files with the same names.
    """
    original = ConfigStore.store

    def store(self: ConfigStore, name: str, *args: Any, **options: Any) -> None:
        if options.get("provider") not in REPLACED:
            original(self, name, *args, **options)

    ConfigStore.store = store  # type: ignore[method-assign]
    for group in ("launcher", "sweeper"):
        stored = ConfigStore.instance().repo.get("hydra", {}).get(group, {})
        for name in [name for name, node in stored.items() if node.provider in REPLACED]:
            del stored[name]


_prefer_yaml()

"""Sweeps: the jobs of one command with `-m`.

Each job has a run folder, so finished jobs are not repeated. The result of a job is a small file in
`<outputs>/sweeps/<name>/`, written by the process that runs it: launchers use other processes and
machines. Results are also printed as a table.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from headwise.errors import ConfigError, Interrupted, Pruned, require
from headwise.files import read_json, write_json, write_text

SEARCHERS = "searchers"  # folder of a search, see `headwise.commands.search`
STUDY = "study"  # file with the name of the last study


class SweepStart(Callback):
    """Calls a function with the composed config of a sweep, before the first job.

    Hydra has it from conf/train.yaml; its errors must not be an `Exception`, which Hydra prints.
    """

    function: ClassVar[Callable[[DictConfig], None] | None] = None

    def on_multirun_start(self, config: DictConfig, **others: Any) -> None:
        """Call the function of the command, if it has one."""
        if SweepStart.function is not None:
            SweepStart.function(config)


@dataclass(frozen=True)
class Sweep:
    """A multirun.

    Attributes:
        name: a hash of the command line without Hydra's own keys; the group in W&B.
        folder: one `<number>.json` per job, and the output of jobs in other processes.
        swept: keys with several values.
    """

    name: str
    folder: Path
    swept: frozenset[str] = frozenset()

    @classmethod
    def composed(cls, config: DictConfig) -> Sweep:
        """The sweep of a composed config of Hydra.

        Raises:
            ConfigError: each job would have several ranks, or another working directory.
        """
        hydra = config.hydra
        if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
            raise ConfigError("torchrun and -m cannot be combined; give each job its own torchrun")
        require(
            not hydra.job.chdir,
            "hydra.job.chdir",
            "false in a sweep (each job has its run folder below paths.outputs)",
            hydra.job.chdir,
        )
        digest = hashlib.sha256("\0".join(sorted(hydra.overrides.task)).encode()).hexdigest()[:8]
        name = f"sweep-{digest}"
        params = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
        given = OverridesParser.create().parse_overrides([*params, *hydra.overrides.task])
        swept = (one.get_key_element().lstrip("+") for one in given if one.is_sweep_override())
        return cls(name, Path(hydra.sweep.dir, name), frozenset(swept))

    def begin(self, study: str | None = None) -> None:
        """Remove the records of an earlier call; finished jobs are recorded again.

        Those of a search remain, as other processes may share it, until the same command is another
        study, because the text was replaced.

        Args:
            study: name; None: it is not known yet, or there is none.
        """
        last = self.folder / STUDY
        if study is not None:
            if last.is_file() and last.read_text() == study:
                return
            write_text(last, study)
        elif (self.folder / SEARCHERS).is_dir():
            return
        for path in self._records():
            path.unlink()

    def remove(self, number: int) -> None:
        """Remove the record of a job, which starts: a requeued job is recorded again."""
        self._record(number).unlink(missing_ok=True)

    def log(self, number: int) -> Path:
        """The file with the output of a job in another process."""
        return self.folder / f"{number}.log"

    def record(
        self,
        number: int,
        overrides: Sequence[str],
        run: Path | None,
        error: BaseException | None,
    ) -> None:
        """Write the result or error of a job; a dry run is not recorded.

        Args:
            number: of the job, from 0.
            overrides: of the job.
            run: folder of a finished job.
            error: of a job that failed or was interrupted.
        """
        if error is None and run is None:
            return
        entry: dict[str, Any] = {"overrides": list(overrides)}
        if run is not None:
            entry["run"] = str(run)
        if isinstance(error, Interrupted):
            entry["interrupted"] = True
        elif error is not None:
            key = "pruned" if isinstance(error, Pruned) else "error"
            lines = str(error).splitlines()
            entry[key] = f"{type(error).__name__}: {lines[0] if lines else ''}"
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self._record(number), entry)

    def read(self, number: int) -> dict[str, Any]:
        """The record of a job; empty if there is none."""
        return read_json(self._record(number), missing_ok=True)

    def jobs(self) -> list[dict[str, Any]]:
        """The recorded jobs, in the order of the command."""
        return [read_json(path) for path in self._records()]

    def has_failed(self) -> bool:
        """Whether a job failed."""
        return any("error" in job for job in self.jobs())

    def summary(self) -> None:
        """Print the errors and the comparison; write the comparison to a file."""
        jobs = self.jobs()
        if not jobs:
            return
        for job in (job for job in jobs if "error" in job):
            print(f"{' '.join(job['overrides'])}: {job['error']}")
        if any("interrupted" in job for job in jobs):
            print("interrupted: the same command resumes, and starts jobs that were not started\n")
        path = self.folder.with_suffix(".md")
        from headwise.studies.sweep import sweep_tables  # pandas is slow to import

        _, tables = sweep_tables(jobs)
        text = "\n".join(table.markdown() for table in tables)
        write_text(path, text)
        print(f"\nmeans over seeds, written to {path}\n{text}\n")
        print(f"as LaTeX and CSV: headwise table 'runs=[{self.folder}]'")

    def _record(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    def _records(self) -> list[Path]:
        jobs = (path for path in self.folder.glob("*.json") if path.stem.isdecimal())
        return sorted(jobs, key=lambda path: int(path.stem))


@contextmanager
def restored_process() -> Iterator[None]:
    """Run a job, whose changes of this process end with it: the next starts as in its own."""
    import numpy as np
    import torch
    from matplotlib import rc_context

    # Reads a state of the process, and sets it. Warning filters and new variables stay: imports set
    # them, once per process.
    states: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
        (torch.get_rng_state, torch.set_rng_state),
        (np.random.get_state, np.random.set_state),
        (random.getstate, random.setstate),
        (os.environ.copy, os.environ.update),
        (os.getcwd, os.chdir),
    )
    before = [read() for read, _ in states]
    with rc_context():
        try:
            yield
        finally:
            for (_, restore), state in zip(states, before, strict=True):
                restore(state)
            if "torch._dynamo" in sys.modules:  # it compiles a function a few times per process
                torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

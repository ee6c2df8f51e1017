"""Sweeps: the jobs of one command with `-m`.

Each job has a run folder, so finished jobs are not repeated. Results are one json line per job in
`<outputs>/sweeps/<name>.jsonl`, also with launchers that use other processes, and a table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import Interrupted
from headwise.track.jsonl import read_if_exists

if TYPE_CHECKING:
    from headwise.commands.train import Outcome

MULTIRUN = {"-m", "--multirun"}
INFORMATION = {"-h", "--help", "--hydra-help", "-c", "--cfg", "-i", "--info"}  # nothing is run


@dataclass(frozen=True)
class Sweep:
    """A multirun.

    Attributes:
        name: a hash of the command line; the group in W&B.
        path: one json object per job.
    """

    name: str
    path: Path

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> Sweep | None:
        """The sweep of a command line with `-m`, or None for a single run."""
        if not MULTIRUN.intersection(arguments) or INFORMATION.intersection(arguments):
            return None
        overrides = sorted(a for a in arguments if not a.startswith("-"))
        digest = hashlib.sha256("\0".join(overrides).encode()).hexdigest()[:8]
        outputs = [a.split("=", 1)[1] for a in overrides if a.startswith("paths.outputs=")]
        name = f"sweep-{digest}"
        return cls(name, Path(outputs[-1] if outputs else "outputs") / "sweeps" / f"{name}.jsonl")

    def begin(self) -> None:
        """Remove the records of an earlier call; finished jobs are recorded again."""
        self.path.unlink(missing_ok=True)

    def record(
        self,
        overrides: Sequence[str],
        outcome: Outcome | None,
        error: BaseException | None,
    ) -> None:
        """Append the result or error of a job; a dry run is not recorded.

        Args:
            outcome: of a finished job.
            error: of a job that failed or was interrupted.
        """
        results = None if outcome is None else outcome.results
        if error is None and results is None:
            return
        entry: dict[str, Any] = {"overrides": list(overrides)}
        if outcome is not None and results is not None:
            entry["run"] = str(outcome.folder)
        if isinstance(error, Interrupted):
            entry["interrupted"] = True
        elif error is not None:
            lines = str(error).splitlines()
            entry["error"] = f"{type(error).__name__}: {lines[0] if lines else ''}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def jobs(self) -> list[dict[str, Any]]:
        """The recorded jobs, in order."""
        return read_if_exists(self.path)

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
            print("interrupted: later jobs were not started; the same command resumes\n")
        path = self.path.with_suffix(".md")
        from headwise.report.comparison import sweep_table  # pandas is slow to import

        table = sweep_table(jobs).markdown()
        path.write_text(table, encoding="utf-8")
        print(f"\nmeans over seeds, written to {path}\n{table}\n")

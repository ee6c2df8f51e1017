"""Several points in one command: what `-m` adds to single runs.

Each point is a run of its own with its own folder, so that points already finished are not run
again. The sweep keeps one json line a point in `<outputs>/sweeps/<name>.jsonl`, also when a
launcher runs the points in other processes, and ends with a table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import Interrupted
from headwise.track.jsonl import read_if_there

if TYPE_CHECKING:
    from headwise.commands.train import Outcome

MULTIRUN = {"-m", "--multirun"}
TELLING = {"-h", "--help", "--hydra-help", "-c", "--cfg", "-i", "--info"}  # nothing is run


@dataclass(frozen=True)
class Sweep:
    """A multirun.

    Attributes:
        name: the same for the same command line; the group in W&B.
        path: one json object a point.
    """

    name: str
    path: Path

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Sweep | None:
        """The sweep that a command line asks for, or None for a single run."""
        if not MULTIRUN.intersection(arguments) or TELLING.intersection(arguments):
            return None
        points = sorted(a for a in arguments if not a.startswith("-"))
        digest = hashlib.sha256("\0".join(points).encode()).hexdigest()[:8]
        outputs = [a.split("=", 1)[1] for a in points if a.startswith("paths.outputs=")]
        name = f"sweep-{digest}"
        return cls(name, Path(outputs[-1] if outputs else "outputs") / "sweeps" / f"{name}.jsonl")

    def begin(self) -> None:
        """Forget the points of an earlier call; finished ones report again at once."""
        self.path.unlink(missing_ok=True)

    def record(
        self,
        overrides: Sequence[str],
        outcome: Outcome | None,
        error: BaseException | None,
    ) -> None:
        """Keep what a point came to; one that only says what it would do comes to nothing.

        Args:
            outcome: of a point that ended.
            error: of one that failed, or was interrupted and goes on another time.
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

    def points(self) -> list[dict[str, Any]]:
        """What was recorded, in order."""
        return read_if_there(self.path)

    def has_failed(self) -> bool:
        """Whether a point ended in an error."""
        return any("error" in point for point in self.points())

    def summary(self) -> None:
        """Print what failed, and the comparison, which is kept as well."""
        points = self.points()
        if not points:
            return
        for point in (point for point in points if "error" in point):
            print(f"{' '.join(point['overrides'])}: {point['error']}")
        if any("interrupted" in point for point in points):
            print("interrupted: later points were not begun; the same command goes on\n")
        path = self.path.with_suffix(".md")
        from headwise.report.comparison import sweep_table  # pandas is slow to import

        table = sweep_table(points).markdown()
        path.write_text(table, encoding="utf-8")
        print(f"\nmeans over seeds, kept in {path}\n{table}\n")

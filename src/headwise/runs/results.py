"""`results.json`: scores and costs of a finished run; `summary.json`: the state of any run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.config.instantiate import fits, type_hints
from headwise.errors import RunError
from headwise.files import check_file_name, write_json
from headwise.track.base import HeadValues

FINISHED = "finished"
SUMMARY = "summary.json"  # written when a run starts and finishes
# Of results.json, summary.json and the lines of archives; absent is 1. Version 0.1.0 refuses files
# with a field that it does not know, so also this one.
FORMAT = 2


@dataclass(frozen=True)
class Results:
    """Content of a run's results.json.

    Attributes:
        scores: split -> metric -> score, signature and other values.
        alpha: α of every head that has one.
        heads: statistic -> values of the heads, for the scored weights.
        fingerprint: of the run's settings and text.
        seed: of the run.
        updates: number of updates.
        best_update: with the best validation; None without one.
        weights: evaluated weights: average, best or last.
        stopped_early: training ended by early stopping, before the limit of updates.
        tokens: target tokens of the whole training.
        wall_seconds: of training.
        tokens_per_second: tokens / wall_seconds.
        other_seconds: phase -> seconds outside training, of the process that ended the run.
        peak_memory_bytes: of the process during training, validations included: resident, on a
            GPU allocated by torch there; None where not measured.
        git: commit of the source tree; None outside a checkout.
        versions: of the packages that affect results.
        finished_at: local time.
        status: finished.
    """

    scores: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    alpha: HeadValues = field(default_factory=dict)
    heads: Mapping[str, HeadValues] = field(default_factory=dict)
    fingerprint: str = ""
    seed: int = 0
    updates: int = 0
    best_update: int | None = None
    weights: str = ""
    stopped_early: bool = False
    tokens: int = 0
    wall_seconds: float = 0.0
    tokens_per_second: float | None = None
    other_seconds: Mapping[str, float] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    git: Mapping[str, Any] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    finished_at: str = ""
    status: str = FINISHED

    @classmethod
    def of(cls, content: Mapping[str, Any], path: Path) -> Results | None:
        """The content of the file at `path`; None for an unfinished run.

        Raises:
            RunError: it is broken, or holds keys of another version.
        """
        fields = checked_fields(content, cls, path)
        for split in fields.get("scores", ()):  # a part of the names of files
            check_file_name(f"{path}: split", split)
        return cls(**fields) if fields.get("status") == FINISHED else None

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        write_json(path, {"format": FORMAT, **dataclasses.asdict(self)})

    def score(self, split: str | None, metric: str) -> float | None:
        """A score of a split; None if it was not computed."""
        return self._entry(split, metric).get("score")

    def signature(self, split: str | None, metric: str) -> str | None:
        """Signature of the metric, as sacrebleu defines it; None if it was not computed."""
        return self._entry(split, metric).get("signature")

    def content(self, split: str | None) -> str | None:
        """Hash of a split before tokenization (`Task.contents`); None if it is not known."""
        entries = self.scores.get(split or "", {}).values()
        return next((entry["content"] for entry in entries if "content" in entry), None)

    def items(self, split: str | None, metric: str) -> str | None:
        """Hash of the items that a metric was computed on; None if it is not known."""
        return self._entry(split, metric).get("items")

    def _entry(self, split: str | None, metric: str) -> Mapping[str, Any]:
        return self.scores.get(split or "", {}).get(metric, {})


@dataclass(frozen=True)
class Summary:
    """The state of a run when a process last started or finished it.

    Attributes:
        task: its name.
        metric: the main one of the task.
        overrides: the command line.
        max_updates: the length of the training.
        update: at `started`, or at the end.
        started: when the training started or resumed, in seconds since 1970.
        finished: whether the run was scored.
        scores: of a finished run: split -> metric -> score.
    """

    task: str
    metric: str
    overrides: Sequence[str]
    max_updates: int
    update: int = 0
    started: float = 0.0
    finished: bool = False
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the file atomically."""
        write_json(folder / SUMMARY, {"format": FORMAT, **dataclasses.asdict(self)})

    def with_results(self, results: Results) -> Summary:
        """The summary of the finished run."""
        scores = {
            split: {name: entry["score"] for name, entry in values.items() if "score" in entry}
            for split, values in results.scores.items()
        }
        return dataclasses.replace(self, update=results.updates, finished=True, scores=scores)


def check_format(number: Any, path: Path) -> None:
    """Raise RunError for a file of a run, or an archive, in a format of a newer version."""
    if not fits(number, int) or number > FORMAT:
        raise RunError(
            f"{path} has format {number!r}, written by a newer version: this one reads "
            f"formats up to {FORMAT}. Install the newer one"
        )


def checked_fields(content: Mapping[str, Any], kind: type, path: Path) -> dict[str, Any]:
    """The fields of the dataclass `kind` in a json file, without its format.

    Raises:
        RunError: the file is broken, or of another version.
    """
    check_format(content.get("format", 1), path)
    content, hints = {k: v for k, v in content.items() if k != "format"}, type_hints(kind)
    if unknown := content.keys() - hints.keys():
        raise RunError(f"{path} is of another version: unknown {', '.join(sorted(unknown))}")
    wrong = [key for key, value in content.items() if not fits(value, hints[key])]
    if wrong:
        raise RunError(f"{path} is broken: {wrong[0]} has a value of a wrong type")
    return content

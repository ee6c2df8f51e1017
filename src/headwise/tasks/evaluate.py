"""Validation, and the scores of a split, of a model of any task."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from headwise.analysis.collect import head_statistics
from headwise.analysis.projections import projection_distances
from headwise.files import check_file_name
from headwise.metrics.significance import scores_with_intervals
from headwise.model.family import Model
from headwise.runs.folder import RunFolder
from headwise.tasks.task import Part, Task
from headwise.track.base import HeadValues, Tracker
from headwise.train.distributed import Ranks
from headwise.train.trainer import Validation

# Longer sentences are left out of head statistics, which need all weights of all layers.
MAX_HEAD_TOKENS = 512
VALIDATION_PAIRS = 2**25  # of positions of the items whose heads are measured, if all are as long

D = TypeVar("D")


def validate(task: Task[D], model: Model, data: D, ranks: Ranks, whole: bool = False) -> Validation:
    """Measure a model in training on the validation set.

    Args:
        whole: compute all metrics on the whole set, see `Task.validates_part`.
    """
    quick = task.quick()
    n_outputs = quick.n_outputs
    part = Part(task.config.data.valid, n_outputs=None if whole and n_outputs else n_outputs)
    evaluation = quick.evaluate(model, data, part, ranks)
    return Validation(
        evaluation.measured,
        lambda: valid_heads(task, model, data, ranks),
        evaluation.outputs.write_validation,
    )


def valid_heads(task: Task[D], model: Model, data: D, ranks: Ranks) -> dict[str, HeadValues]:
    """Statistics of the heads on the first `trainer.head_sentences` of the validation set.

    Empty on all ranks but the first.
    """
    most, n = most_items(task, VALIDATION_PAIRS), task.config.trainer.head_sentences
    n = n if most is None else min(n, most)
    part = Part(task.config.data.valid, n, longest=MAX_HEAD_TOKENS)
    batches = task.quick().batches(data, part)
    if not batches or not ranks.is_main:
        return {}
    statistics = {**head_statistics(model, batches, ranks.device), **projection_distances(model)}
    return {name: values for name, values in statistics.items() if values}


def most_items(task: Task[Any], n_pairs: int) -> int | None:
    """Number of rows with so many pairs of positions, at least 1; None: rows differ in length."""
    return task.row_tokens and max(1, n_pairs // task.row_tokens**2)


def score(
    task: Task[D],
    model: Model,
    data: D,
    ranks: Ranks,
    folder: RunFolder,
    split: str,
    subfolder: str = "",
    tracker: Tracker | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Score a split; the first rank writes the outputs and the statistics of every item.

    Args:
        folder: where to write: `sums/<split>.<unit>.npz`, and what the task's `Outputs` write.
        subfolder: below their folders.
        tracker: to which the outputs are logged.

    Returns:
        The scores in the form of results.json.

    Raises:
        ConfigError: `split` is a path outside the folder.
    """
    check_file_name("data.test", split)
    evaluation = task.evaluate(model, data, Part(split), ranks, progress and ranks.is_main)
    scores: dict[str, Any] = {}
    for part in evaluation.measured:
        scores |= scores_with_intervals(part)
    if ranks.is_main:
        hashes = dict(zip(("content", "items"), task.contents(data, split), strict=True))
        scores = {metric: entry | hashes for metric, entry in scores.items()}
        name = Path(subfolder, split)
        for part in evaluation.measured:
            folder.write_sums(name, part.unit, part.items)
        scores |= evaluation.outputs.write(folder, name, tracker or Tracker())
    return scores

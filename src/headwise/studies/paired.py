"""Paired tests between two runs on the items of their test sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headwise.errors import DataError, RunError
from headwise.markdown import markdown_table
from headwise.metrics.classes import true_classes
from headwise.metrics.significance import mcnemar, paired_bootstrap
from headwise.studies.cells import check_references, saved_items
from headwise.studies.match import SavedRun, read_run
from headwise.studies.render import ARROW_NOTE, ARROWS, DECIMALS, signed

HEAD = (
    *("split and metric", "run", "compare", "run minus compare", "95 % interval"),
    *("p, paired bootstrap", "p, McNemar"),
)
ACCURACY = "accuracy"  # McNemar's test is on its items: right or wrong


def paired_tests(run: Path, other: Path, n_resamples: int) -> str:
    """Return a Markdown table with every metric of every split that two runs were scored on.

    Raises:
        RunError: a run is not finished, or they share no split.
        DataError: they were scored on different items.
    """
    runs = read_run(run), read_run(other)
    rows = list(_rows(*runs, n_resamples)) if type(runs[0].task) is type(runs[1].task) else []
    if not rows:
        raise RunError(f"{run} and {other} were not scored by the same metrics on the same splits")
    return f"{markdown_table(HEAD, rows)}\n\n{ARROW_NOTE}"


def _rows(run: SavedRun, other: SavedRun, n_resamples: int) -> Iterator[list[str]]:
    scores, others = (r.results.scores if r.results else {} for r in (run, other))
    for split in (split for split in scores if split in others):
        check_references([run, other], split)
        for metric in run.task.metrics():
            if metric.name not in scores[split] or metric.name not in others[split]:
                continue
            items = saved_items(run, metric, split)
            other_items = saved_items(other, metric, split)
            test = paired_bootstrap([items], [other_items], metric, n_resamples)
            p_mcnemar = ""
            if metric.name == ACCURACY:
                if not np.array_equal(true_classes(items), true_classes(other_items)):
                    raise DataError(f"the labels of {split} differ: {run.folder}, {other.folder}")
                is_right, is_other_right = (
                    metric.used(i)[:, 1].astype(bool) for i in (items, other_items)
                )
                p_mcnemar = f"{mcnemar(is_right, is_other_right):.4f}"
            decimals = DECIMALS[metric.sign]
            scores_shown = (f"{metric.score(i):.{decimals}f}" for i in (items, other_items))
            shown = (signed(value, decimals) for value in test.in_metric(metric.sign))
            difference, low, high = shown
            numbers = [*scores_shown, difference, f"{low} to {high}", f"{test.p_value:.4f}"]
            yield [f"{split} {metric.label} {ARROWS[metric.sign]}", *numbers, p_mcnemar]

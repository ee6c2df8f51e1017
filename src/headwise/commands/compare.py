"""`scripts/compare.py`: paired tests between two runs on the items of their test sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headwise.config.commands import CompareConfig
from headwise.errors import DataError, RunError, require
from headwise.files import check_output, write_text
from headwise.markdown import markdown_table
from headwise.metrics.significance import mcnemar, paired_bootstrap
from headwise.runs.record import existing_record
from headwise.studies.match import SavedRun
from headwise.studies.render import ARROW_NOTE, ARROWS, DECIMALS, interval, signed
from headwise.studies.scores import check_references, saved_items
from headwise.studies.tables import OVER_ITEMS

HEAD = (
    *("split and metric", "run", "other", "run minus other", OVER_ITEMS),
    *("p, paired bootstrap", "p, McNemar"),
)
ACCURACY = "accuracy"  # McNemar's test is on its items: right or wrong


def compare(config: CompareConfig) -> None:
    """Print a table with every metric of every split that two runs were scored on.

    Raises:
        ConfigError: an invalid option.
        RunError: a run is not finished, or they share no split.
        DataError: they were scored on different items.
    """
    require(config.n_resamples >= 1, "n_resamples", "at least 1", config.n_resamples)
    if config.output is not None:
        check_output(config.output)
    runs = (
        existing_record(config.run, SavedRun),
        existing_record(config.other, SavedRun, "other"),
    )
    same = type(runs[0].task) is type(runs[1].task)
    rows = list(_rows(*runs, config.n_resamples)) if same else []
    if not rows:
        both = " and ".join(str(run.folder) for run in runs)
        raise RunError(f"{both} were not scored by the same metrics on the same splits")
    text = f"{markdown_table(HEAD, rows)}\n\n{ARROW_NOTE}"
    print(text, flush=True)
    if config.output is not None:
        write_text(Path(config.output), f"{text}\n")


def _rows(run: SavedRun, other: SavedRun, n_resamples: int) -> Iterator[list[str]]:
    scores, others = (r.results.scores if r.results else {} for r in (run, other))
    for split in (split for split in scores if split in others):
        check_references([run, other], split)
        for metric in run.metrics:
            if metric.name not in scores[split] or metric.name not in others[split]:
                continue
            items = saved_items(run, metric, split)
            other_items = saved_items(other, metric, split)
            test = paired_bootstrap([items], [other_items], metric, n_resamples)
            p_mcnemar = ""
            labels, other_labels = (run.task.labels(i) for i in (items, other_items))
            if metric.name == ACCURACY and labels is not None and other_labels is not None:
                if not np.array_equal(labels, other_labels):
                    raise DataError(f"the labels of {split} differ: {run.folder}, {other.folder}")
                is_right, is_other_right = (
                    metric.used(i)[:, 1].astype(bool) for i in (items, other_items)
                )
                p_mcnemar = f"{mcnemar(is_right, is_other_right):.4f}"
            decimals = DECIMALS[metric.sign]
            scores_shown = (f"{metric.score(i):.{decimals}f}" for i in (items, other_items))
            bounds = interval((test.low, test.high), decimals)
            numbers = [*scores_shown, signed(test.difference, decimals), bounds]
            name = f"{split} {metric.label} {ARROWS[metric.sign]}"
            yield [name, *numbers, f"{test.p_value:.4f}", p_mcnemar]

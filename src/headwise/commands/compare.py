"""`headwise compare`: paired tests between two runs on the items of their test sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headwise.config.commands import CompareConfig
from headwise.errors import DataError, RunError
from headwise.files import check_output, write_text
from headwise.markdown import markdown_table
from headwise.metrics.significance import mcnemar, paired_bootstrap
from headwise.runs.archive import existing_record
from headwise.runs.listing import status
from headwise.studies.compare import same_items, saved_items
from headwise.studies.record import TaskRecord
from headwise.studies.render import ARROW_NOTE, ARROWS, DECIMALS, EMPTY, interval, signed
from headwise.studies.tables import OVER_ITEMS

HEAD = (
    *("split and metric", "run", "other", "run minus other", OVER_ITEMS),
    *("p, paired bootstrap", "p, McNemar"),
)
ACCURACY = "accuracy"  # McNemar's test is on its items: right or wrong
UNKNOWN = "the scored text of runs of 0.1.0 is not known (scripts/hash_records.py adds its hash)"


def compare(config: CompareConfig) -> None:
    """Print a table with every metric of every split that two runs were scored on.

    Metrics whose items are not the same, by their hashes, have no p-values but a note.

    Raises:
        ConfigError: an invalid option.
        RunError: a run is not finished, or they share no split.
        DataError: they were scored on different items, in every split.
    """
    if config.output is not None:
        check_output(config.output)
    runs = (
        existing_record(config.run, TaskRecord),
        existing_record(config.other, TaskRecord, "other"),
    )
    for run in runs:
        if run.results is None:
            raise RunError(f"{run.folder} is {status(run)['status']}; both runs must be finished")
    same = type(runs[0].task) is type(runs[1].task)
    rows = list(_rows(*runs, config.n_resamples)) if same else []
    both = " and ".join(str(run.folder) for run in runs)
    if not rows:
        raise RunError(f"{both} were not scored by the same metrics on the same splits")
    notes = [f"- {note}." for note in dict.fromkeys(row[-1] for row in rows) if note]
    text = "\n".join([markdown_table(HEAD, [row[:-1] for row in rows]), "", ARROW_NOTE, *notes])
    print(text, flush=True)
    if config.output is not None:
        write_text(Path(config.output), f"{text}\n")
    if all(row[4] == EMPTY for row in rows):
        raise DataError(f"no items of {both} can be paired, see above")


def _rows(run: TaskRecord, other: TaskRecord, n_resamples: int) -> Iterator[list[str]]:
    """Yield the rows of the table, each with a note at its end, which may be empty."""
    scores, others = (r.results.scores if r.results else {} for r in (run, other))
    for split in (split for split in scores if split in others):
        for metric in run.task.metrics():
            if metric.name not in scores[split] or metric.name not in others[split]:
                continue
            items = [saved_items(r, metric, split) for r in (run, other)]
            decimals, (score, other_score) = DECIMALS[metric.sign], map(metric.score, items)
            difference = signed(score - other_score, decimals)
            row = [f"{split} {metric.label} {ARROWS[metric.sign]}"]
            row += [f"{score:.{decimals}f}", f"{other_score:.{decimals}f}", difference]
            labels: list[Any] = [run.task.labels(of_run) for of_run in items]
            has_labels = metric.name == ACCURACY and labels[0] is not None
            try:
                is_known = same_items([run, other], split, metric.name)
                # the same text has other numbers of labels if their order differs
                if has_labels and not is_known and not np.array_equal(*labels):
                    raise DataError(f"the labels of {split} differ: {run.folder}, {other.folder}")
                test = paired_bootstrap(items[:1], items[1:], metric, n_resamples)
            except DataError as error:
                yield [*row, EMPTY, EMPTY, "", f"{split} is not tested: {error}"]
                continue
            is_right = (metric.used(of_run)[:, 1].astype(bool) for of_run in items)
            p_mcnemar = f"{mcnemar(*is_right):.4f}" if has_labels else ""
            bounds = interval((test.low, test.high), decimals)
            note = "" if is_known else f"{split}: {UNKNOWN}"
            yield [*row, bounds, f"{test.p_value:.4f}", p_mcnemar, note]

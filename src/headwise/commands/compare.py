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
from headwise.studies.render import ARROW_NOTE, ARROWS, DECIMALS, EMPTY, interval, signed
from headwise.studies.scores import other_items, same_content, saved_items
from headwise.studies.tables import OVER_ITEMS

HEAD = (
    *("split and metric", "run", "other", "run minus other", OVER_ITEMS),
    *("p, paired bootstrap", "p, McNemar"),
)
ACCURACY = "accuracy"  # McNemar's test is on its items: right or wrong
UNKNOWN = (
    "the scored text of a run of 0.1.0 is not known, so its items may be others "
    "(scripts/hash_records.py adds its hash)"
)


def compare(config: CompareConfig) -> None:
    """Print a table with every metric of every split that two runs were scored on.

    Metrics whose items are not the same, by their hashes, have no p-values but a note.

    Raises:
        ConfigError: an invalid option.
        RunError: a run is not finished, or they share no split.
        DataError: they were scored on different items, in every split.
    """
    require(config.n_resamples >= 1, "n_resamples", "at least 1", config.n_resamples)
    if config.output is not None:
        check_output(config.output)
    runs = (
        existing_record(config.run, SavedRun),
        existing_record(config.other, SavedRun, "other"),
    )
    same = type(runs[0].task) is type(runs[1].task)
    notes: dict[str, None] = {}
    rows = list(_rows(*runs, config.n_resamples, notes)) if same else []
    if not rows:
        both = " and ".join(str(run.folder) for run in runs)
        raise RunError(f"{both} were not scored by the same metrics on the same splits")
    remarks = "\n".join([ARROW_NOTE, *(f"- {note}." for note in notes)])
    text = f"{markdown_table(HEAD, rows)}\n\n{remarks}"
    print(text, flush=True)
    if config.output is not None:
        write_text(Path(config.output), f"{text}\n")
    if all(row[4] == EMPTY for row in rows):
        raise DataError(f"no items can be paired: {'; '.join(notes)}")


def _rows(
    run: SavedRun, other: SavedRun, n_resamples: int, notes: dict[str, None]
) -> Iterator[list[str]]:
    """Yield the rows of the table; add the reasons for what they lack to `notes`."""
    runs = run, other
    scores, others = (r.results.scores if r.results else {} for r in runs)
    for split in (split for split in scores if split in others):
        for metric in run.metrics:
            if metric.name not in scores[split] or metric.name not in others[split]:
                continue
            items = [saved_items(r, metric, split) for r in runs]
            decimals, (first, second) = DECIMALS[metric.sign], map(metric.score, items)
            shown = [f"{first:.{decimals}f}", f"{second:.{decimals}f}"]
            shown.append(signed(first - second, decimals))
            name = f"{split} {metric.label} {ARROWS[metric.sign]}"
            try:
                is_known = same_content(runs, split)
                if reason := other_items(runs, split, metric.name):
                    raise DataError(reason)
            except DataError as error:
                notes[f"{split} is not tested: {error}"] = None
                yield [name, *shown, EMPTY, EMPTY, ""]
                continue
            if not is_known:
                notes[f"{split}: {UNKNOWN}"] = None
            test = paired_bootstrap(items[:1], items[1:], metric, n_resamples)
            bounds = interval((test.low, test.high), decimals)
            p_mcnemar = ""
            labels, other_labels = (r.task.labels(i) for r, i in zip(runs, items, strict=True))
            if metric.name == ACCURACY and labels is not None and other_labels is not None:
                # of the same text, the numbers of the labels differ if their order does
                if not (is_known or np.array_equal(labels, other_labels)):
                    raise DataError(f"the labels of {split} differ: {run.folder}, {other.folder}")
                right = (metric.used(i)[:, 1].astype(bool) for i in items)
                p_mcnemar = f"{mcnemar(*right):.4f}"
            yield [name, *shown, bounds, f"{test.p_value:.4f}", p_mcnemar]

"""What is listed of runs: their state (`headwise runs`), and a frame (`headwise.records`).

`summary.json`, written when a run starts and finishes, has what its state needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.config.register import group_choices, group_node
from headwise.config.saved import TARGET, class_name
from headwise.errors import HeadwiseError, Pruned, RunError
from headwise.runs.archive import find_records
from headwise.runs.folder import canonical, comparable
from headwise.runs.record import LAST, PARTS, Record
from headwise.runs.results import SUMMARY, Summary, checked_fields

if TYPE_CHECKING:
    import pandas as pd

CONTENTS = ("text", "vocabulary", "init_weights")  # hashes in data.json, in a frame
COSTS = ("updates", "tokens_per_second", "wall_seconds")  # of results, in a frame


def read_summary(run: Record) -> Summary:
    """The summary of a run; without a file, from the settings and results.

    Raises:
        RunError: a file is broken.
    """
    if run.has(SUMMARY):
        fields = checked_fields(run.part("summary"), Summary, run.folder / SUMMARY)
        try:
            return Summary(**fields)
        except TypeError as error:  # a field is missing
            raise RunError(f"{run.folder / SUMMARY} is broken: {error}") from error
    config, results = run.part("config"), run.results
    try:
        # the default of `Task.name`
        task = choice_of("task", kind := config["task"][TARGET]) or kind.split(".")[-1].lower()
        trainer = config["trainer"]
        overrides = [str(item) for item in run.part("overrides")]
        summary = Summary(task, str(trainer["monitor"]), overrides, int(trainer["max_updates"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{run.folder} is broken, or of another version: {error!r}") from error
    return summary if results is None else summary.with_results(results)


@cache
def choice_of(group: str, target: str) -> str | None:
    """The choice of a group with a class, which is not imported: `Task.name` would load torch.

    None if no choice or several have it.
    """
    classes = ((name, group_node(group, name).get(TARGET)) for name in group_choices(group))
    names = [name for name, kind in classes if class_name(kind) == class_name(target)]
    return names[0] if len(names) == 1 else None


def status(run: Record) -> dict[str, Any]:
    """State and scores of a run, in words and numbers.

    Returns:
        status (running, finished, interrupted, failed, pruned or broken), reason, update,
        max_updates, logged (a later update, not saved), seconds_left, task, metric, overrides, and
        `split/metric` -> score; of an unfinished run, scores of its last validation. Values that do
        not exist are left out.
    """
    try:
        error = run.part("error") or {}
        summary = read_summary(run)
        values = {name: getattr(summary, name) for name in ("task", "metric", "overrides")}
        values |= {"update": summary.update, "max_updates": summary.max_updates}
        if error:
            return values | _progress(run, summary) | _failed(error)
        if summary.finished and run.has("results.json"):
            scores = summary.scores.items()
            flat = {f"{split}/{name}": v for split, named in scores for name, v in named.items()}
            return {"status": "finished"} | values | flat
        if run.json("pruned.json"):  # written by `headwise prune`, not trained
            return {"status": "pruned"} | values
        state = {"status": "running" if run.is_running else "interrupted"}
        return state | values | _progress(run, summary)
    except (HeadwiseError, OSError) as problem:
        return {"status": "broken", "reason": str(problem)}


def _failed(error: Mapping[str, Any]) -> dict[str, Any]:
    reason = " ".join(f"{error.get('error')}: {error.get('message')}".split())
    state = "pruned" if error.get("error") == Pruned.__name__ else "failed"
    return {"status": state, "reason": reason}


def _progress(run: Record, summary: Summary) -> dict[str, Any]:
    """Update, time left and scores of the last validation, from the end of metrics.jsonl.

    The update of a run that no process trains is the saved one.
    """
    update = run.last_logged().get("update", summary.update)
    valid = run.last_logged("valid/")
    scores = {key: value for key, value in valid.items() if key.startswith("valid/")}
    path = run.folder / PARTS["metrics"]  # an archive does not have it
    if not run.is_running:
        default = 0 if run.has(SUMMARY) else update  # archives of 0.1.0 have no last.json
        saved = run.json(LAST).get("update", default)
        return {"update": saved, **({"logged": update} if update > saved else {}), **scores}
    if update <= summary.update or not path.is_file():
        return {"update": update, **scores}
    logged = path.stat().st_mtime
    rate = (logged - summary.started) / (update - summary.update)  # seconds per update
    left = rate * (summary.max_updates - update) - (time.time() - logged)
    return {"update": update, "seconds_left": max(round(left), 0), **scores}


def frame(paths: Sequence[str | Path]) -> pd.DataFrame:
    """One row a run: the settings that determine its result, and its scores.

    See `headwise.records`.
    """
    import pandas as pd

    runs = find_records(list(map(str, paths)), Record)
    return pd.DataFrame([{"run": str(run.folder), **frame_row(run)} for run in runs])


def frame_row(run: Record) -> dict[str, Any]:
    """The row of a run in `frame`, without its folder; lists and mappings are JSON texts.

    Raises:
        RunError: a file of the run is broken, or a key of its settings is not known.
    """
    row = comparable(run.settings)
    row |= {key: run.data.get(key) for key in CONTENTS} | run.data.get("swept", {})
    if (results := run.results) is not None:
        row |= {key: getattr(results, key) for key in COSTS}
        for split, scores in results.scores.items():
            row |= {f"{split}/{key}": e["score"] for key, e in scores.items() if "score" in e}
    # `groupby` needs values with a hash
    return {k: canonical(v) if isinstance(v, (list, dict)) else v for k, v in row.items()}

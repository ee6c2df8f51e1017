"""Page data of one run except its readings, from the files of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.analysis.pruning import Heads, flat_heads, present_heads
from headwise.analysis.tables import FINDINGS, HEAD_KEY, HEADS, OTHERS, read_settings
from headwise.model.family import n_parameters
from headwise.runs.record import Record
from headwise.runs.results import Results
from headwise.studies.names import choice_name, corpus_name
from headwise.studies.render import DECIMALS
from headwise.tasks.evaluate import main_metric
from headwise.tasks.task import TrainedRun

N_DIGITS = 4

Records = Sequence[Mapping[str, Any]]


def run_content(run: TrainedRun) -> dict[str, Any]:
    """Return the name of a run, its facts, scores, findings and heads."""
    folder, config = run.folder, run.config
    record = Record(folder.path)
    others = OTHERS.read(record)
    return {
        "name": folder.path.resolve().name,
        "attention": choice_name(config),
        "corpus": corpus_name(config),
        "languages": run.task.languages,
        "facts": _facts(run),
        "scores": _scores(run, record.results),
        "findings": list(map(_rounded, FINDINGS.read(record))),
        "others": list(dict.fromkeys(row["statistic"] for row in others)),
        "heads": _head_rows(present_heads(run.model), HEADS.read(record), others),
    }


def _facts(run: TrainedRun) -> list[list[str]]:
    model = run.config.model
    layers = [str(site.n_layers) for site in run.model.sites if site.queries == site.keys]
    n_updates = Record(run.folder.path).updates
    facts = {
        "model": (
            f"{model.name}: {' + '.join(layers)} layers of {model.n_heads} heads, "
            f"width {model.d_model}"
        ),
        "parameters": f"{n_parameters(run.model):,}",
        "updates": f"{n_updates:,}" if n_updates else "",
        "seed": str(run.config.seed),
        "weights shown": f"checkpoint {run.checkpoint.stem}",
        "search": main_metric(run.task).scope,
        "heads measured": _other_weights(run),
    }
    return [[name, fact] for name, fact in facts.items() if fact]


def _scores(run: TrainedRun, results: Results | None) -> list[dict[str, Any]]:
    """Return every score: test sets first, and for each the main metric of the task first."""
    config, task = run.config, run.task
    known = {m.name: (m.label, DECIMALS[m.sign]) for m in task.metrics()}
    main = main_metric(task).name
    scored = {} if results is None else results.scores

    def shown(name: str, score: Mapping[str, Any]) -> dict[str, Any]:
        scope = f" ({score['scope']})" if "scope" in score else ""
        label, decimals = known.get(name, (name, DECIMALS[1]))
        return {"metric": f"{label}{scope}", "decimals": decimals}

    return [
        {"split": split, **shown(name, score), "is_main": name == main, **score}
        for split in sorted(scored, key=lambda split: split == config.data.valid)
        for name, score in sorted(scored[split].items(), key=lambda named: named[0] != main)
        if "score" in score  # neither statistics of searches nor notes
    ]


def _other_weights(run: TrainedRun) -> str:
    """Return the checkpoint of the analysis if it is not the one shown, else an empty string."""
    settings = read_settings(Record(run.folder.path))
    if settings.get("weights") == run.weights["weights"]:
        return ""
    return f"with other weights (checkpoint {settings.get('checkpoint')}) than those shown"


def _head_rows(heads: Heads, table: Records, others: Records) -> list[dict[str, Any]]:
    """Return one row per head of the model, with its results from the analysis."""
    rows = {tuple(row[name] for name in HEAD_KEY): _rounded(row) for row in table}
    for row in others:
        values = rows.setdefault(tuple(row[name] for name in HEAD_KEY), {})
        values |= _rounded({row["statistic"]: row["value"]})
    return [
        {**dict(zip(HEAD_KEY, place, strict=True)), **rows.get(place, {})}
        for place in flat_heads(heads)
    ]


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Drop missing values from a row and round its numbers to `N_DIGITS` digits."""
    return {
        name: float(f"{value:.{N_DIGITS}g}") if isinstance(value, float) else value
        for name, value in row.items()
        if value is not None
    }

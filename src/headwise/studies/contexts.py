"""Table and figure of scores by minimum context of evaluation (Child et al. 2019, Table 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.config.folders import group_choices, group_node
from headwise.files import write_text
from headwise.plots.runs import context_curves
from headwise.plots.style import failure_as_warning, save
from headwise.runs.folder import RunFolder
from headwise.studies.render import Table, pivot
from headwise.tasks.scores import main_metric
from headwise.tasks.task import TrainedRun

Scores = Mapping[str, Mapping[str, Any]]  # split -> metric -> score


def write_contexts(
    run: TrainedRun, out: RunFolder, name: str, by_context: Mapping[int, Scores]
) -> list[Path]:
    """Write `NAME-contexts.csv` and `.md`, and the figure, to a folder; return the paths.

    Papers with such scores on the same data are in other columns and lines.

    Args:
        run: a density model.
        out: where to write.
        name: of the results.
        by_context: minimum context -> scores; the main metric is shown.
    """
    metric = main_metric(run.task)
    ours = (
        (split, context, scores[metric.name]["score"])
        for context, of_splits in sorted(by_context.items())
        for split, scores in of_splits.items()
    )
    is_byte = run.config.tokenizer.kind == "byte"  # published contexts are in bytes
    published = _published(run.config.data.name) if is_byte else ()
    facts = pd.DataFrame([*ours, *published], columns=["name", "min_context", "score"]).assign(
        metric=metric.label
    )
    contexts = sorted(facts.min_context.unique())
    frame = pivot(
        facts, "min_context", ["name"], lambda cell: f"{cell.score.iloc[0]:.4f}", contexts
    )
    title = f"{metric.label.capitalize()} by minimum context"
    path, data = out.path / f"{name}-contexts", run.config.data.name
    table = Table(title, frame, [f"Windows of {run.config.data.window:,} tokens."], "context")
    write_text(path.with_suffix(".md"), table.markdown())
    write_text(path.with_suffix(".csv"), facts.to_csv(index=False))
    files = [path.with_suffix(".md"), path.with_suffix(".csv")]
    with failure_as_warning(path.name):
        figure = context_curves(facts.assign(run=facts.name), data)
        files += save(figure, out.figures / path.name)
    return files


def _published(data: str) -> Iterator[tuple[str, int, float]]:
    """Yield paper, minimum context and score of the papers with `contexts` of these data."""
    for choice in group_choices("paper"):
        node = group_node("paper", choice)
        for context, score in node.get("contexts", {}).get(data, {}).items():
            yield str(node["title"]).partition(",")[0], int(context), float(score)

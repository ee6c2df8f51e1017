"""Figures of a finished run, and its summary for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING, Any

from headwise.analysis.alpha_table import alpha_table
from headwise.errors import counted
from headwise.runs.folder import RunFolder, read_config
from headwise.runs.results import Results
from headwise.track.base import Tracker
from headwise.track.jsonl import read_if_exists

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")  # of the figures of a training


def figures(folder: RunFolder, name: str = "") -> dict[str, Figure]:
    """Return file name -> figure of a run over its training, from its records.

    Args:
        folder: of the run.
        name: of what was trained, for the titles.
    """
    from headwise.plots.training import training_figures  # imports pandas and seaborn
    from headwise.tasks.task import task_of  # imports pandas

    config = read_config(folder)
    main, *others = task_of(config).quick().metrics()
    shown = [main, *(metric for metric in others if metric.name == "loss")]
    labels = {metric.name: metric.scoped_label for metric in shown}
    heads, metrics = (read_if_exists(record) for record in (folder.heads, folder.metrics))
    drawn = training_figures(heads, metrics, labels, name, config.model.heads)
    return drawn | _confusion(folder, name)


def _confusion(folder: RunFolder, name: str) -> dict[str, Figure]:
    """Return file name -> figure of the confusion matrices of a classifier."""
    import pandas as pd

    from headwise.plots.confusion import confusion_matrix
    from headwise.plots.style import failure_as_warning
    from headwise.tasks.predictions import CONFUSION, FOLDER

    of_run = f" ({name})" if name else ""
    figures = {}
    for path in sorted((folder.path / FOLDER).glob(f"*{CONFUSION}")):
        split = path.name.removesuffix(CONFUSION)
        with failure_as_warning(f"confusion-{split}"):
            # names of classes are text, "NA" too
            counts = pd.read_csv(path, index_col=0, dtype={"label": str}, keep_default_na=False)
            title = f"Predictions of {split}{of_run}"
            figures[f"confusion-{split}"] = confusion_matrix(counts, title)
    return figures


def draw(folder: RunFolder, tracker: Tracker) -> None:
    """Save the figures of a run, and log them to its tracker."""
    from headwise.plots.style import save

    for name, figure in figures(folder).items():
        path = folder.figures / f"{name}.png"
        if path in save(figure, path, FORMATS):
            tracker.log_image(f"figures/{name}", path)


def summary(folder: RunFolder, results: Results, command: str = "") -> str:
    """Return scores, α, paths, the next `command`, and what was not scored, for the terminal."""
    of_run, has_tests = quote(f"run={folder.path}"), bool(read_config(folder).data.test)
    evaluation = f"headwise evaluate {of_run} 'data.test=[NAME]'"
    phases = results.other_seconds
    others = ", ".join(f"{phase} {seconds:.0f}" for phase, seconds in phases.items())
    lines = [line for split in results.scores for line in score_lines(split, results.scores[split])]
    if results.alpha:
        lines += ["", alpha_table(results.alpha, read_config(folder).model.heads)]
    lines += [
        "",
        f"{counted(results.updates, 'update')}, {results.tokens} targets, "
        f"{results.wall_seconds:.0f} s of training, "
        f"{results.tokens_per_second or 0:.0f} targets/s",
        *([f"{sum(phases.values()):.0f} s outside training: {others}"] if phases else []),
        f"run folder  {folder.path}",
        f"figures     {folder.figures}",
        *([f"{command:<11} headwise {command} {of_run}"] if command else []),
        *([] if has_tests else [f"not scored  a test set: {evaluation}"]),
    ]
    return "\n".join(lines)


def score_lines(split: str, scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one line per metric."""
    return [f"{split:>24}  {metric:<14} {shown_score(score)}" for metric, score in scores.items()]


def shown_score(score: Mapping[str, Any]) -> str:
    """Format a score with its signature, the exactness of a search, or the warning of a command."""
    if "exact" in score:
        exact, support = 100 * score["exact"], score["support"]
        return f"{exact:6.2f}  % of searches exact; {support:.1f} tokens per step"
    if "score" not in score:
        return f"{'-':>6}  {score['warning']}"
    scope = f"{score['scope']}, " if "scope" in score else ""
    if "n_bytes" in score:
        return f"{score['score']:8.4f}  {scope}{score['n_bytes']} bytes, {score['signature']}"
    interval = f"[{score['low']:.2f}, {score['high']:.2f}]  " if "low" in score else ""
    how = score.get("signature", score.get("command", ""))
    return f"{score['score']:6.2f}  {interval}{scope}{how}"

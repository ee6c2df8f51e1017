"""What a finished run leaves and shows: results, figures, a summary for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING, Any

from headwise.analysis.alpha_table import alpha_table
from headwise.runs.folder import RunFolder, read_config
from headwise.runs.results import Results
from headwise.track.base import Tracker
from headwise.track.jsonl import read_if_there

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")  # of the figures that a training leaves


def figures(folder: RunFolder, name: str = "") -> dict[str, Figure]:
    """The figures of what a run measured over its training, from its records, by file name.

    Args:
        folder: of the run.
        name: of what was trained, for the titles.
    """
    from headwise.plots.training import training_figures  # brings pandas and seaborn
    from headwise.tasks.task import task_of  # pandas as well

    config = read_config(folder)
    task = task_of(config)
    drawn = {"loss", task.judged_by(config).name}
    labels = {m.name: m.label for m in task.metrics(config) if m.name in drawn}
    heads, metrics = (read_if_there(record) for record in (folder.heads, folder.metrics))
    return training_figures(heads, metrics, labels, name, config.model.heads)


def draw(folder: RunFolder, tracker: Tracker) -> None:
    """Write the figures of a run, and show them where it is tracked."""
    from headwise.plots.style import save

    for name, figure in figures(folder).items():
        path = folder.figures / f"{name}.png"
        save(figure, path, FORMATS)
        tracker.log_image(f"figures/{name}", path)


def summary(folder: RunFolder, results: Results, command: str = "") -> str:
    """Scores, α and where things are, for the terminal; `command` shows what a run can do."""
    lines = [line for split in results.scores for line in score_lines(split, results.scores[split])]
    if results.alpha:
        lines += ["", alpha_table(results.alpha, read_config(folder).model.heads)]
    lines += [
        "",
        f"{results.updates} updates, {results.tokens} target tokens, "
        f"{results.wall_seconds:.0f} s of training, "
        f"{results.tokens_per_second or 0:.0f} tokens/s",
        f"run folder  {folder.path}",
        f"figures     {folder.figures}",
        *([f"{command:<11} headwise {command} {quote(f'run={folder.path}')}"] if command else []),
    ]
    return "\n".join(lines)


def score_lines(split: str, scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line a metric."""
    return [f"{split:>24}  {metric:<14} {shown_score(found)}" for metric, found in scores.items()]


def shown_score(found: Mapping[str, Any]) -> str:
    """A score with its signature, how exact a search was, or why a command gave no score."""
    if "exact" in found:
        return (
            f"{100 * found['exact']:6.2f}  % of searches exact; {found['support']:.1f} words a step"
        )
    if "score" not in found:
        return f"{'-':>6}  {found['warning']}"
    return f"{found['score']:6.2f}  {found.get('signature', found.get('command', ''))}"

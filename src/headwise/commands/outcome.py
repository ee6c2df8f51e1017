"""What a training does with its finished run: figures, and a summary for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any

from headwise.errors import counted
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.runs.results import Results
from headwise.track.base import HeadNumbers, HeadValues, Tracker, numbered

FORMATS = ("png", "svg")  # of the figures of a training


def draw(folder: RunFolder, tracker: Tracker) -> None:
    """Save the figures of a run, and log them to its tracker."""
    from headwise.plots.style import save  # imports seaborn
    from headwise.studies.figures import drawn_from_records

    for name, figure in drawn_from_records(Record(folder.path)).items():
        path = folder.figures / f"{name}.png"
        if path in save(figure, path, FORMATS):
            tracker.log_image(f"figures/{name}", path)


def summary(folder: RunFolder, results: Results, command: str = "") -> str:
    """Return scores, α, paths, the next `command`, and what was not scored, for the terminal."""
    of_run, config = quote(f"run={folder.path}"), Record(folder.path).config
    evaluation = f"headwise evaluate {of_run} 'data.test=[NAME]'"
    # with data.split all of one file was used
    is_tested = getattr(config.data, "split", None) or results.scores.keys() - {config.data.valid}
    phases = results.other_seconds
    others = ", ".join(f"{phase} {seconds:.0f}" for phase, seconds in phases.items())
    lines = [line for split in results.scores for line in score_lines(split, results.scores[split])]
    if results.alpha:
        lines += ["", alpha_table(results.alpha, config.model.heads)]
    lines += [
        "",
        f"{counted(results.updates, 'update')}, {results.tokens} targets, "
        f"{results.wall_seconds:.0f} s of training, "
        f"{results.tokens_per_second or 0:.0f} targets/s",
        *([f"{sum(phases.values()):.0f} s outside training: {others}"] if phases else []),
        f"run folder  {folder.path}",
        f"figures     {folder.figures}",
        *([f"{command:<11} headwise {command} {of_run}"] if command else []),
        *([] if is_tested else [f"not scored  a test set: {evaluation}"]),
    ]
    return "\n".join(lines)


def alpha_table(alphas: HeadValues, heads: HeadNumbers | None = None) -> str:
    """Return the α as plain text, one row per site and layer, one column per head.

    Args:
        alphas: site -> layers -> heads, as in `results.json`.
        heads: numbers of the heads (`model.heads`); None: all heads.
    """
    from pandas import Series  # the start of a training does not wait for it

    by_place = Series(dict(numbered(alphas, heads)))
    table = by_place.unstack(sort=False).sort_index(axis=1).add_prefix("head")
    table["mean"] = table.mean(axis=1)
    table = table.rename_axis(["site", "layer"]).reset_index()
    return str(table.to_string(index=False, float_format="{:.3f}".format, na_rep="-"))


def score_lines(split: str, scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one line per metric, one of the searches, and notes.

    Scores of other programs, in runs of version 0.1, have neither key.
    """
    shown = {key: score for key, score in scores.items() if score.keys() & {"signature", "exact"}}
    texts = {metric: shown_score(score) for metric, score in shown.items()}
    texts |= scores.get("note", {})
    return [f"{split:>24}  {metric:<14} {text}" for metric, text in texts.items()]


def shown_score(score: Mapping[str, Any]) -> str:
    """Format a score with its signature, or the exactness of a search."""
    if "exact" in score:
        exact, support = 100 * score["exact"], score["support"]
        return f"{exact:6.2f}  % of searches exact; {support:.1f} tokens per step"
    scope = f"{score['scope']}, " if "scope" in score else ""
    if "n_bytes" in score:
        return f"{score['score']:8.4f}  {scope}{score['n_bytes']} bytes, {score['signature']}"
    interval = f"[{score['low']:.2f}, {score['high']:.2f}]  " if "low" in score else ""
    return f"{score['score']:6.2f}  {interval}{scope}{score['signature']}"

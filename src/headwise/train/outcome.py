"""What a finished run leaves and shows: results, figures, a summary for the terminal."""

from __future__ import annotations

import time
from typing import Any

from headwise.analysis.plots import alpha_table, plot_alpha, plot_curves
from headwise.track.base import Tracker
from headwise.train.run_folder import RunFolder, git_commit, versions
from headwise.train.state import TrainState


def run_results(
    state: TrainState,
    seconds: float,
    scores: dict[str, Any],
    alpha: dict[str, list[list[float]]],
    fingerprint: str,
    seed: int,
    weights: str,
) -> dict[str, Any]:
    """Content of results.json; `seconds` are those of training, `weights` those scored."""
    return {
        "scores": scores,
        "alpha": alpha,
        "fingerprint": fingerprint,
        "seed": seed,
        "updates": state.update,
        "best_update": state.best_update,
        "weights": weights,
        "stopped_early": state.stopped_early,
        "tokens": state.tokens,
        "wall_seconds": round(seconds, 3),
        "tokens_per_second": round(state.tokens / max(seconds, 1e-9), 1),
        "git": git_commit(),
        "versions": versions(),
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "status": "finished",
    }


def draw(folder: RunFolder, tracker: Tracker) -> None:
    """Make the figures of a run from its records."""
    for plot, record, name in (
        (plot_alpha, folder.heads, "alpha"),
        (plot_curves, folder.metrics, "curves"),
    ):
        figure = plot(record, folder.figures / f"{name}.png")
        if figure is not None:
            tracker.log_image(f"figures/{name}", folder.figures / f"{name}.png")


def summary(folder: RunFolder) -> str:
    """Scores, α and where things are, for the terminal."""
    results = folder.read_results()
    lines = []
    for split, scores in results["scores"].items():
        for metric, found in scores.items():
            lines.append(f"{split:>24}  {metric:<14} {shown_score(found)}")
    if results["alpha"]:
        lines += ["", alpha_table(results["alpha"])]
    lines += [
        "",
        f"{results['updates']} updates, {results['tokens']} target tokens, "
        f"{results['wall_seconds']:.0f} s of training, "
        f"{results['tokens_per_second']:.0f} tokens/s",
        f"run folder  {folder.path}",
        f"figures     {folder.figures}",
        f"translate   headwise translate run={folder.path}",
    ]
    return "\n".join(lines)


def shown_score(found: dict[str, Any]) -> str:
    """A score with its signature, or why an external command gave none."""
    if "score" not in found:
        return f"{'-':>6}  {found['warning']}"
    return f"{found['score']:6.2f}  {found.get('signature', found.get('command', ''))}"

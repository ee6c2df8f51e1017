"""What a finished run leaves and shows: results, figures, a summary for the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from headwise.analysis.plots import alpha_table, plot_alpha, plot_curves, plot_diversity
from headwise.track.base import HeadValues, Tracker
from headwise.train.run_folder import RunFolder, git_commit, versions
from headwise.train.state import TrainState


def run_results(
    state: TrainState,
    seconds: float,
    scores: dict[str, Any],
    alpha: HeadValues,
    fingerprint: str,
    seed: int,
    weights: str,
    heads: Mapping[str, HeadValues] | None = None,
    peak_memory_bytes: int | None = None,
) -> dict[str, Any]:
    """Content of results.json.

    Args:
        state: where training stands.
        seconds: of training.
        scores: split -> metric -> score.
        alpha: α of every head that has one of its own.
        fingerprint: of the run's settings.
        seed: of the run.
        weights: those that were scored: average, best or last.
        heads: statistics of the heads with these weights, as
            `headwise.analysis.collect.head_statistics` gives them. A mean α among them stands for
            the α of heads without one of their own.
        peak_memory_bytes: see `headwise.train.memory.PeakMemory`; absent where not measured.
    """
    measured = dict(heads or {})
    memory = {} if peak_memory_bytes is None else {"peak_memory_bytes": peak_memory_bytes}
    return {
        "scores": scores,
        "alpha": _filled(alpha, measured.pop("alpha", {})),
        "heads": measured,
        "fingerprint": fingerprint,
        "seed": seed,
        "updates": state.update,
        "best_update": state.best_update,
        "weights": weights,
        "stopped_early": state.stopped_early,
        "tokens": state.tokens,
        "wall_seconds": round(seconds, 3),
        "tokens_per_second": round(state.tokens / max(seconds, 1e-9), 1),
        **memory,
        "git": git_commit(),
        "versions": versions(),
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "status": "finished",
    }


def _filled(values: HeadValues, others: HeadValues) -> HeadValues:
    """`values`, and for each head without one that of `others`."""
    table: dict[str, list[list[float | None]]] = {}
    for site in dict.fromkeys((*values, *others)):
        pairs = zip_longest(values.get(site, ()), others.get(site, ()), fillvalue=())
        table[site] = [
            [own if own is not None else other for own, other in zip_longest(layer, of_others)]
            for layer, of_others in pairs
        ]
    return table


def draw(folder: RunFolder, tracker: Tracker) -> None:
    """Make the figures of a run from its records."""
    for plot, record, name in (
        (plot_alpha, folder.heads, "alpha"),
        (plot_diversity, folder.heads, "diversity"),
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
    """A score with its signature, how exact a search was, or why a command gave no score."""
    if "exact" in found:
        return (
            f"{100 * found['exact']:6.2f}  % of searches exact; {found['support']:.1f} words a step"
        )
    if "score" not in found:
        return f"{'-':>6}  {found['warning']}"
    return f"{found['score']:6.2f}  {found.get('signature', found.get('command', ''))}"

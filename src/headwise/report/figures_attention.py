"""Attention of a trained run on a text of the user's, as figures for print."""

from __future__ import annotations

from pathlib import Path

from headwise.analysis.collect import alphas
from headwise.analysis.observe import Observation
from headwise.errors import DataError
from headwise.plots.attention_maps import LayerMaps, attention_maps
from headwise.plots.style import save, shown
from headwise.report.run_names import choice_name, corpus_name
from headwise.tasks.loading import load
from headwise.track.base import HeadValues


def draw_attention(
    run: Path,
    sentence: str,
    output: Path,
    checkpoint: str = "auto",
    device: str = "auto",
) -> list[Path]:
    """Draw where every head looks while a run reads a text; see `Task.readings`.

    A head whose weights are not all numbers is left out, and so is a site whose attention forms no
    weights.

    Args:
        run: its folder.
        sentence: the text, in the language that the run reads.
        output: a folder, made where it is not there.
        checkpoint: auto, best, last, average, update_<n> or average_<n>.
        device: auto, cpu or cuda.

    Returns:
        The files, `attention_<site>`.

    Raises:
        RunError, CheckpointError: no run, or no such checkpoint.
        DataError: the sentence is empty or too long for the model.
    """
    if not sentence.strip():
        raise DataError("the sentence is empty: give one to look at")
    loaded = load(run, checkpoint, device)
    ((_, read),) = loaded.task.readings(loaded, [sentence])
    about = f"{shown(choice_name(loaded.config))}, trained on {corpus_name(loaded.config)}."
    files: list[Path] = []
    for site in dict.fromkeys(seen.site for seen in read.seen):
        axes = read.axes[site]
        layers = [_layer(seen, alphas(loaded.model)) for seen in read.seen if seen.site == site]
        note = f"{about} {axes.note}".strip()
        figure = attention_maps(site, layers, axes.queries, axes.keys, axes.text, note)
        if figure is not None:
            files += save(figure, output / f"attention_{site}")
    return files


def _layer(seen: Observation, of_heads: HeadValues) -> LayerMaps:
    """The heads whose weights are numbers."""
    layers = of_heads.get(seen.site, [])
    own = layers[seen.layer - 1] if seen.layer <= len(layers) else []
    weights_HQK, allowed_HQK = seen.weights_BHQK[0], seen.allowed_BHQK[0]
    kept = weights_HQK.isfinite().all(2).all(1).cpu()
    places = [place for place, is_finite in enumerate(kept.tolist()) if is_finite]
    return LayerMaps(
        seen.layer,
        [seen.head_numbers[place] for place in places],
        weights_HQK.double().cpu().numpy()[places],
        allowed_HQK.cpu().numpy()[places],
        [own[place] if place < len(own) else None for place in places],
    )

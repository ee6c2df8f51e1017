"""Attention of a trained run on one text, as figures for print."""

from __future__ import annotations

from pathlib import Path

from headwise.analysis.collect import alphas
from headwise.analysis.observe import Observation
from headwise.errors import DataError
from headwise.plots.attention_maps import LayerMaps, attention_maps
from headwise.plots.style import display_name, failure_as_warning, save
from headwise.studies.names import choice_name, corpus_name
from headwise.tasks.inspection import readings
from headwise.tasks.load import load
from headwise.track.base import HeadValues


def draw_attention(
    run: Path,
    sentence: str,
    output: Path,
    checkpoint: str = "auto",
    device: str = "auto",
) -> list[Path]:
    """Draw the attention weights of every head on a text; see `tasks.inspection.readings`.

    Heads with non-finite weights, and sites whose attention forms no weights, are left out.

    Args:
        run: the run folder.
        sentence: the text, in the source language of the run.
        output: folder of the files, created if it does not exist.
        checkpoint: auto, best, last, average or update_<n>.
        device: auto, cpu or cuda.

    Returns:
        Paths of the files, `attention_<site>`.

    Raises:
        RunError, CheckpointError: the run or the checkpoint does not exist.
        DataError: the sentence is empty or too long for the model.
    """
    if not sentence.strip():
        raise DataError("sentence must not be empty")
    loaded = load(run, checkpoint, device)
    (reading,) = readings(loaded, [sentence])
    about = f"{display_name(choice_name(loaded.config))}, trained on {corpus_name(loaded.config)}."
    files: list[Path] = []
    for site in loaded.model.sites:
        observed = (obs for obs in reading.observations if obs.site == site.name)
        layers = [_layer(obs, alphas(loaded.model)) for obs in observed]
        queries, keys, text, note = reading.axes(site)
        note = f"{about} {note}".strip()
        with failure_as_warning(f"attention_{site.name}"):
            figure = attention_maps(site.name, layers, queries, keys, text, note)
            files += save(figure, output / f"attention_{site.name}") if figure is not None else []
    return files


def _layer(obs: Observation, head_alphas: HeadValues) -> LayerMaps:
    """Return the heads with finite weights."""
    layers = head_alphas.get(obs.site, [])
    values = layers[obs.layer - 1] if obs.layer <= len(layers) else []
    weights_HQK, allowed_HQK = obs.weights_BHQK[0], obs.allowed_BHQK[0]
    is_finite_H = weights_HQK.isfinite().all(2).all(1).cpu()
    indices = [i for i, is_finite in enumerate(is_finite_H.tolist()) if is_finite]
    return LayerMaps(
        obs.layer,
        [obs.head_numbers[i] for i in indices],
        weights_HQK.double().cpu().numpy()[indices],
        allowed_HQK.cpu().numpy()[indices],
        [values[i] if i < len(values) else None for i in indices],
    )

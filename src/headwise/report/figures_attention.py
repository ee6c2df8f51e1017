"""Attention of a trained run on a sentence of the user's, as figures for print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headwise.analysis.collect import alphas
from headwise.analysis.observe import Observation
from headwise.analysis.text.readings import Reading, readings
from headwise.errors import DataError
from headwise.plots.attention_maps import LayerMaps, attention_maps
from headwise.plots.style import save, shown
from headwise.report.run_names import choice_name, corpus_name
from headwise.tasks.loading import load, translating
from headwise.track.base import HeadValues

OWN = "The target is the model's own translation."


def draw_attention(
    run: Path,
    sentence: str,
    output: Path,
    checkpoint: str = "auto",
    device: str = "auto",
) -> list[Path]:
    """Draw where every head looks while a run translates a sentence.

    The decoder reads the run's own translation. A head whose weights are not all numbers is left
    out, and so is a site whose attention forms no weights.

    Args:
        run: its folder.
        sentence: of the source language.
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
    loaded = translating(load(run, checkpoint, device))
    ((_, read),) = readings(loaded.translator, loaded.normaliser, [sentence])
    about = f"{shown(choice_name(loaded.config))}, trained on {corpus_name(loaded.config)}."
    files: list[Path] = []
    for site in dict.fromkeys(seen.site for seen in read.seen):
        queries, keys = _pieces(read, site)
        layers = [_layer(seen, alphas(loaded.model)) for seen in read.seen if seen.site == site]
        note = about if site == "encoder_self" else f"{about} {OWN}"
        figure = attention_maps(site, layers, queries, keys, _title(read, site), note)
        if figure is not None:
            files += save(figure, output / f"attention_{site}")
    return files


def _pieces(reading: Reading, site: str) -> tuple[Sequence[str], Sequence[str]]:
    """Names of rows and columns. The cross-attention's rows are what is being written."""
    return {
        "encoder_self": (reading.source_pieces, reading.source_pieces),
        "decoder_self": (reading.read_pieces, reading.read_pieces),
        "cross": (reading.written_pieces, reading.source_pieces),
    }[site]


def _title(reading: Reading, site: str) -> str:
    """The text that the site reads."""
    return {
        "encoder_self": reading.source,
        "decoder_self": reading.translation,
        "cross": f"{reading.source} → {reading.translation}",
    }[site]


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

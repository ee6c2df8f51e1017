"""`headwise figures`: figures of one run or of several, and of the attention on one text."""

from __future__ import annotations

from pathlib import Path

from headwise.analysis.collect import alphas
from headwise.analysis.observe import Observation
from headwise.analysis.tables import HEADS
from headwise.config.commands import FiguresConfig
from headwise.errors import ConfigError, DataError, RunError
from headwise.plots.attention_maps import LayerMaps, attention_maps
from headwise.plots.style import display_name, failure_as_warning, save
from headwise.runs.archive import existing_record, find_records
from headwise.studies.figures import draw_figures
from headwise.studies.names import choice_name, corpus_name
from headwise.studies.record import TaskRecord
from headwise.tasks.inspection import readings
from headwise.tasks.load import load
from headwise.track.base import HeadValues


def figures(config: FiguresConfig) -> None:
    """Draw the figures.

    Raises:
        ConfigError: no run, or options that cannot be combined.
        RunError: a folder is no run.
        DataError: the sentence is empty or too long for the model.
    """
    config.check_runs()
    if config.sentence is not None and config.run is None:
        raise ConfigError("sentence=… needs run=FOLDER")
    if config.run is not None:
        runs = [existing_record(config.run, TaskRecord)]
        output = Path(config.output or runs[0].folder / "figures")
    else:
        runs = find_records(config.runs, TaskRecord)
        output = Path(config.output or "outputs/figures")
    if not runs:
        raise RunError("no runs to draw figures of")
    files = draw_figures(runs, output)
    if config.sentence is not None:
        checkpoint, device = config.checkpoint, config.device
        files += draw_attention(runs[0].folder, config.sentence, output, checkpoint, device)
    if without_tables := [run.folder for run in runs if not HEADS.is_in(run)]:
        print(
            f"{len(without_tables)} of {len(runs)} runs have no tables of their heads; run "
            f"headwise analyze for them: {without_tables[0]} …"
        )
    print(f"written to {output}: {len(files)} files of figures", flush=True)


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

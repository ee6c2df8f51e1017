"""Page data of a run: from its files, and the readings of its model, weights as compact text.

0 means exactly 0, NaN a masked key. Weights are rounded to eight binary digits, an error of at most
0.4 %: full precision would double the size of the page.

Axes: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from headwise.analysis.observe import Observation
from headwise.analysis.pruning import Heads, flat_heads, present_heads
from headwise.analysis.tables import FINDINGS, HEAD_KEY, HEADS, OTHERS, read_settings
from headwise.attention.place import Site
from headwise.config.schema import SITE_KINDS
from headwise.errors import counted
from headwise.model.family import n_parameters
from headwise.plots.attention_maps import ROWS
from headwise.runs.record import Record
from headwise.runs.results import Results
from headwise.studies.names import choice_name, corpus_name
from headwise.studies.render import DECIMALS
from headwise.tasks.inspection import readings
from headwise.tasks.shown import Item, Picture, Shown
from headwise.tasks.task import TrainedRun

N_DIGITS = 4

Records = Sequence[Mapping[str, Any]]


def run_content(run: TrainedRun) -> dict[str, Any]:
    """Return the name of a run, its facts, scores, findings and heads."""
    folder, config = run.folder, run.config
    record = Record(folder.path)
    others = OTHERS.read(record)
    return {
        "name": folder.path.resolve().name,
        "attention": choice_name(config),
        "corpus": corpus_name(config),
        "languages": run.task.languages,
        "facts": _facts(run),
        "scores": _scores(run, record.results),
        "findings": list(map(_rounded, FINDINGS.read(record))),
        "others": list(dict.fromkeys(row["statistic"] for row in others)),
        "heads": _head_rows(present_heads(run.model), HEADS.read(record), others),
    }


def _facts(run: TrainedRun) -> list[list[str]]:
    model = run.config.model
    layers = [site.n_layers for site in run.model.sites if site.queries == site.keys]
    plural = "s" if sum(layers) > 1 else ""
    n_updates = Record(run.folder.path).updates
    facts = {
        "model": (
            f"{model.name}: {' + '.join(map(str, layers))} layer{plural} of "
            f"{counted(model.n_heads, 'head')}, "
            f"width {model.d_model}"
        ),
        "parameters": f"{n_parameters(run.model):,}",
        "updates": f"{n_updates:,}" if n_updates else "",
        "seed": str(run.config.seed),
        "weights shown": f"checkpoint {run.checkpoint.stem}",
        "search": run.task.metric.scope,
        "heads measured": _other_weights(run),
    }
    return [[name, fact] for name, fact in facts.items() if fact]


def _scores(run: TrainedRun, results: Results | None) -> list[dict[str, Any]]:
    """Return every score: test sets first, and for each the main metric of the task first."""
    config, task = run.config, run.task
    known = {m.name: (m.label, DECIMALS[m.sign]) for m in task.metrics()}
    main = task.metric.name
    scored = {} if results is None else results.scores

    def shown(name: str, score: Mapping[str, Any]) -> dict[str, Any]:
        scope = f" ({score['scope']})" if "scope" in score else ""
        label, decimals = known.get(name, (name, DECIMALS[1]))
        return {"metric": f"{label}{scope}", "decimals": decimals}

    return [
        {"split": split, **shown(name, score), "is_main": name == main, **score}
        for split in sorted(scored, key=lambda split: split == config.data.valid)
        for name, score in sorted(scored[split].items(), key=lambda named: named[0] != main)
        if "score" in score  # neither statistics of searches nor notes
    ]


def _other_weights(run: TrainedRun) -> str:
    """Return the checkpoint of the analysis if it is not the one shown, else an empty string."""
    settings = read_settings(Record(run.folder.path))
    if settings.get("weights") == run.weights["weights"]:
        return ""
    return f"with other weights (checkpoint {settings.get('checkpoint')}) than those shown"


def _head_rows(heads: Heads, table: Records, others: Records) -> list[dict[str, Any]]:
    """Return one row per head of the model, with its results from the analysis."""
    rows = {tuple(row[name] for name in HEAD_KEY): _rounded(row) for row in table}
    for row in others:
        values = rows.setdefault(tuple(row[name] for name in HEAD_KEY), {})
        values |= _rounded({row["statistic"]: row["value"]})
    return [
        {**dict(zip(HEAD_KEY, place, strict=True)), **rows.get(place, {})}
        for place in flat_heads(heads)
    ]


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Drop missing values from a row and round its numbers to `N_DIGITS` digits."""
    return {
        name: float(f"{value:.{N_DIGITS}g}") if isinstance(value, float) else value
        for name, value in row.items()
        if value is not None
    }


N_BITS = 8
Weights = npt.NDArray[np.float32]


def reading_contents(run: TrainedRun, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return, for each item, the run's output texts, the axes of its sites, and all weights."""
    return [
        {
            "texts": dict(reading.outputs),
            "axes": {site.name: _axes_content(site, reading) for site in run.model.sites},
            **weight_contents(reading.observations, reading.picture),
        }
        for reading in readings(run, [item.input for item in items])
    ]


def _axes_content(site: Site, reading: Shown) -> dict[str, Any]:
    axes = reading.axes(site)
    hint = f"{ROWS[SITE_KINDS[site.name]]} {axes.note}".strip()
    content = {"queries": axes.queries, "keys": axes.keys, "hint": hint}
    if (picture := reading.picture) is None:
        return content
    values = base64.b64encode(picture.values).decode("ascii")
    sizes = {"shape": picture.shape, "start": picture.n_start, "patch": picture.patch}
    return {**content, "view": {**sizes, "queries": reading.places, "values": values}}


def weight_contents(
    observations: Sequence[Observation], picture: Picture | None = None
) -> dict[str, Any]:
    """Return the shapes of the attentions of one item, and their packed weights.

    Heads with non-finite weights, or negative ones in distributions, are omitted. Weights of the
    channels of a pixel of a picture are summed.
    """
    blocks, weights = [], []
    for obs in observations:
        weights_HQK, allowed_HQK = obs.weights_BHQK[0], obs.allowed_BHQK[0]
        is_valid_H = obs.is_valid_H1[:, 0]
        weights.append(rounded(weights_HQK[is_valid_H], allowed_HQK[is_valid_H]))
        if picture is not None:
            weights[-1] = by_cell(weights[-1], picture.grid, picture.n_start)
        numbers = zip(obs.head_numbers, is_valid_H.tolist(), strict=True)
        blocks.append(
            {
                "site": obs.site,
                "layer": obs.layer,
                "heads": [number for number, is_valid in numbers if is_valid],
                "shape": list(weights[-1].shape[1:]),
                "signed": bool((weights[-1] < 0).any()),
            }
        )
    return {"blocks": blocks, "weights": packed(weights)}


def rounded(weights_HQK: Tensor, allowed_HQK: Tensor) -> Weights:
    """Round finite weights to `N_BITS` binary digits; NaN at masked keys.

    Args:
        weights_HQK: 0 at masked keys.
        allowed_HQK: True where a query may attend to a key.
    """
    fractions, exponents = np.frexp(weights_HQK.float().cpu().numpy())
    weights: Weights = np.ldexp(np.rint(fractions * 2**N_BITS) / 2**N_BITS, exponents)
    weights[~allowed_HQK.cpu().numpy()] = np.nan
    return weights


def by_cell(weights_HQK: Weights, shape: Sequence[int], n_start: int) -> Weights:
    """Return the weights (H, Q, n_start + cells): sums over the channels of a pixel.

    Values without a key are masked.

    Args:
        shape: rows, columns and channels of an image; (samples,) of a sequence.
        n_start: number of keys before the first value.
    """
    n_values, channels = math.prod(shape), shape[2] if len(shape) > 2 else 1
    missing = ((0, 0), (0, 0), (0, n_start + n_values - weights_HQK.shape[2]))
    padded_HQK = np.pad(weights_HQK, missing, constant_values=np.nan)
    cells = n_values // channels, channels
    cells_HQNC = padded_HQK[..., n_start:].reshape(*padded_HQK.shape[:2], *cells)
    sums_HQN = np.where(np.isnan(cells_HQNC).all(-1), np.nan, np.nansum(cells_HQNC, -1))
    return np.concatenate((padded_HQK[..., :n_start], sums_HQN.astype(np.float32)), -1)


def packed(weights: Iterable[Weights]) -> str:
    """Concatenate the weights of several attentions; zlib, then base64."""
    data = b"".join(block.astype("<f4").tobytes() for block in weights)
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")

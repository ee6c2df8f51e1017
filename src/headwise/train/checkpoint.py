"""Checkpoints: tensors, numbers, strings, lists and dicts only, written all or not at all.

A checkpoint holds nothing that depends on the clock: two runs with the same computation have the
same bytes.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import CheckpointError, nearest
from headwise.files import replacing
from headwise.runs.folder import RunFolder

FORMAT_VERSION = 1
KIND = "headwise-checkpoint"


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` beside its kind and format version."""
    payload = {"kind": KIND, "format": FORMAT_VERSION, **content}
    with replacing(path) as temporary, open(temporary, "wb") as handle:
        # a handle, not a path: torch writes the file's name into the archive
        torch.save(payload, handle)


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint of ours; nothing in it is executed.

    Raises:
        CheckpointError: missing, truncated, foreign, or of a format this version cannot read.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        with zipfile.ZipFile(path) as archive:  # torch would try its older formats
            damaged = archive.testzip()  # which torch does not call
        if damaged is not None:
            raise ValueError(f"{damaged} in it is not what was written")
        payload = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # damaged and foreign files raise a dozen kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} is truncated or damaged, or no checkpoint of headwise ({reason})."
            f"{_others(path)}"
        ) from error
    if not isinstance(payload, dict) or payload.get("kind") != KIND or "model" not in payload:
        raise CheckpointError(f"{path} is no checkpoint of headwise")
    weights = payload["model"]
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) and value.layout == torch.strided
        for name, value in weights.items()
    ):
        raise CheckpointError(f"{path} is damaged: its model is no mapping of names to tensors")
    if payload.get("format") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {payload.get('format')}; this version of headwise reads format "
            f"{FORMAT_VERSION}"
        )
    return payload


def _others(path: Path) -> str:
    """Advice on the other checkpoints in the folder of a broken one."""
    names = sorted(other.stem for other in path.parent.glob("*.pt") if other != path)
    if not names:
        return ""
    return (
        " Commands that load a run can use another of its folder: "
        f"{', '.join(f'checkpoint={name}' for name in names)}. Once it is removed, training can "
        "start from those with init_from=RUN in a new experiment_name=…"
    )


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Load `weights` into `model`; raises CheckpointError with the names and shapes that differ."""
    own = model.state_dict()
    missing = sorted(set(own) - set(weights))
    foreign = sorted(set(weights) - set(own))
    shapes = [
        f"{name}: {tuple(weights[name].shape)} there, {tuple(own[name].shape)} here"
        for name in sorted(set(own) & set(weights))
        if own[name].shape != weights[name].shape
    ]
    if missing or foreign or shapes:
        parts = [
            f"{title}: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
            for title, names in (
                ("missing there", missing),
                ("unknown here", foreign),
                ("other sizes", shapes),
            )
            if names
        ]
        raise CheckpointError(f"{origin} belongs to another model ({'; '.join(parts)})")
    model.load_state_dict(dict(weights))


def checkpoint_path(folder: RunFolder, name: str) -> Path:
    """`auto` is the average where there is one, else the best, else the last.

    `average_<n>` is the average of the last n numbered checkpoints, computed if missing.

    Raises:
        CheckpointError: no checkpoint has that name; the message lists those that exist.
    """
    name = str(name)
    if name == "auto":
        for candidate in ("average", "best", "last"):
            path = folder.checkpoints / f"{candidate}.pt"
            if path.is_file():
                return path
        raise CheckpointError(f"{folder.path} has no checkpoint yet")
    average = re.fullmatch(r"average_(\d+)", name)
    if average:
        return averaged_checkpoint(folder.checkpoints, int(average[1]))
    there = sorted(path.stem for path in folder.checkpoints.glob("*.pt"))
    number = re.fullmatch(r"(?:update_)?(\d+)", name)
    stem = f"update_{int(number[1]):08d}" if number else name  # zeros need not be typed
    if stem not in there:
        close = nearest(stem, there)
        hint = f" Did you mean checkpoint={close}?" if close else ""
        raise CheckpointError(
            f"checkpoint={name} is not in {folder.path}; there are: auto, {', '.join(there)}.{hint}"
        )
    return folder.checkpoints / f"{stem}.pt"


def load_model(model: nn.Module, folder: RunFolder, name: str) -> str:
    """Load the weights of a checkpoint; returns its name, with `auto` resolved."""
    path = checkpoint_path(folder, name)
    load_weights(model, load_checkpoint(path)["model"], str(path))
    return path.stem


def numbered_checkpoints(folder: Path) -> list[Path]:
    """`update_<n>.pt` in order of n."""
    numbered = [
        (int(match.group(1)), path)
        for path in folder.glob("update_*.pt")
        if (match := re.fullmatch(r"update_(\d+)\.pt", path.name))
    ]
    return [path for _, path in sorted(numbered)]


def averaged_checkpoint(folder: Path, n_averaged: int) -> Path:
    """The average of the last numbered checkpoints, computed if missing.

    Raises:
        CheckpointError: `n_averaged` is 0, or more than there are.
        HeadwiseError: the folder cannot be written.
    """
    if not n_averaged:
        raise CheckpointError("checkpoint=average_0 is of no checkpoints: give a number above 0")
    there = numbered_checkpoints(folder)
    recent = there[-n_averaged:]
    if len(recent) < n_averaged:
        raise CheckpointError(
            f"checkpoint=average_{n_averaged} is of the last {n_averaged} numbered checkpoints, "
            f"and {folder} has {len(there)} (trainer.keep, trainer.save_every)"
        )
    last = recent[-1].stem.removeprefix("update_")
    path = folder / f"average_{n_averaged}_to_{last}.pt"
    if not path.is_file():
        save_checkpoint(path, {"model": average_weights(recent)})
    return path


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """Element-wise mean of the weights of several checkpoints, summed in float64.

    Tied weights stay tied: equal tensors under two names have equal means.
    """
    if not paths:
        raise CheckpointError("there are no numbered checkpoints to average")
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for path in paths:
        for name, value in load_checkpoint(path)["model"].items():
            kinds[name] = value.dtype
            added = value.double()
            total[name] = total[name] + added if name in total else added
    return {name: (value / len(paths)).to(kinds[name]) for name, value in total.items()}

"""Checkpoints of tensors, numbers, strings, lists and dicts, written atomically.

They hold no time stamps: two runs with the same computation have identical files.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headwise.errors import CheckpointError, RunError, meant
from headwise.files import replacing
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record

FORMAT_VERSION = 1
KIND = "headwise-checkpoint"

T = TypeVar("T")


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` with the file kind and the format version."""
    payload = {"kind": KIND, "format": FORMAT_VERSION, **content}
    with replacing(path) as temporary, open(temporary, "wb") as handle:
        # a handle, not a path: torch writes the file's name into the archive
        torch.save(payload, handle)


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a headwise checkpoint without executing code in it.

    Raises:
        CheckpointError: missing, truncated, not a headwise checkpoint, or of an unsupported format.
    """
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} not found")
    try:
        with zipfile.ZipFile(path) as archive:  # torch would try its older formats
            damaged = archive.testzip()  # which torch does not call
        if damaged is not None:
            raise ValueError(f"{damaged} in it is corrupted")
        payload = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # damaged and foreign files raise many error types
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} is truncated or corrupted, or not a headwise checkpoint ({reason})."
            f"{_hint(path)}"
        ) from error
    if not isinstance(payload, dict) or payload.get("kind") != KIND or "model" not in payload:
        raise CheckpointError(f"{path} is not a headwise checkpoint")
    weights = payload["model"]
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) and value.layout == torch.strided
        for name, value in weights.items()
    ):
        raise CheckpointError(f"{path} is corrupted: model must map names to tensors")
    if payload.get("format") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {payload.get('format')}; this version reads format {FORMAT_VERSION}"
        )
    return payload


def _hint(path: Path) -> str:
    """Hint at other checkpoints in the folder of a corrupted one."""
    names = sorted(other.stem for other in path.parent.glob("*.pt") if other != path)
    if not names:
        return ""
    return (
        " Commands that load a run can use another checkpoint of its folder: "
        f"{', '.join(f'checkpoint={name}' for name in names)}. Remove the file to start "
        "training from those with init_from=RUN in a new experiment_name=…"
    )


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Load `weights` into `model`; raises CheckpointError with the names and shapes that differ."""
    expected = model.state_dict()
    missing = sorted(set(expected) - set(weights))
    unexpected = sorted(set(weights) - set(expected))
    shapes = [
        f"{name}: got {tuple(weights[name].shape)}, must be {tuple(expected[name].shape)}"
        for name in sorted(set(expected) & set(weights))
        if expected[name].shape != weights[name].shape
    ]
    if missing or unexpected or shapes:
        parts = [
            f"{title}: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
            for title, names in (
                ("missing keys", missing),
                ("unexpected keys", unexpected),
                ("size mismatch", shapes),
            )
            if names
        ]
        raise CheckpointError(f"{origin} does not fit the model ({'; '.join(parts)})")
    model.load_state_dict(dict(weights))


def checkpoint_path(folder: RunFolder, name: str) -> Path:
    """Path of a checkpoint; `auto` is the one scored in results.json, or `best` while training.

    If `best` or `last` was removed, a numbered checkpoint of the same update has its weights.

    Raises:
        CheckpointError: no checkpoint has that name; the message lists those that exist.
    """
    requested, saved = str(name), _unless_broken(Record(folder.path).last_saved) or {}
    names = sorted(path.stem for path in folder.checkpoints.glob("*.pt"))
    if not names:
        raise CheckpointError(f"{folder.path} has no checkpoint yet")
    name = _scored(folder, saved, names) if requested == "auto" else requested
    number = re.fullmatch(r"(?:update_)?(\d+)", name)
    stem = f"update_{int(number[1]):08d}" if number else name  # leading zeros are optional
    update = saved.get({"best": "best_update", "last": "update"}.get(stem, ""), 0)
    for existing in (stem, f"update_{update:08d}"):
        if existing in names:
            return folder.checkpoints / f"{existing}.pt"
    if requested == "auto" or update:
        others = ", ".join(f"checkpoint={other}" for other in names)
        raise CheckpointError(
            f"{folder.checkpoints / name}.pt is missing, though it was saved: copy it back, "
            f"or set another one: {others}"
        )
    hint = meant(name, names, "checkpoint={}")
    raise CheckpointError(
        f"checkpoint={name} not found in {folder.path}: it has auto, {', '.join(names)}.{hint}"
    )


def _scored(folder: RunFolder, saved: Mapping[str, Any], names: list[str]) -> str:
    """Name of the weights of results.json; of an unfinished run `best`, before it `last`."""
    results = _unless_broken(lambda: Record(folder.path).results)
    if results is not None and results.weights and results.updates >= saved.get("update", 0):
        return results.weights
    return "best" if "best" in names or saved.get("best_update") else "last"


def _unless_broken(read: Callable[[], T]) -> T | None:
    """The record of a run, or None if it cannot be read, which `headwise.load` logs."""
    try:
        return read()
    except RunError:
        return None


def load_model(model: nn.Module, folder: RunFolder, name: str) -> None:
    """Load the weights of a checkpoint."""
    path = checkpoint_path(folder, name)
    load_weights(model, load_checkpoint(path)["model"], str(path))


def numbered_checkpoints(folder: Path) -> list[Path]:
    """`update_<n>.pt` in order of n."""
    numbered = [
        (int(match.group(1)), path)
        for path in folder.glob("update_*.pt")
        if (match := re.fullmatch(r"update_(\d+)\.pt", path.name))
    ]
    return [path for _, path in sorted(numbered)]


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """Element-wise mean of the weights of several checkpoints, summed in float64.

    Tied weights stay tied: equal tensors under two names have equal means.
    """
    total: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for path in paths:
        for name, value in load_checkpoint(path)["model"].items():
            dtypes[name] = value.dtype
            value = value.double()
            total[name] = total[name] + value if name in total else value
    return {name: (value / len(paths)).to(dtypes[name]) for name, value in total.items()}

"""Initialisation from the weights of another run (`init_from`), in contrast to resuming."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict

from headwise.attention.attention import Attention
from headwise.config.schema import SITE_GROUPS, Config
from headwise.errors import CheckpointError, RunError
from headwise.files import read_json
from headwise.model.family import Model
from headwise.model.places import typed_heads
from headwise.runs.folder import RunFolder, comparable
from headwise.runs.record import Record
from headwise.train.checkpoint import checkpoint_path, load_checkpoint, load_weights

log = logging.getLogger(__name__)

# Settings that change a model's outputs but not the shapes of its weights.
SHAPE_PRESERVING = (
    *SITE_GROUPS,
    *SITE_GROUPS.values(),
    "loss",
    "positions",
    "norm",
    "activation",
    "model.cls_tokens",
)
PROJECTIONS = ("query", "key", "value", "output")  # of every attention with heads


def start_from(model: Model, config: Config, origin: RunFolder, vocabulary: str) -> None:
    """Load the weights of another run (`checkpoint=auto`) into a new model.

    Weights of an attention variant, a scaling, gates, CLS tokens or classes that `origin` lacks
    keep their initial values; those that the model lacks are ignored. Both are logged as warnings,
    as are settings that change the outputs of the same weights.

    Args:
        model: built from `config`.
        config: of the new run.
        origin: the other run.
        vocabulary: hash of the new run's vocabulary, as in `data.json`.

    Raises:
        RunError: `origin` has another vocabulary, another number of heads, or gates that the model
            lacks.
        CheckpointError: `origin` has another model.
    """
    if read_json(origin.path / "data.json")["vocabulary"] != vocabulary:
        raise RunError(
            f"init_from={origin.path} has another vocabulary than this run: reuse it with "
            f"tokenizer=given tokenizer.folder={origin.path}"
        )
    old_config = Record(origin.path).config
    if old_config.model.n_heads != config.model.n_heads:
        raise RunError(
            f"init_from={origin.path} has {old_config.model.n_heads} heads at each site: "
            f"set model.n_heads={old_config.model.n_heads}"
        )
    weights = load_checkpoint(checkpoint_path(origin, "auto"))["model"]
    initial = model.state_dict()
    if any(name.endswith(".gate.log_a") for name in weights.keys() - initial.keys()):
        raise RunError(
            f"init_from={origin.path} was trained with gates; closed heads would be open without "
            f"them. Remove them with headwise prune run={origin.path} by=gates, or choose the same "
            "gates"
        )
    optional = _optional(model, initial.keys() | weights.keys())
    loaded = {name: weights[name] for name in weights if name not in optional or name in initial}
    shared = initial.keys() & weights.keys()
    fitting = {name for name in shared if initial[name].shape == weights[name].shape}
    new = {name: initial[name] for name in (optional.keys() & initial.keys()) - fitting}
    try:
        load_weights(model, {**loaded, **new}, f"init_from={origin.path}")
    except CheckpointError as error:
        heads = Record(origin.path).saved["model"].get("heads")
        if heads is None:
            raise
        raise CheckpointError(f"{error}. It is a pruned run: add '{typed_heads(heads)}'") from error
    for what, names in (
        ("newly initialised, not in its checkpoint", new),
        ("ignored, not in this model", weights.keys() - loaded.keys()),
    ):
        if names:
            parts = sorted({optional[name] for name in names})
            log.warning("init_from=%s: %s: %s", origin.path, what, ", ".join(parts))
    differences = _differences(old_config, config)
    if differences:
        settings = ", ".join(differences)
        log.warning("the weights of %s were trained with other settings: %s", origin.path, settings)


def _optional(model: Model, names: Iterable[str]) -> dict[str, str]:
    """Name -> name within its attention, for weights of a variant, CLS tokens and classes."""
    prefixes = [f"{p}." for p, module in model.named_modules() if isinstance(module, Attention)]
    parts = {}
    for name in names:
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        part = name.removeprefix(prefix)
        is_new = name.startswith(model.new_weights)
        is_variant = prefix and part.split(".")[0] not in PROJECTIONS
        if "cls" in name.split(".") or is_new or is_variant:
            parts[name] = part
    return parts


def _differences(old_config: Config, config: Config) -> list[str]:
    """Settings of `SHAPE_PRESERVING` that differ between two runs."""
    old, new = comparable(asdict(old_config)), comparable(asdict(config))
    keys = sorted(old.keys() | new.keys())
    values = ((key, str(old.get(key, "unset")), str(new.get(key, "unset"))) for key in keys)
    return [
        f"{key}={old_value} (here {value})"
        for key, old_value, value in values
        if old_value != value and f"{key}.".startswith(tuple(f"{k}." for k in SHAPE_PRESERVING))
    ]

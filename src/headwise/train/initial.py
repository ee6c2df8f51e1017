"""Initialisation from the weights of another run (`init_from`), in contrast to resuming."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict

from headwise.attention.protocol import Attention
from headwise.config.schema import SITE_GROUPS, Config
from headwise.errors import CheckpointError, RunError
from headwise.files import read_json
from headwise.model.family import Model
from headwise.model.places import typed_heads
from headwise.runs.fingerprint import comparable
from headwise.runs.folder import RunFolder, read_config
from headwise.train.checkpoint import checkpoint_path, load_checkpoint, load_weights

log = logging.getLogger(__name__)

# Settings that change a model's outputs but not the shapes of its weights.
SHAPELESS = (
    *SITE_GROUPS,
    *SITE_GROUPS.values(),
    "loss",
    "positions",
    "norm",
    "activation",
    "model.register_tokens",
)
PROJECTIONS = ("query", "key", "value", "output")  # of every attention with heads


def start_from(model: Model, config: Config, origin: RunFolder, vocabulary: str) -> None:
    """Load the evaluated weights of another run into a new model.

    Weights of an attention variant, a scaling, gates or register tokens that `origin` lacks keep
    their initial values; those that the model lacks are ignored. Both are logged as warnings, as
    are settings that change the outputs of the same weights.

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
    before = read_config(origin)
    if before.model.n_heads != config.model.n_heads:
        raise RunError(
            f"init_from={origin.path} has {before.model.n_heads} heads at each site: "
            f"set model.n_heads={before.model.n_heads}"
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
    taken = {name: weights[name] for name in weights if name not in optional or name in initial}
    shared = initial.keys() & weights.keys()
    fitting = {name for name in shared if initial[name].shape == weights[name].shape}
    new = {name: initial[name] for name in (optional.keys() & initial.keys()) - fitting}
    try:
        load_weights(model, {**taken, **new}, f"init_from={origin.path}")
    except CheckpointError as error:
        kept = origin.read_config()["model"].get("heads")
        if kept is None:
            raise
        raise CheckpointError(f"{error}. It is a pruned run: add '{typed_heads(kept)}'") from error
    for what, names in (
        ("newly initialised, not in its checkpoint", new),
        ("ignored, not in this model", weights.keys() - taken.keys()),
    ):
        if names:
            parts = sorted({optional[name] for name in names})
            log.warning("init_from=%s: %s: %s", origin.path, what, ", ".join(parts))
    differences = _differences(before, config)
    if differences:
        settings = ", ".join(differences)
        log.warning("the weights of %s were trained with other settings: %s", origin.path, settings)


def _optional(model: Model, names: Iterable[str]) -> dict[str, str]:
    """Weights that depend on the attention variant, and register tokens -> name in their part."""
    within = [f"{of}." for of, part in model.named_modules() if isinstance(part, Attention)]
    parts = {}
    for name in names:
        place = next((of for of in within if name.startswith(of)), "")
        part = name.removeprefix(place)
        if "registers" in name.split(".") or (place and part.split(".")[0] not in PROJECTIONS):
            parts[name] = part
    return parts


def _differences(before: Config, now: Config) -> list[str]:
    """Settings of `SHAPELESS` that differ between two runs."""
    there, here = (comparable(asdict(config)) for config in (before, now))
    keys = sorted(there.keys() | here.keys())
    values = ((key, str(there.get(key, "unset")), str(here.get(key, "unset"))) for key in keys)
    return [
        f"{key}={then} (here {today})"
        for key, then, today in values
        if then != today and f"{key}.".startswith(tuple(f"{of}." for of in SHAPELESS))
    ]

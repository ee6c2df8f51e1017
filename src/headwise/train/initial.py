"""New training from the weights of another run; going on with a run is not this."""

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

# What changes a model's answers and not the shapes of its weights.
SHAPELESS = (
    *SITE_GROUPS,
    *SITE_GROUPS.values(),
    "loss",
    "positions",
    "norm",
    "activation",
    "model.register_tokens",
)
PROJECTIONS = ("query", "key", "value", "output")  # what every attention with heads has


def start_from(model: Model, config: Config, origin: RunFolder, vocabulary: str) -> None:
    """Fill a new model with the weights that another run is scored with.

    Weights that the choice of an attention, a scaling, gates or register tokens brings start anew
    where the other run has none that fit, and its own are left where this model has no place for
    them; both are told, as are other settings under which the weights compute something else.

    Args:
        model: as `config` has it.
        config: of the new run.
        origin: the other run.
        vocabulary: hash of the new run's, as in `data.json`.

    Raises:
        RunError: its vocabulary is another, so that the rows of its embeddings mean other pieces;
            it has another number of heads; or it has gates that this model has not.
        CheckpointError: its model is another.
    """
    if read_json(origin.path / "data.json")["vocabulary"] != vocabulary:
        raise RunError(
            f"init_from={origin.path} has another vocabulary than this run, which learned one from "
            f"its own text: take that one's by tokenizer=given tokenizer.folder={origin.path}"
        )
    before = read_config(origin)
    if before.model.n_heads != config.model.n_heads:
        raise RunError(
            f"init_from={origin.path} has {before.model.n_heads} heads at each site, and its "
            f"projections would be cut into other ones: give model.n_heads={before.model.n_heads}"
        )
    weights = load_checkpoint(checkpoint_path(origin, "auto"))["model"]
    own = model.state_dict()
    if any(name.endswith(".gate.log_a") for name in weights.keys() - own.keys()):
        raise RunError(
            f"init_from={origin.path} was trained with gates at heads that have none here, where "
            "closed heads would be open: remove them first with "
            f"headwise prune run={origin.path} by=gates, or choose the same gates"
        )
    chosen = _chosen(model, own.keys() | weights.keys())
    taken = {name: weights[name] for name in weights if name not in chosen or name in own}
    shared = own.keys() & weights.keys()
    fitting = {name for name in shared if own[name].shape == weights[name].shape}
    new = {name: own[name] for name in (chosen.keys() & own.keys()) - fitting}
    try:
        load_weights(model, {**taken, **new}, f"init_from={origin.path}")
    except CheckpointError as error:
        kept = origin.read_config()["model"].get("heads")
        if kept is None:
            raise
        raise CheckpointError(
            f"{error}. It is a run with fewer heads: give '{typed_heads(kept)}', too"
        ) from error
    for what, names in (
        ("start anew, as it has none that fit", new),
        ("left out, as there is no place for them here", weights.keys() - taken.keys()),
    ):
        if names:
            parts = sorted({chosen[name] for name in names})
            log.warning("init_from=%s: %s: %s", origin.path, what, ", ".join(parts))
    differences = _differences(before, config)
    if differences:
        settings = ", ".join(differences)
        log.warning("the weights of %s were trained with other settings: %s", origin.path, settings)


def _chosen(model: Model, names: Iterable[str]) -> dict[str, str]:
    """Weights that a chosen part of attention has, or register tokens: their names in that part."""
    within = [f"{of}." for of, part in model.named_modules() if isinstance(part, Attention)]
    found = {}
    for name in names:
        place = next((of for of in within if name.startswith(of)), "")
        part = name.removeprefix(place)
        if "registers" in name.split(".") or (place and part.split(".")[0] not in PROJECTIONS):
            found[name] = part
    return found


def _differences(before: Config, now: Config) -> list[str]:
    """Settings that shapes of weights do not tell, where two runs have others."""
    there, here = (comparable(asdict(config)) for config in (before, now))
    keys = sorted(there.keys() | here.keys())
    told = ((key, str(there.get(key, "unset")), str(here.get(key, "unset"))) for key in keys)
    return [
        f"{key}={then} (here {today})"
        for key, then, today in told
        if then != today and f"{key}.".startswith(tuple(f"{of}." for of in SHAPELESS))
    ]

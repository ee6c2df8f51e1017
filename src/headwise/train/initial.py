"""New training from the weights of another run; going on with a run is not this."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from headwise.data.tokenizer import TokenizerPair
from headwise.errors import CheckpointError, RunError
from headwise.model.gates import gate_names
from headwise.model.places import typed_heads
from headwise.model.transformer import Transformer
from headwise.schema import SITE_GROUPS, Config
from headwise.train.checkpoint import load_checkpoint, load_weights
from headwise.train.loading import checkpoint_path, read_config
from headwise.train.run_folder import RunFolder, comparable

log = logging.getLogger(__name__)

# What changes a model's answers and not the shapes of its weights.
SHAPELESS = (
    *SITE_GROUPS,
    *SITE_GROUPS.values(),
    "loss",
    *(f"model.{key}" for key in ("activation", "norm", "positions")),
)
MOST_TOLD = 4


def start_from(
    model: Transformer, config: Config, origin: RunFolder, tokenizers: TokenizerPair
) -> None:
    """Fill a new model with the weights that another run translates with.

    Gates are new where the other run has none. Other settings under which the weights compute
    something else are told.

    Args:
        model: as `config` has it.
        config: of the new run.
        origin: the other run.
        tokenizers: of the new run.

    Raises:
        RunError: its vocabulary is another, so that the rows of its embeddings mean other pieces;
            it has another number of heads; or it has gates that this model has not.
        CheckpointError: its model is another.
    """
    if TokenizerPair.load(origin.path).fingerprint() != tokenizers.fingerprint():
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
    own, gates = model.state_dict(), gate_names(model)
    if any(name.endswith(".gate.log_a") for name in weights.keys() - own.keys()):
        raise RunError(
            f"init_from={origin.path} was trained with gates at heads that have none here, where "
            "closed heads would be open: remove them first with "
            f"headwise prune run={origin.path} by=gates, or choose the same gates"
        )
    new = {name: own[name] for name in gates - weights.keys()}
    try:
        load_weights(model, {**weights, **new}, f"init_from={origin.path}")
    except CheckpointError as error:
        kept = origin.read_config()["model"].get("heads")
        if kept is None:
            raise
        raise CheckpointError(
            f"{error}. It is a run with fewer heads: give '{typed_heads(kept)}', too"
        ) from error
    differences = _differences(before, config)
    if differences:
        more = len(differences) - MOST_TOLD
        log.warning(
            "the weights of %s were trained with other settings: %s%s",
            origin.path,
            ", ".join(differences[:MOST_TOLD]),
            f", and {more} more" if more > 0 else "",
        )


def _differences(before: Config, now: Config) -> list[str]:
    """Settings that shapes of weights do not tell, where two runs have others."""
    there, here = (comparable(asdict(config)) for config in (before, now))
    told = []
    for key in sorted(there.keys() | here.keys()):
        if not any(key == of or key.startswith(f"{of}.") for of in SHAPELESS):
            continue
        then, today = _told(there, key), _told(here, key)
        if then != today:
            told.append(f"{key}={then} (here {today})")
    return told


def _told(flat: dict[str, Any], key: str) -> str:
    return str(flat[key]) if key in flat else "unset"

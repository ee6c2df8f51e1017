"""New training from the weights of another run; going on with a run is not this."""

from __future__ import annotations

from headwise.data.tokenizer import TokenizerPair
from headwise.errors import CheckpointError, RunError
from headwise.model.gates import gate_names
from headwise.model.places import typed_heads
from headwise.model.transformer import Transformer
from headwise.train.checkpoint import load_checkpoint, load_weights
from headwise.train.loading import checkpoint_path
from headwise.train.run_folder import RunFolder


def start_from(model: Transformer, origin: RunFolder, tokenizers: TokenizerPair) -> None:
    """Fill a new model with the weights that another run translates with.

    Gates are new where the other run has none.

    Raises:
        RunError: its vocabulary is another, so that the rows of its embeddings mean other pieces;
            or it has gates that this model has not.
        CheckpointError: its model is another.
    """
    if TokenizerPair.load(origin.path).fingerprint() != tokenizers.fingerprint():
        raise RunError(
            f"init_from={origin.path} has another vocabulary than this run, which learned one from "
            f"its own text: take that one's by tokenizer=given tokenizer.folder={origin.path}"
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

"""New training from the weights of another run; going on with a run is not this."""

from __future__ import annotations

from headwise.data.tokenizer import TokenizerPair
from headwise.errors import RunError
from headwise.model.transformer import Transformer
from headwise.train.checkpoint import load_checkpoint, load_weights
from headwise.train.loading import checkpoint_path
from headwise.train.run_folder import RunFolder


def start_from(model: Transformer, origin: RunFolder, tokenizers: TokenizerPair) -> None:
    """Fill a new model with the weights that another run translates with.

    Raises:
        RunError: its vocabulary is another, so that the rows of its embeddings mean other pieces.
        CheckpointError: its model is another.
    """
    if TokenizerPair.load(origin.path).fingerprint() != tokenizers.fingerprint():
        raise RunError(
            f"init_from={origin.path} has another vocabulary than this run; use the same training "
            "text and tokenizer"
        )
    weights = load_checkpoint(checkpoint_path(origin, "auto"))["model"]
    load_weights(model, weights, f"init_from={origin.path}")

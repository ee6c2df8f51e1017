"""Averaging the last checkpoints, where that helps (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

from headwise.model.transformer import Transformer
from headwise.train.checkpoint import average_weights, numbered_checkpoints, save_checkpoint
from headwise.train.distributed import Ranks
from headwise.train.loading import load_model
from headwise.train.run_folder import RunFolder
from headwise.train.trainer import Trainer


def choose_weights(
    trainer: Trainer, model: Transformer, folder: RunFolder, ranks: Ranks, n_averaged: int
) -> str:
    """Load the average of the last checkpoints where it validates better than the best one.

    Early in training it does not: the checkpoints still differ by too much.

    Returns:
        Which weights `model` holds now: average, best or last.
    """
    ranks.barrier()  # until the first rank has written the last one
    average = folder.checkpoints / "average.pt"
    recent = numbered_checkpoints(folder.checkpoints)[-n_averaged:] if n_averaged else []
    if recent:
        if ranks.is_main:
            save_checkpoint(average, {"model": average_weights(recent)})
        ranks.barrier()
        load_model(model, folder, "average")
        _, score = trainer.evaluate()
        best = trainer.state.best_score
        if ranks.is_main and best is not None and score <= best:
            average.unlink()
    ranks.barrier()
    return load_model(model, folder, "auto")

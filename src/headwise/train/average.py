"""Averaging the last checkpoints, where that helps (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

import logging

from headwise.model.transformer import Transformer
from headwise.runs.folder import RunFolder
from headwise.train.checkpoint import (
    average_weights,
    load_model,
    numbered_checkpoints,
    save_checkpoint,
)
from headwise.train.distributed import Ranks
from headwise.train.trainer import Trainer

log = logging.getLogger(__name__)


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
        is_better = best is None or score > best
        if ranks.is_main:
            verdict = "better than the best one" if is_better else "no better than the best one"
            log.info("the average of the last %d checkpoints is %s", len(recent), verdict)
            if not is_better:
                average.unlink()
    ranks.barrier()
    return load_model(model, folder, "auto")

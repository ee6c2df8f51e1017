"""Averaging of the last checkpoints (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

import logging

from headwise.train.checkpoint import (
    average_weights,
    load_model,
    numbered_checkpoints,
    save_checkpoint,
)
from headwise.train.trainer import Trainer

log = logging.getLogger(__name__)


def choose_weights(trainer: Trainer, validates_part: bool) -> str:
    """Load the average of the last checkpoints if it validates better than the best checkpoint.

    Both are measured on the whole validation set.

    Args:
        validates_part: the best checkpoint was chosen on a part of the set, where its score is
            partly luck: measure it again.

    Returns:
        The weights in the model: average, best or last.
    """
    model, folder, ranks = trainer.model, trainer.folder, trainer.ranks
    n_averaged = trainer.config.average
    ranks.barrier()  # wait until the first rank has written the last checkpoint
    average = folder.checkpoints / "average.pt"
    best = trainer.state.best_score
    weights = "last" if best is None else "best"
    recent = numbered_checkpoints(folder.checkpoints)[-n_averaged:] if n_averaged else []
    if recent:
        if ranks.is_main:
            save_checkpoint(average, {"model": average_weights(recent)})
        ranks.barrier()
        load_model(model, folder, "average")
        _, score = trainer.evaluate(whole=True)
        if validates_part:
            load_model(model, folder, "best")
            _, best = trainer.evaluate(whole=True)
        is_better = best is None or score > best
        weights = "average" if is_better else weights
        if ranks.is_main:
            verdict = "better than the best one" if is_better else "no better than the best one"
            n = len(recent)
            name = f"average of the last {n} checkpoints" if n > 1 else "last checkpoint"
            log.info("the %s is %s", name, verdict)
            if not is_better:
                average.unlink()
    ranks.barrier()
    load_model(model, folder, weights)
    return weights

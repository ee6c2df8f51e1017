"""Resuming a run from its last checkpoint."""

from __future__ import annotations

import logging
from dataclasses import replace

from headwise.errors import counted
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.train.checkpoint import load_checkpoint
from headwise.train.distributed import Ranks
from headwise.train.trainer import Trainer

log = logging.getLogger(__name__)


def can_resume(folder: RunFolder) -> bool:
    """Whether the folder has a checkpoint to resume from."""
    return folder.last.is_file()


def check_origin(folder: RunFolder, init_from: str | None) -> None:
    """Raise `RunError` if a new run cannot start from `init_from`."""
    if init_from is not None and not can_resume(folder):
        RunFolder.existing(init_from, "init_from")


def ranks_of_run(folder: RunFolder, ranks: Ranks) -> Ranks:
    """`ranks` with the number that the run was started with, which the batches depend on."""
    if not can_resume(folder):
        return ranks
    saved = Record(folder.path).last_saved()
    n = saved.get("world_size") or load_checkpoint(folder.last)["world_size"]
    if n != ranks.world_size and ranks.is_main:
        log.info(
            "started with %s, resuming with %d: the tokens of an update stay the same, "
            "the results may differ by rounding and by the random numbers of dropout",
            counted(n, "process"),
            ranks.world_size,
        )
    return replace(ranks, started_with=n)


def resume_or_start(trainer: Trainer) -> None:
    """Restore the state of the last checkpoint (`Trainer.restore`), or clear the records.

    Raises:
        CheckpointError: the checkpoint is corrupt or not of this model.
    """
    folder = trainer.folder
    if not can_resume(folder):
        trainer.records.rewind(-1, 0, 0)  # left over from before the first checkpoint
        return
    # load to CPU; load_state_dict then moves state to the device
    trainer.restore(load_checkpoint(folder.last))
    if costs := Record(folder.path).last_saved():  # of earlier processes
        trainer.seconds = float(costs["train_seconds"])
        trainer.peak_bytes = costs.get("peak_memory_bytes")

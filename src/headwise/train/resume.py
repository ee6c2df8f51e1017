"""Resuming a run from its last checkpoint."""

from __future__ import annotations

from headwise.runs.folder import RunFolder
from headwise.train.checkpoint import load_checkpoint
from headwise.train.trainer import Trainer


def can_resume(folder: RunFolder) -> bool:
    """Whether the folder has a checkpoint to resume from."""
    return folder.last.is_file()


def resume_or_start(trainer: Trainer) -> None:
    """Restore the state of the last checkpoint (`Trainer.restore`), or clear the records.

    Raises:
        CheckpointError: the checkpoint is corrupt or not of this model.
    """
    folder = trainer.folder
    if not can_resume(folder):
        trainer.records.rewind(0, 0)  # left over from before the first checkpoint
        return
    # load to CPU; load_state_dict then moves state to the device
    trainer.restore(load_checkpoint(folder.last))
    if costs := folder.read_last():  # of earlier processes
        trainer.seconds = float(costs["train_seconds"])
        trainer.step.memory.bytes = costs.get("peak_memory_bytes")

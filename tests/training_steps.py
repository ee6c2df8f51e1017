"""Updates of small models on any device, and the settings that every kind of device has to bear."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from headwise.config.folders import group_choices
from headwise.config.instantiate import instantiate
from headwise.data.batching import Batch, collate
from headwise.data.store import EncodedSplit
from headwise.model.build import build_model
from headwise.train.distributed import Ranks
from headwise.train.step import TrainingStep, build_step

N_WORDS = 40
VARIANTS = [
    *([f"attention={choice}"] for choice in group_choices("attention") if choice != "linformer"),
    ["attention=linformer", "attention.max_length=512"],  # a longer sentence is refused
    *([f"pattern={choice}", "attention=entmax15"] for choice in group_choices("pattern")),
    *([f"scaling={choice}"] for choice in group_choices("scaling")),
    *([f"gates={choice}"] for choice in group_choices("gates")),
    *([f"repulsion={choice}"] for choice in group_choices("repulsion")),
    ["attention.depends_on=query"],
    ["model.register_tokens=2"],
    ["model.recompute=true"],
]
# Without a kernel these solve most rows over a few classes and look at how many are left:
# one look costs less than the passes over the whole vocabulary that it saves.
LOSSES_THAT_LOOK = ["entmax", "entmax15", "sparsemax"]


def step_of(config: Any, device: torch.device) -> TrainingStep:
    model = build_model(config, N_WORDS, N_WORDS, joint=True).to(device)
    return build_step(config, model, instantiate(config.loss, "loss"), Ranks(0, 1, device))


def batch(*lengths: int) -> Batch:
    """Rows of some lengths, in host memory."""
    rows = [[4 + i % 30 for i in range(n)] for n in lengths]
    split = EncodedSplit.from_lists(rows, rows[::-1])
    return collate(split, np.arange(len(rows), dtype=np.int32))


class Loader:
    """Batches of given rows of a split, over and over."""

    def __init__(self, split: EncodedSplit, *rows: Iterable[int]) -> None:
        self.batches = [collate(split, np.array(list(some), dtype=np.int32)) for some in rows]
        self.position = 0

    def __next__(self) -> Batch:
        self.position += 1
        return self.batches[(self.position - 1) % len(self.batches)]

    def state(self) -> dict[str, int]:
        return {"epoch": 1, "batch": self.position}

    def restore(self, state: dict[str, int]) -> None:
        self.position = state["batch"]

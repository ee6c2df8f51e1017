"""What autograd keeps for the way back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def saved_storages(model: nn.Module | None = None) -> Iterator[dict[int, torch.UntypedStorage]]:
    """Storages saved within the block by address, each once, those of the parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()} if model else set()
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield saved


def n_bytes(saved: dict[int, torch.UntypedStorage]) -> int:
    return sum(storage.nbytes() for storage in saved.values())

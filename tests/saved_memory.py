"""Memory that autograd saves for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def saved_storages(model: nn.Module | None = None) -> Iterator[dict[int, torch.UntypedStorage]]:
    """Yield the storages saved within the block by address, without those of the parameters."""
    parameter_storages = (
        {p.untyped_storage().data_ptr() for p in model.parameters()} if model else set()
    )
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameter_storages:
            saved[storage.data_ptr()] = storage  # held, so that no address is reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield saved


def n_bytes(saved: dict[int, torch.UntypedStorage]) -> int:
    return sum(storage.nbytes() for storage in saved.values())

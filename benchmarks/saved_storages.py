"""The memory of what autograd saves in a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


@contextmanager
def saved_storages(model: nn.Module | None = None) -> Iterator[dict[int, torch.UntypedStorage]]:
    """Yield the storages that autograd saves in the block, without those of the parameters."""
    parameters = model.parameters() if model is not None else ()
    excluded = {parameter.untyped_storage()._cdata for parameter in parameters}
    saved: dict[int, torch.UntypedStorage] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in excluded:
            saved[storage._cdata] = storage  # held, so that no address is used again
        return tensor

    with saved_tensors_hooks(save, lambda tensor: tensor):
        yield saved


def n_bytes(saved: dict[int, torch.UntypedStorage]) -> int:
    """The size of storages."""
    return sum(storage.nbytes() for storage in saved.values())

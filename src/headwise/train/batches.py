"""Training batches."""

from __future__ import annotations

from headwise.data.loader import BatchLoader, Examples
from headwise.data.prefetch import Prefetched
from headwise.train.distributed import Ranks


def training_batches(examples: Examples, ranks: Ranks) -> Prefetched:
    """Batches of this rank, prefetched in the background; the caller closes it."""
    loader = BatchLoader(examples, ranks.rank, ranks.world_size, ranks.n_pieces)
    return Prefetched(loader, gpu=ranks.device if ranks.device.type == "cuda" else None)

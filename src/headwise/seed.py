"""Random numbers as a function of (seed, update, rank).

Every update seeds torch again, so no generator state need be saved, and a resumed run draws
the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derived_seed(*parts: int | str) -> int:
    """Return a 63-bit seed from numbers or strings, the same in every process."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Seed the CPU generator by `parts` within the block; restore its state afterwards."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(derived_seed(*parts))
        yield


def seed_everything(*parts: int | str) -> None:
    """Seed torch, numpy and random."""
    seed = derived_seed(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)

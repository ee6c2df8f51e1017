"""Random numbers as a function of (seed, update, rank).

Every update seeds torch anew, so that there is no generator state to save and a resumed run
draws what one never stopped would have drawn.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def derived_seed(*parts: int | str) -> int:
    """A 63-bit seed from several numbers or words, the same in every process."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_everything(*parts: int | str) -> None:
    """Seed torch, numpy and random."""
    seed = derived_seed(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)

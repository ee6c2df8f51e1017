"""Jobs of a sweep that share a process."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

# Reads a state of the process, and sets it. Warning filters and new variables stay: imports set
# them, once per process.
STATES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    (torch.get_rng_state, torch.set_rng_state),
    (np.random.get_state, np.random.set_state),
    (random.getstate, random.setstate),
    (os.environ.copy, os.environ.update),
    (os.getcwd, os.chdir),
)


@contextmanager
def restored_process() -> Iterator[None]:
    """Run a job, whose changes of this process end with it: the next starts as in its own."""
    from matplotlib import rc_context

    before = [read() for read, _ in STATES]
    with rc_context():
        try:
            yield
        finally:
            for (_, restore), state in zip(STATES, before, strict=True):
                restore(state)
            if "torch._dynamo" in sys.modules:  # it compiles a function a few times per process
                torch._dynamo.reset()

"""When tests of Triton's kernels run, and on which device."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_DEVICE = IS_INTERPRETED or torch.cuda.is_available()
DEVICE = "cuda" if torch.cuda.is_available() and not IS_INTERPRETED else "cpu"
HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = [
    pytest.mark.triton,
    pytest.mark.skipif(
        not (HAS_TRITON and HAS_DEVICE),
        reason="no Triton with a GPU or its interpreter (make test-triton)",
    ),
    # of numpy, about infinities that the kernels mean
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]

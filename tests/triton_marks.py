"""When tests of Triton's kernels run, and on which device."""

import importlib.util
import os
from types import SimpleNamespace

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
    # from numpy, about the kernels' infinities
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]


def prepare_interpreter(patch):
    """Replace the functions of Triton's language at launches alone.

    Triton's interpreter looks for them again at each call inside a kernel: half of its time.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    replace_in = interpreter._patch_lang
    everywhere = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})

    def call(function, *args, **kwargs):
        return function.rewrite()(*args, **kwargs)

    patch.setattr(interpreter, "_patch_lang", lambda kernel: replace_in(everywhere))
    patch.setattr(interpreter.InterpretedFunction, "__call__", call)


def choose_implementation(implementation, patch):
    """Compute maps and losses by the C++ `kernels`, by `torch` alone or by `triton`."""
    from headwise.ops import check
    from headwise.ops.cpp import build, call
    from headwise.ops.losses import triton as triton_losses
    from headwise.ops.maps import triton as triton_maps
    from headwise.ops.triton import device as triton_device

    if implementation == "triton":
        patch.setattr(
            triton_device, "supports", lambda values: values.dtype in triton_device.DTYPES
        )
        patch.setattr(check, "failure", lambda library: None)
        if IS_INTERPRETED:  # it is slow for each program
            patch.setattr(triton_maps, "SHAPES", {triton_maps.MAX_BLOCK: (64, 1)})
        for block in ("READ_BLOCK", "WRITE_BLOCK"):  # large vocabularies take several blocks
            patch.setattr(triton_losses, block, 1024)
    if implementation != "kernels":
        patch.setattr(call, "supports", lambda scores: False)
    elif build.unavailable_reason() is not None:
        pytest.skip(str(build.unavailable_reason()))

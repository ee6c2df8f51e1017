"""The benchmark counts the matrix products of a training step."""

import math

import pytest
import torch
from benchmarks.matmul_share import (
    TOKENS,
    VOCABULARY,
    bare_products,
    make_updates,
    products,
)
from benchmarks.updates import model_config
from torch.utils.flop_counter import FlopCounterMode

from headwise.ops.flops import register_flops

pytestmark = pytest.mark.slow


def test_products_equal_those_of_a_training_step():
    register_flops()
    # in bf16 all products of linear maps are counted; attention may be a single operator
    shapes = products(model_config("tiny"), VOCABULARY["tiny"], TOKENS // 32, 32)
    for call in (
        make_updates("tiny", "softmax", 32, "bf16"),
        bare_products(shapes, torch.float32),
        bare_products(shapes, torch.float32, as_in_step=True),
    ):
        with FlopCounterMode(display=False) as counter:
            call()
        counts = counter.get_flop_counts()["Global"]
        n_flops = sum(
            count
            for kind, count in counts.items()
            if str(kind) in ("aten.mm", "aten.addmm", "mkldnn._linear_pointwise")
        )
        linear = (2 * math.prod(s) * count for s, count in shapes.items() if len(s) == 3)
        assert n_flops == sum(linear)
    assert sum(count for s, count in shapes.items() if len(s) == 4) == 6 * (2 + 2 * 2)

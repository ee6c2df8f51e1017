"""The benchmark counts the products that a step has."""

from __future__ import annotations

import math

import pytest
from benchmarks.matmul_share import TOKENS, VOCABULARY, make_updates, products
from benchmarks.updates import model_config
from torch.utils.flop_counter import FlopCounterMode

pytestmark = pytest.mark.slow


def test_products_are_those_of_a_step() -> None:
    # in bf16 all products of linear maps are seen; attention may be one operator of its own
    update = make_updates("tiny", "softmax", 32, "bf16")
    with FlopCounterMode(display=False) as counter:
        update()
    seen = counter.get_flop_counts()["Global"]
    found = sum(
        count
        for kind, count in seen.items()
        if str(kind) in ("aten.mm", "aten.addmm", "mkldnn._linear_pointwise")
    )
    shapes = products(model_config("tiny"), VOCABULARY["tiny"], TOKENS // 32, 32)
    assert found == sum(2 * math.prod(s) * count for s, count in shapes.items() if len(s) == 3)
    assert sum(count for s, count in shapes.items() if len(s) == 4) == 6 * (2 + 2 * 2)

"""FLOPs of our operators for torch's counter, `torch.utils.flop_counter.FlopCounterMode`.

Formulas get the shapes of the tensors, and return 2 per multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

from headwise.ops import linear
from headwise.ops.attention import cpu, cpu_few  # noqa: F401 (they define the operators)


def register_flops() -> None:
    """Make torch's counter count our operators; call it before the counting."""
    ours, oneDNN = torch.ops.headwise, torch.ops.mkldnn
    formulas: dict[Any, Callable[..., int]] = {
        ours.attention: _attention,
        ours.attention_of_few: _attention,
        ours.attention_backward: _attention_backward,
    }
    if linear.DTYPES:
        formulas[oneDNN._linear_pointwise] = _linear
    for operator, formula in formulas.items():
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of the two forward matmuls."""
    return _pairs(query, key) * 2 * int(query[3] + value[3])


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of five matmuls: scores again, and two gradients per forward matmul."""
    return _pairs(query, key) * 2 * int(3 * query[3] + 2 * value[3])


def _pairs(query: Any, key: Any) -> int:
    return int(query[0] * query[1] * query[2] * key[2])


def _linear(shape: Any, w_shape: Any, *_: Any, **__: Any) -> int:
    return int(2 * math.prod(shape) * w_shape[0])

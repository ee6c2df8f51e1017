"""Weights as bytes: what is empty on a page is exactly 0 in the model, and nothing else is."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.page.weights import BARRED, ZERO, CodedWeights, coded, packed

FLOATS = st.floats(-8, 8, width=32, allow_subnormal=True)


def decoded(found: CodedWeights) -> np.ndarray:
    """What the script of the page makes of the bytes."""
    codes = found.codes_HQK.astype(np.float64)
    signed = np.array(found.signed)[:, None, None]
    levels = np.where(signed, 127.0, 254.0)
    is_negative = signed & (codes > 127) & (codes != BARRED)
    sizes = np.array(found.scales)[:, None, None] * ((codes - 127 * is_negative) / levels) ** 2
    sizes[(codes == ZERO) | (codes == BARRED)] = 0
    return np.where(is_negative, -sizes, sizes)


def code(values: list[float]) -> CodedWeights:
    """Of one head and one query that sees all keys."""
    weights = torch.tensor(values).view(1, 1, -1)
    return coded(weights, torch.ones_like(weights, dtype=torch.bool))


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_empty_is_exactly_zero_and_nothing_else(values: list[float]) -> None:
    weights = torch.tensor(values)
    codes = code(values).codes_HQK.ravel()
    assert ((codes == ZERO) == (weights == 0).numpy()).all()
    assert (codes != BARRED).all()


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_a_weight_comes_back_with_its_sign_and_a_small_error(values: list[float]) -> None:
    weights = torch.tensor(values).double().numpy()
    found = code(values)
    back = decoded(found).ravel()
    ((scale,), (is_signed,)) = found.scales, found.signed
    sizes = np.abs(weights) / scale
    # half a level at the root, and a whole one for the least, which are lifted to the first
    step = 1 / (127 if is_signed else 254)
    assert (np.abs(back - weights) <= scale * (np.sqrt(sizes) * step + step**2) + 1e-12).all()
    assert (np.sign(back) == np.sign(weights)).all()


def test_out_of_sight_is_no_zero() -> None:
    weights_HQK = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.5, 0.5]]])
    allowed_HQK = torch.tensor([[[True, False], [True, True]], [[True, True], [True, True]]])
    codes = coded(weights_HQK, allowed_HQK).codes_HQK.tolist()
    assert codes[0] == [[254, BARRED], [ZERO, 254]]
    assert codes[1][0] == [254, ZERO]


def test_heads_have_scales_of_their_own() -> None:
    weights_HQK = torch.tensor([[[0.25, 0.5]], [[-4.0, 2.0]]])
    found = coded(weights_HQK, torch.ones(2, 1, 2, dtype=torch.bool))
    assert found.scales == [1.0, 4.0]
    assert found.signed == [False, True]
    assert found.codes_HQK.tolist() == [[[127, 180]], [[254, 90]]]


def test_bytes_are_packed_in_order() -> None:
    first, second = np.arange(6, dtype=np.uint8).reshape(1, 2, 3), np.full((1, 1, 2), 9, np.uint8)
    bytes_back = zlib.decompress(base64.b64decode(packed([first, second])))
    assert list(bytes_back) == [0, 1, 2, 3, 4, 5, 9, 9]

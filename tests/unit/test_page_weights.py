"""Weights of a page: rounding keeps exact zeros and signs, packing keeps the order."""

import base64
import zlib

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.page.weights import packed, rounded


@given(st.lists(st.floats(-8, 8, width=32, allow_subnormal=True), min_size=1, max_size=20))
def test_rounding_keeps_the_sign_and_nearly_the_value(values):
    weights_HQK = torch.tensor(values).view(1, 1, -1)
    result = rounded(weights_HQK, torch.ones_like(weights_HQK, dtype=torch.bool)).ravel()
    # the smallest float32 numbers have few digits themselves
    np.testing.assert_allclose(result, values, rtol=0.004, atol=2e-45)
    assert (np.sign(result) == np.sign(values)).all()


def test_masked_weights_are_nan_and_heads_are_packed_in_order():
    weights_HQK = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.25, 0.75], [0.5, -4.0]]])
    allowed_HQK = torch.tensor([[[True, False], [True, True]], [[True, True], [True, True]]])
    result = rounded(weights_HQK, allowed_HQK)
    unpacked = zlib.decompress(base64.b64decode(packed([result, result[1:, :1]])))
    expected = [1, np.nan, 0, 1, 0.25, 0.75, 0.5, -4, 0.25, 0.75]
    np.testing.assert_array_equal(np.frombuffer(unpacked, "<f4"), expected)

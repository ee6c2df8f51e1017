"""Attention weights as compact text, for a page with every head.

Axes: H heads, Q queries, K keys.

0 means exactly 0, NaN a masked key. Weights are rounded to eight binary digits, an error of at most
0.4 %: full precision would double the size of the page.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from torch import Tensor

N_DIGITS = 8

Weights = npt.NDArray[np.float32]


def rounded(weights_HQK: Tensor, allowed_HQK: Tensor) -> Weights:
    """Round finite weights to `N_DIGITS` binary digits; NaN at masked keys.

    Args:
        weights_HQK: 0 at masked keys.
        allowed_HQK: True where a query may attend to a key.
    """
    fractions, exponents = np.frexp(weights_HQK.float().cpu().numpy())
    weights: Weights = np.ldexp(np.rint(fractions * 2**N_DIGITS) / 2**N_DIGITS, exponents)
    weights[~allowed_HQK.cpu().numpy()] = np.nan
    return weights


def packed(weights: Iterable[Weights]) -> str:
    """Concatenate the weights of several attentions; zlib, then base64."""
    data = b"".join(block.astype("<f4").tobytes() for block in weights)
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")

"""Attention weights as compact text, for a page with every head.

Axes: H heads, Q queries, K keys.

0 means exactly 0, NaN a masked key. Weights are rounded to eight binary digits, an error of at most
0.4 %: full precision would double the size of the page.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Sequence

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


def by_cell(weights_HQK: Weights, shape: Sequence[int], n_start: int) -> Weights:
    """Return the weights (H, Q, n_start + cells): sums over the channels of a pixel.

    Values without a key are masked.

    Args:
        shape: rows, columns and channels of an image; (samples,) of a sequence.
        n_start: number of keys before the first value.
    """
    n_values, channels = math.prod(shape), shape[2] if len(shape) > 2 else 1
    missing = ((0, 0), (0, 0), (0, n_start + n_values - weights_HQK.shape[2]))
    padded_HQK = np.pad(weights_HQK, missing, constant_values=np.nan)
    cells = n_values // channels, channels
    cells_HQNC = padded_HQK[..., n_start:].reshape(*padded_HQK.shape[:2], *cells)
    sums_HQN = np.where(np.isnan(cells_HQNC).all(-1), np.nan, np.nansum(cells_HQNC, -1))
    return np.concatenate((padded_HQK[..., :n_start], sums_HQN.astype(np.float32)), -1)


def packed(weights: Iterable[Weights]) -> str:
    """Concatenate the weights of several attentions; zlib, then base64."""
    data = b"".join(block.astype("<f4").tobytes() for block in weights)
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")

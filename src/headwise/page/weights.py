"""Attention weights as text: small enough for a page that holds every head.

Letters: H heads, Q queries, K keys.

0 is exactly 0 and nothing else, so that what is empty on the page is empty in the model. A key that
the query may not see is not a number. Of a weight the first eight binary digits are kept, an error
of 0.4 % at most: the rest would make the page twice as large.
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
    """Finite weights with few digits, NaN where a query may not see a key.

    Args:
        weights_HQK: 0 where nothing is allowed.
        allowed_HQK: True where a query may see a key.
    """
    fractions, exponents = np.frexp(weights_HQK.float().cpu().numpy())
    kept: Weights = np.ldexp(np.rint(fractions * 2**N_DIGITS) / 2**N_DIGITS, exponents)
    kept[~allowed_HQK.cpu().numpy()] = np.nan
    return kept


def packed(weights: Iterable[Weights]) -> str:
    """Several attentions one behind the other, deflated (zlib) and in base64."""
    joined = b"".join(block.astype("<f4").tobytes() for block in weights)
    return base64.b64encode(zlib.compress(joined, 9)).decode("ascii")

"""Attention weights as bytes: one a weight, small enough for a page that holds every head.

Letters: H heads, Q queries, K keys.

0 is exactly 0 and nothing else: a weight however small is at least 1, so that what is empty on the
page is empty in the model. 255 is a key that the query may not see. What lies between is the
square root of the weight, whose steps are finer where weights are small: the error of a weight w
is at most √w / 254 (of signed heads √w / 127).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

ZERO, BARRED = 0, 255
N_LEVELS, N_SIGNED_LEVELS = 254, 127

Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class CodedWeights:
    """The weights of one attention on one sentence.

    Attributes:
        codes_HQK: one byte a weight. A head without weights below 0 has the levels 1 to 254; one
            with them 1 to 127 above 0, and 128 to 254 (-1 to -127) below.
        scales: of each head, what the highest level stands for; 1 where no weight is larger.
        signed: of each head, whether it has weights below 0.
    """

    codes_HQK: Codes
    scales: list[float]
    signed: list[bool]


def coded(weights_HQK: Tensor, allowed_HQK: Tensor) -> CodedWeights:
    """Finite weights as bytes.

    Args:
        weights_HQK: 0 where nothing is allowed.
        allowed_HQK: True where a query may see a key.
    """
    weights = weights_HQK.double().cpu().numpy()
    sizes = np.abs(weights)
    scales = np.maximum(1.0, sizes.max(axis=(1, 2), initial=0.0))
    signed = [bool(head.any()) for head in weights < 0]
    n_levels = np.where(signed, N_SIGNED_LEVELS, N_LEVELS)[:, None, None]
    levels = np.clip(np.rint(n_levels * np.sqrt(sizes / scales[:, None, None])), 1, n_levels)
    levels += N_SIGNED_LEVELS * (weights < 0)
    levels[weights == 0] = ZERO
    levels[~allowed_HQK.cpu().numpy()] = BARRED
    return CodedWeights(levels.astype(np.uint8), scales.tolist(), signed)


def packed(blocks: Sequence[Codes]) -> str:
    """The bytes of several attentions one behind the other, deflated (zlib) and in base64."""
    joined = b"".join(block.tobytes() for block in blocks)
    return base64.b64encode(zlib.compress(joined, 9)).decode("ascii")

"""Images as patches, and random shifts and flips of training images.

Axes: B images, H rows, W columns, C channels, N patches, P values of a patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.integer[Any]]


def grid_of(shape: Sequence[int], patch: int) -> tuple[int, int]:
    """Rows and columns of patches of images (H, W, C)."""
    return shape[0] // patch, shape[1] // patch


def patches(images_BHWC: Bytes, patch: int) -> Bytes:
    """Patches (B, N, P) of `patch` rows and columns, row by row, with P = patch² C values."""
    n, _, _, channels = images_BHWC.shape
    rows, columns = grid_of(images_BHWC.shape[1:], patch)
    cut = images_BHWC.reshape(n, rows, patch, columns, patch, channels).swapaxes(2, 3)
    return np.ascontiguousarray(cut).reshape(n, rows * columns, patch**2 * channels)


def augmented(images_BHWC: Bytes, shift: int, flip: bool, seed: Sequence[int], rows: Ints) -> Bytes:
    """Images that are shifted and mirrored at random.

    Args:
        shift: maximum number of pixels, up or down and to a side; zeros come in.
        flip: whether left and right of half of the images are exchanged.
        seed: with the number of its row, determines the changes of an image.
        rows: numbers of the images in their split.
    """
    if not (shift or flip):
        return images_BHWC
    _, height, width, _ = images_BHWC.shape
    padded = np.pad(images_BHWC, ((0, 0), (shift, shift), (shift, shift), (0, 0)))
    changed = np.empty_like(images_BHWC)
    for image, source, row in zip(changed, padded, rows.tolist(), strict=True):
        top, left, is_flipped = np.random.default_rng([*seed, row]).integers(
            (2 * shift + 1, 2 * shift + 1, 1 + flip)
        )
        window = source[top : top + height, left : left + width]
        image[:] = window[:, ::-1] if is_flipped else window
    return changed

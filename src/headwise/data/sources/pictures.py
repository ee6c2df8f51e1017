"""Images as arrays of bytes (H, W, C), from files with many images or one picture; their labels.

The name of a file with many images selects its reader:

- `*.bin`: CIFAR-10's binary version: a label, then the planes of red, green and blue;
- `*.npz`: the shards of Downsampled ImageNet, whose array `data` has the same planes in rows;
- `*-ubyte`: MNIST's IDX format, grey, or labels, may be `.gz`;
- `*.npy`: arrays (N, H, W, C) or, grey, (N, H, W).

Axes: N images, H rows, W columns, C channels.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from math import prod
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from headwise.data.sources.lines import READ_ERRORS
from headwise.errors import DataError
from headwise.files import is_stream, replacing

Image = npt.NDArray[np.uint8]
Shape = tuple[int, ...]
T = TypeVar("T")
Readers = dict[str, Callable[[IO[bytes], str, Shape], Iterator[T]]]
IDX_IMAGES, IDX_LABELS = 0x803, 0x801  # unsigned bytes in three dimensions, or in one
MODES = {"1": "L", "P": "RGB"}  # of Pillow, whose values another mode has without loss


def stored_images(stream: IO[bytes], name: str, shape: Shape) -> Iterator[Image]:
    """Images of an open file with many images, streamed.

    Args:
        stream: the unpacked file.
        name: of the file.
        shape: expected (H, W, C), which planes in rows do not tell.

    Raises:
        DataError: another format, or a truncated or damaged file.
    """
    return _read(READERS, "images", stream, name, shape)


def stored_labels(stream: IO[bytes], name: str, shape: Shape) -> Iterator[int]:
    """Numbers of the classes of images, of an open file of CIFAR-10 or MNIST; see `stored_images`.

    Raises:
        DataError: another format, or a truncated or damaged file.
    """
    return _read(LABEL_READERS, "labels", stream, name, shape)


def _read(
    readers: Readers[T], content: str, stream: IO[bytes], name: str, shape: Shape
) -> Iterator[T]:
    ending = next((key for key in readers if name.removesuffix(".gz").endswith(key)), None)
    if ending is None:
        raise DataError(f"{name} must be a {', '.join(readers)} file of {content}")
    try:
        yield from readers[ending](stream, name, shape)
    except (*READ_ERRORS, ValueError, KeyError, struct.error) as error:
        raise DataError(
            f"{name} is damaged or not a {ending} file of {content}: {error}"
        ) from error


def picture(path: Path) -> Image:
    """The values (H, W, C) of a picture file, upright as viewers show it (EXIF).

    Raises:
        DataError: not a picture, or values other than 8 bits of grey or RGB of one image.
    """
    from PIL import Image as Pillow
    from PIL import ImageOps

    try:
        # Pillow reads a file in several places, which a pipe does not allow
        source = io.BytesIO(path.read_bytes()) if is_stream(path) else path
        with Pillow.open(source) as opened:
            lost = _lost_values(opened)
            image: Any = opened
            with suppress(SyntaxError, struct.error):  # of EXIF that cannot be read
                image = ImageOps.exif_transpose(opened)
            image = image.convert(MODES.get(image.mode, image.mode))
    except (OSError, SyntaxError, ValueError, Pillow.DecompressionBombError) as error:
        raise DataError(f"{path} is not a picture that can be read: {error}") from error
    if lost or image.mode not in ("L", "RGB"):
        lost = lost or f"Pillow's mode {image.mode} with {len(image.getbands())} channels"
        raise DataError(
            f"{path} must be grey or RGB with 8 bits per channel, got {lost}. Convert it, for "
            "example with magick OLD[0] -colorspace sRGB -alpha remove -depth 8 NEW.png"
        )
    return np.atleast_3d(np.asarray(image, np.uint8))


def _lost_values(opened: Any) -> str:
    """What Pillow leaves out of an open picture in one of the modes 1, L, P and RGB."""
    # the second image of an MPO, a JPEG of a phone or camera, is one that no viewer shows
    if getattr(opened, "is_animated", False) and opened.format != "MPO":
        return "several frames"
    # of BMP, ";16" alone are 5 or 6 bits per channel; "ppm" scales values of another maximum
    if re.search(r";16[BLN]|SGI16|'ppm'", repr(opened.tile)):
        return "another number of bits"
    may_hide = opened.mode == "P" or "transparency" in opened.info
    if may_hide and opened.convert("RGBA").getchannel("A").getextrema()[0] < 255:
        return "transparent pixels"
    return ""


def write_png(path: Path, image: Image) -> None:
    """Write a grey or RGB image (H, W, C), atomically."""
    from PIL import Image as Pillow

    with replacing(path) as temporary:
        Pillow.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(temporary, "PNG")


def _records(stream: IO[bytes], size: int, n: int | None, name: str) -> Iterator[Image]:
    """Records of `size` bytes: `n` of them, or all up to the end of the file."""
    for i in count() if n is None else range(n):
        record = stream.read(size)
        if not record and n is None:
            return
        if len(record) < size:
            raise DataError(f"{name} is truncated after image {i}")
        yield np.frombuffer(record, np.uint8)


def _cifar(stream: IO[bytes], name: str, shape: Shape) -> Iterator[Image]:
    for record in _records(stream, 1 + prod(shape), None, name):
        yield _of_planes(record[1:], shape)


def _cifar_labels(stream: IO[bytes], name: str, shape: Shape) -> Iterator[int]:
    for record in _records(stream, 1 + prod(shape), None, name):
        yield int(record[0])


def _npz(stream: IO[bytes], name: str, shape: Shape) -> Iterator[Image]:
    with zipfile.ZipFile(stream) as arrays, arrays.open("data.npy") as data:
        yield from _npy(data, f"{name}, array data", shape)


def _idx(stream: IO[bytes], name: str, shape: Shape) -> Iterator[Image]:
    kind, n, height, width = struct.unpack(">4I", stream.read(16))
    if kind != IDX_IMAGES:
        raise DataError(f"{name} has no images: its magic number is {kind}, not {IDX_IMAGES}")
    for record in _records(stream, height * width, n, name):
        yield record.reshape(height, width, 1)


def _idx_labels(stream: IO[bytes], name: str, shape: Shape) -> Iterator[int]:
    kind, n = struct.unpack(">2I", stream.read(8))
    if kind != IDX_LABELS:
        raise DataError(f"{name} has no labels: its magic number is {kind}, not {IDX_LABELS}")
    for record in _records(stream, 1, n, name):
        yield int(record[0])


def _npy(stream: IO[bytes], name: str, shape: Shape) -> Iterator[Image]:
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
    (n, *sizes), is_fortran, dtype = header[version > (1, 0)](stream)
    in_rows = sizes == [prod(shape)]
    if dtype != np.uint8 or is_fortran or not (in_rows or len(sizes) in (2, 3)):
        raise DataError(
            f"{name} must be uint8 of shape (N, H, W, C) in C order, got {dtype} of shape "
            f"{(n, *sizes)}{' in Fortran order' * is_fortran}"
        )
    for record in _records(stream, prod(sizes), n, name):
        yield _of_planes(record, shape) if in_rows else np.atleast_3d(record.reshape(sizes))


def _of_planes(values: Image, shape: Shape) -> Image:
    height, width, channels = shape
    return values.reshape(channels, height, width).transpose(1, 2, 0)


READERS: Readers[Image] = {".bin": _cifar, ".npz": _npz, "-ubyte": _idx, ".npy": _npy}
LABEL_READERS: Readers[int] = {".bin": _cifar_labels, "-ubyte": _idx_labels}

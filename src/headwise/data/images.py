"""Images of one size: as documents (row by row, the channels of a pixel together), or labelled.

Further down their patches, and random shifts and flips of training images. Axes: B images, H rows,
W columns, C channels, N patches, P values of a patch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from math import prod
from pathlib import Path
from typing import IO, Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from headwise.config.data import ImageDataConfig
from headwise.data.file_corpus import FileCorpus, files_below
from headwise.data.sources.archive import Archives, Located, open_file
from headwise.data.sources.lines import check_text, decoded_lines
from headwise.data.sources.pictures import Image, Shape, picture, stored_images, stored_labels
from headwise.errors import DataError, refuse, require
from headwise.files import check_file_name, check_relative_path, nfc

ImagePart = dict[str, Any]
T = TypeVar("T")
Ints = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class ImageCorpus(FileCorpus):
    """Published files of images, or the user's own: `train.npy`, or pictures below `train/`.

    Labels of a part of a split are in the archive `labels`, or else in the records of its images;
    the member `names` of the archive has a name per label. Labelled pictures of a folder of the
    user are in a folder per class, as for torchvision's `ImageFolder`: `train/CLASS/…/NAME.png`.

    Attributes:
        labelled: whether the labels are read, for classification.
    """

    samples: ClassVar[str] = "headwise.tasks.stream.samples.ImageSamples"

    config: ImageDataConfig
    labelled: bool = False

    def __post_init__(self) -> None:
        shape = self.config.shape
        is_shape = len(shape) == 3 and min(shape) >= 1
        require(is_shape, "data.shape", "rows, columns and channels", shape)
        self.check_sizes()
        for split, parts in self.config.splits.items():
            check_file_name("data.splits", split)
            files = [file for part in parts for file in part.get("members", [])]
            for file in files + [part["names"] for part in parts if "names" in part]:
                check_relative_path(f"data.splits.{split}.members", file)

    def check_sizes(self) -> None:
        """Raise `ConfigError` for sizes of windows, or of patches, that do not fit the shape."""
        if not self.labelled:
            values, window = prod(self.config.shape), self.config.window
            allowed = f"a multiple or an equal part of the {values} values of an image"
            fits = window % values == 0 or values % window == 0
            require(fits, "data.window", allowed, window)
            return
        (*sizes, _), patch, shift = self.config.shape, self.config.patch, self.config.shift
        allowed = f"a divisor of the rows and columns of data.shape={self.config.shape}"
        fits = patch >= 1 and not any(size % patch for size in sizes)
        require(fits, "data.patch", allowed, patch)
        require(0 <= shift < min(sizes), "data.shift", f"from 0 to {min(sizes) - 1}", shift)

    @functools.cached_property
    def archives(self) -> Archives:
        """The published archives."""
        return Archives(self.config.name, self.config.archives, self.cache_dir, self.folder)

    def packages(self, splits: Sequence[str]) -> Sequence[str]:
        files = () if self.config.splits else (path for s in splits for path in self.files(s))
        return ["pillow"] if any(path.suffix != ".npy" for path in files) else []

    def settings(self, split: str) -> Any:
        return [self.config.shape, self.parts(split) if self.config.splits else []]

    def files(self, split: str) -> list[Path]:
        """See `FileCorpus.files`: of images, then of labels; downloads missing archives."""
        if self.config.splits:
            parts = self.parts(split)
            parts = [*parts, *map(_of_labels, parts)] if self.labelled else parts
            return list(dict.fromkeys(path for part in parts for path, _ in self.located(part)))
        if self.labelled:
            return self._files_of_classes(split)
        array = self.folder and self.folder / f"{split}.npy"
        if array and array.is_file():
            return [array]
        return self.files_of_folder(split, "folders of pictures, or arrays (train.npy)")

    def _files_of_classes(self, split: str) -> list[Path]:
        """The pictures of a split; a `DataError` for a class without any."""
        files = self.files_of_folder(split, "a folder of pictures per class")
        top = (self.folder or Path()) / split
        classes = {path.parts[len(top.parts)] for path in files}
        for folder in sorted(top.glob("[!.]*/")):
            if folder.name not in classes:
                files_below(folder, "pictures of this class, or be removed")
        return files

    def chunks(self, split: str) -> Iterator[bytes]:
        """See `FileCorpus.chunks`, and `images`."""
        return (image.tobytes() for image in self.images(split))

    def images(self, split: str) -> Iterator[Image]:
        """The images (H, W, C) of a split.

        Raises:
            DataError: a file that has no images, or images of another shape.
        """
        shape = tuple(self.config.shape)
        for name, image in self._images(split):
            if image.shape != shape:
                sizes = ",".join(map(str, image.shape))
                raise DataError(
                    f"{name} has the shape [{sizes}], but data.shape={list(shape)}. Images have "
                    f"one shape; for this one, set data.shape=[{sizes}] data.window={image.size}"
                )
            yield image

    def _images(self, split: str) -> Iterator[tuple[str, Image]]:
        """The images of a split, with names for messages."""
        if self.config.splits:
            for part in self.parts(split):
                yield from self.values_of(part, stored_images)
            return
        for path in self.files(split):
            if path.suffix == ".npy":
                for file in _opened([(path, ())]):
                    yield from self._stored(stored_images, *file)
            else:
                yield str(path), picture(path)

    def _stored(
        self, read: Callable[[IO[bytes], str, Shape], Iterator[T]], stream: IO[bytes], name: str
    ) -> Iterator[tuple[str, T]]:
        values = read(stream, name, tuple(self.config.shape))
        return ((f"{name}, image {i}", value) for i, value in enumerate(values, 1))

    def parts(self, split: str) -> list[ImagePart]:
        """Where the images of a split are in the archives."""
        if split not in self.config.splits:
            raise refuse(f"a split of data={self.config.name}", split, self.config.splits)
        parts: list[ImagePart] = self.config.splits[split]
        return parts

    def values_of(
        self, part: ImagePart, read: Callable[[IO[bytes], str, Shape], Iterator[T]]
    ) -> Iterator[tuple[str, T]]:
        """Images or labels of a part: from `images[0]` to before `images[1]`, or all.

        Args:
            part: of `parts`.
            read: `stored_images` or `stored_labels`.
        """
        first, end = part.get("images", (0, None))
        opened = _opened(self.located(part))
        values = chain.from_iterable(self._stored(read, *file) for file in opened)
        n = 0
        for n, value in enumerate(islice(values, first, end), 1):  # noqa: B007
            yield value
        if end is not None and n < end - first:
            path = self.located(part)[-1][0]
            content = "labels" if read is stored_labels else "images"
            name = self.config.name
            raise DataError(f"{path} has too few {content} for {first} to {end} of {name}")

    def located(self, part: ImagePart) -> list[Located]:
        """The files of a part."""
        return self.archives.located(part["archive"], part.get("members", []))

    def rows(self, split: str) -> Iterator[tuple[Image, str]]:
        """The images (H, W, C) of a split, each with its label.

        Raises:
            DataError: a damaged file, images of another shape, or no label for an image.
        """
        rows = zip_longest(self.images(split), self._labels(split))
        for image, label in rows:
            if image is None or label is None:
                source = self.files(split)[-1]
                raise DataError(f"{source} has another number of labels than there are images")
            yield image, label

    def names(self, split: str) -> Iterator[str]:
        return (name for name, _ in self._images(split))

    def _labels(self, split: str) -> Iterator[str]:
        if not self.config.splits:
            return (self._folder_of(path, split) for path in self.files(split))
        return chain.from_iterable(map(self._labels_of, self.parts(split)))

    def _folder_of(self, path: Path, split: str) -> str:
        """The folder in the folder of a split that has a file."""
        assert self.folder is not None
        folder, *below = path.relative_to(self.folder / split).parts
        if not below:
            raise DataError(f"{path} must be in a folder named after its class, in {path.parent}")
        check_text(folder, str(path))
        return nfc(folder)

    def _labels_of(self, part: ImagePart) -> Iterator[str]:
        names = self._names(part)
        for name, number in self.values_of(_of_labels(part), stored_labels):
            if names and number >= len(names):
                raise DataError(
                    f"{name} has the label {number}, but {len(names)} labels have names"
                )
            yield names[number] if names else str(number)

    def _names(self, part: ImagePart) -> list[str]:
        """The names of the labels 0, 1, ...; empty: their numbers."""
        if "names" not in part:
            return []
        files = _opened(self.archives.located(part["archive"], [part["names"]]))
        return [line for file in files for line in map(nfc, decoded_lines(*file)) if line]


def _opened(files: Sequence[Located]) -> Iterator[tuple[IO[bytes], str]]:
    """Files, one after the other, with their names."""
    for path, members in files:
        with open_file(path, members) as opened:
            yield opened


def _of_labels(part: ImagePart) -> ImagePart:
    """The part with the labels of the images of a part."""
    return {**part, "archive": part.get("labels", part["archive"])}


def grid_of(shape: Sequence[int], patch: int) -> tuple[int, int]:
    """Rows and columns of patches of images (H, W, C)."""
    return shape[0] // patch, shape[1] // patch


def patches(images_BHWC: Image, patch: int) -> Image:
    """Patches (B, N, P) of `patch` rows and columns, row by row, with P = patch² C values."""
    n, _, _, channels = images_BHWC.shape
    rows, columns = grid_of(images_BHWC.shape[1:], patch)
    cut = images_BHWC.reshape(n, rows, patch, columns, patch, channels).swapaxes(2, 3)
    return np.ascontiguousarray(cut).reshape(n, rows * columns, patch**2 * channels)


def augmented(images_BHWC: Image, shift: int, flip: bool, seed: Sequence[int], rows: Ints) -> Image:
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

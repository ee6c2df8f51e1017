"""Images with the names of their classes: published sets, or one folder a class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from headwise.data.file_corpus import files_below
from headwise.data.images import ImageCorpus, ImagePart
from headwise.data.sources.lines import check_text, decoded_lines
from headwise.data.sources.pictures import Image, stored_labels
from headwise.errors import DataError, require
from headwise.file_names import nfc
from headwise.tasks.classification.inputs import ClassCorpus


@dataclass(frozen=True)
class LabelledImages(ImageCorpus, ClassCorpus):
    """Images of one shape with labels that are located but not encoded.

    Labels of a part of a split are in the archive `labels`, or else in the records of its images;
    the member `names` of the archive has a name per label. The pictures of a folder of the user
    are in a folder per class, as for torchvision's `ImageFolder`: `train/CLASS/…/NAME.png`.
    """

    def check_sizes(self) -> None:
        (*sizes, _), patch, shift = self.config.shape, self.config.patch, self.config.shift
        allowed = f"a divisor of the rows and columns of data.shape={self.config.shape}"
        fits = patch >= 1 and not any(size % patch for size in sizes)
        require(fits, "data.patch", allowed, patch)
        require(0 <= shift < min(sizes), "data.shift", f"from 0 to {min(sizes) - 1}", shift)

    def files(self, split: str) -> list[Path]:
        """See `FileCorpus.files`: of images, then of labels."""
        if not self.config.splits:
            files = self.files_of_folder(split, "a folder of pictures per class")
            top = (self.folder or Path()) / split
            classes = {path.parts[len(top.parts)] for path in files}
            for folder in sorted(top.glob("[!.]*/")):
                if folder.name not in classes:
                    files_below(folder, "pictures of this class, or be removed")
            return files
        parts = [*self.parts(split), *map(_of_labels, self.parts(split))]
        return list(dict.fromkeys(path for part in parts for path, _ in self.located(part)))

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
        files = self.streams({"archive": part["archive"], "members": [part["names"]]})
        return [line for opened in files for line in map(nfc, decoded_lines(*opened)) if line]


def _of_labels(part: ImagePart) -> ImagePart:
    """The part with the labels of the images of a part."""
    return {**part, "archive": part.get("labels", part["archive"])}

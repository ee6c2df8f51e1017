"""Samples of a trained model: their prompts and files, and those of validations."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from headwise.data.file_corpus import FileCorpus
from headwise.data.images import ImageCorpus
from headwise.data.lossless import content_ids, ids_text, lossless
from headwise.data.sources.origins import log_paths
from headwise.data.sources.pictures import Image, picture, write_png
from headwise.data.tokenizer import Tokenizer
from headwise.decode.sampling import Sampling, draw_samples
from headwise.errors import ConfigError, DataError, RunError, require
from headwise.files import write_text
from headwise.losses.loss import Loss
from headwise.model.family import Model
from headwise.model.single import SingleStack
from headwise.runs.folder import RunFolder
from headwise.tasks.stream.music import MusicCorpus, from_mu_law, read_codes, write_wav
from headwise.tasks.stream.stream import starts_document
from headwise.tasks.task import Outputs
from headwise.track.base import Tracker

SAMPLES = "samples"  # folder of a run
TABLE = ("update", "sample", "text")
BACKGROUND = 128  # of a grid of images: a grey
GAP = 2  # pixels between them

Row = Sequence[int]
Bytes = npt.NDArray[np.uint8]
C = TypeVar("C", bound=FileCorpus)

log = logging.getLogger(__name__)


class Samples(Generic[C]):
    """What samples are, for a kind of data: their prompts and their files.

    Args:
        corpus: data of the run.
        tokenizer: of the run.

    Attributes:
        suffix: of the file.
        at_validations: most tokens of a sample of a validation.
        size: tokens of a sample with its prompt, which is shorter, unless a user sets its length.
        limit: what determines `size`, for messages.
        prompt_length: first tokens of a prompt that are used, unless a user sets it; None: all.
        barred: ids that are not drawn.
    """

    suffix: ClassVar[str]
    at_validations: ClassVar[int] = 4096
    prompt_length: int | None = None

    def __init__(self, corpus: C, tokenizer: Tokenizer) -> None:
        self.corpus, self.tokenizer = corpus, tokenizer
        self.barred = tokenizer.barred_ids
        self.size = corpus.config.window
        self.limit = f"data.window={self.size}"

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `draw_samples`."""
        data = self.corpus.config
        return {"window": data.window, "barred": self.barred, "aligned": data.aligned}

    def ids(self, content: bytes) -> list[int]:
        """Return the ids of a prompt."""
        return cast("list[int]", content_ids(content, self.tokenizer).tolist())

    def values(self, row: Row) -> Bytes:
        """Return the values of images or music (N,), from 0 to 255."""
        return np.frombuffer(lossless(self.tokenizer).decode(row), np.uint8)

    def prompt(self, text: str) -> bytes:
        """Return the content of a text that a user gives."""
        name = self.corpus.config.name
        raise ConfigError(f"prompt must be null with data={name}; set prompt_file or prompt_split")

    def read(self, path: Path) -> bytes:
        """Return the content of a file that a user gives, which exists."""
        raise NotImplementedError

    def documents(self, split: str) -> Iterator[bytes]:
        """Return the images or pieces of a split."""
        log_paths(self.corpus.config, self.corpus.cache_dir)
        return self.corpus.chunks(split)

    def n_tokens(self, n_prompt: int, length: int | None) -> int:
        """Return the number of tokens that are drawn after a prompt, for a user's `length`."""
        return length or self.size - n_prompt

    def shown(self, rows: Sequence[Row], first: int = 1) -> str:
        """Return samples, numbered from `first`, as they are printed."""
        return ""

    def write(self, rows: Sequence[Row], path: Path, n_prompt: int = 0) -> list[Path]:
        """Write all samples to a file, or to several whose names begin with its stem.

        Args:
            rows: ids of each sample.
            path: of the file.
            n_prompt: number of the first ids that are its prompt.

        Returns:
            The files.
        """
        raise NotImplementedError

    def log(self, rows: Sequence[Row], paths: list[Path], tracker: Tracker, update: int) -> None:
        """Send samples of a validation, and their files, to a tracker."""
        raise NotImplementedError


class TextSamples(Samples[FileCorpus]):
    """Samples of a text, in one file of UTF-8 with a line before each.

    Documents start as in the training text, see `starts_document`: with `data.documents=line` after
    each line, with `blank_line` after each blank line. With `heading`, and without `documents`, a
    drawn text is one document, since the data and not the model say where another one starts.

    Bytes that are no character become U+FFFD, except incomplete characters at the end, which are
    left out.
    """

    suffix = ".txt"
    at_validations = 256

    @property
    def settings(self) -> dict[str, Any]:
        """See `Samples.settings`; with the starts of documents."""
        starts = functools.partial(starts_document, corpus=self.corpus, tokenizer=self.tokenizer)
        masked = self.corpus.config.document_mask
        return {**super().settings, "starts": starts, "masked": masked}

    def prompt(self, text: str) -> bytes:
        return text.encode()

    def read(self, path: Path) -> bytes:
        content = path.read_bytes()
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"prompt_file={path} is not UTF-8 ({error})") from error
        return content

    def documents(self, split: str) -> Iterator[bytes]:
        raise ConfigError("prompt_split must be null with text; set prompt or prompt_file")

    def text(self, row: Row) -> str:
        """Return the text of one sample."""
        return ids_text(np.array(row), self.tokenizer)

    def shown(self, rows: Sequence[Row], first: int = 1) -> str:
        numbered = enumerate(map(self.text, rows), start=first)
        return "".join(f"==== sample {number} ====\n{text}\n" for number, text in numbered)

    def write(self, rows: Sequence[Row], path: Path, n_prompt: int = 0) -> list[Path]:
        write_text(path, self.shown(rows))
        return [path]

    def log(self, rows: Sequence[Row], paths: list[Path], tracker: Tracker, update: int) -> None:
        """See `Samples.log`: a table of texts."""
        texts = enumerate(map(self.text, rows), start=1)
        tracker.log_table(SAMPLES, TABLE, [(update, *row) for row in texts])


class ImageSamples(Samples[ImageCorpus]):
    """Samples of images, in one png: a grid, row by row.

    With a prompt, each tile has two images: the given values alone, and the completed image. Grey
    values follow the last token of a sample. With other numbers of channels than one or three, the
    channels are grey images side by side.
    """

    suffix = ".png"

    def __init__(self, corpus: ImageCorpus, tokenizer: Tokenizer) -> None:
        super().__init__(corpus, tokenizer)
        self.shape = tuple(corpus.config.shape)
        self.size = math.prod(self.shape)
        self.limit = f"an image has {self.size} values"
        self.prompt_length = self.shape[0] // 2 * self.size // self.shape[0]  # upper half

    def read(self, path: Path) -> bytes:
        """See `Samples.read`: a picture of the shape of the data."""
        image = picture(path)
        if image.shape != self.shape:
            raise DataError(
                f"{path} has the shape {list(image.shape)} (rows, columns, channels), but the run "
                f"is on images of {list(self.shape)}"
            )
        return image.tobytes()

    def n_tokens(self, n_prompt: int, length: int | None) -> int:
        rest = self.size - n_prompt
        allowed = f"null or at most {rest}, the values that an image lacks"
        require(length is None or length <= rest, "length", allowed, length)
        return length or rest

    def image(self, row: Row) -> Image:
        """Return the image (H, W, C) of one sample."""
        values = np.full(self.size, BACKGROUND, np.uint8)
        values[: len(row)] = self.values(row)
        image = values.reshape(self.shape)
        is_picture = self.shape[2] in (1, 3)
        return image if is_picture else np.hstack(np.split(image, self.shape[2], axis=2))

    def write(self, rows: Sequence[Row], path: Path, n_prompt: int = 0) -> list[Path]:
        tiles = [self.image(row) for row in rows]
        if n_prompt:
            prompts = [self.image(row[:n_prompt]) for row in rows]
            tiles = [np.hstack(pair) for pair in zip(prompts, tiles, strict=True)]
        write_png(path, grid(tiles))
        return [path]

    def log(self, rows: Sequence[Row], paths: list[Path], tracker: Tracker, update: int) -> None:
        """See `Samples.log`: the grid."""
        tracker.log_image(SAMPLES, paths[0], update)


class MusicSamples(Samples[MusicCorpus]):
    """Samples of music, as wav: one file, or NAME-1.wav, NAME-2.wav and so on."""

    suffix = ".wav"

    def read(self, path: Path) -> bytes:
        """See `Samples.read`: audio at any sample rate."""
        return read_codes(path, self.corpus.config.sample_rate)

    def write(self, rows: Sequence[Row], path: Path, n_prompt: int = 0) -> list[Path]:
        names = [f"{path.stem}-{number}{path.suffix}" for number in range(1, len(rows) + 1)]
        paths = [path.with_name(name) for name in names] if len(rows) > 1 else [path]
        for row, file in zip(rows, paths, strict=True):
            write_wav(file, from_mu_law(self.values(row)), self.corpus.config.sample_rate)
        return paths

    def log(self, rows: Sequence[Row], paths: list[Path], tracker: Tracker, update: int) -> None:
        """See `Samples.log`: each sample with a player."""
        for number, path in enumerate(paths, start=1):
            tracker.log_audio(f"{SAMPLES}/{number}", path, update)


def grid(tiles: Sequence[Image]) -> Image:
    """Return one image with tiles (H, W, C) in order, as many in a row as rows, or one more."""
    n_columns = math.ceil(math.sqrt(len(tiles)))
    n_rows = -(-len(tiles) // n_columns)
    height, width, channels = tiles[0].shape
    sizes = n_rows * (height + GAP) + GAP, n_columns * (width + GAP) + GAP, channels
    image = np.full(sizes, BACKGROUND, np.uint8)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, n_columns)
        top, left = row * (height + GAP) + GAP, column * (width + GAP) + GAP
        image[top : top + height, left : left + width] = tile
    return image


def samples_path(folder: RunFolder, stem: str, samples: Samples[Any]) -> Path:
    """Return the path of a file of samples of a run, and make its folder."""
    path = folder.path / SAMPLES / f"{stem}{samples.suffix}"
    path.parent.mkdir(exist_ok=True)
    return path


@dataclass(frozen=True)
class ValidationSamples(Outputs):
    """Samples of a model in training, drawn with the same random numbers at each validation.

    Torch's generators are not used, so the training does not depend on it.

    Args:
        model: in training.
        loss: of the training.
        samples: folder of a run -> prompts and files.
        n: number of samples.
        seed: of the random numbers.
    """

    model: Model
    loss: Loss
    samples: Callable[[RunFolder], Samples[Any]]
    n: int
    seed: int

    def write_validation(self, folder: RunFolder, tracker: Tracker, update: int) -> None:
        """See `Outputs.write_validation`; the samples are drawn here, by the first rank alone."""
        samples, numbers = self.samples(folder), range(1, self.n + 1)
        assert isinstance(self.model, SingleStack)
        n_tokens, sampling = min(samples.size, samples.at_validations), Sampling(seed=self.seed)
        prompts: list[list[int]] = [[] for _ in numbers]
        arguments = self.model, self.loss.output_map, prompts, numbers, n_tokens, sampling
        try:
            rows = draw_samples(*arguments, **samples.settings)
        except RunError as error:  # a sparse output early in training
            log.warning("no samples at update %d: %s", update, error)
            return
        paths = samples.write(rows, samples_path(folder, f"update_{update:08d}", samples))
        samples.log(rows, paths, tracker, update)

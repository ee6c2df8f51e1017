"""The configs of density modelling: data, one per kind, and evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from omegaconf import MISSING

from headwise.config.text_and_paths import path


@dataclass
class DensityDataConfig:
    """Data whose values are predicted one by one.

    Attributes:
        aligned: whether training windows start at documents, or at equal parts of them.
        unit: of the metric: bits per byte or per dimension.
    """

    aligned: ClassVar[bool] = False
    unit: ClassVar[str] = "byte"

    _target_: str = MISSING
    tasks: list[str] = field(default_factory=lambda: ["density"])  # tasks that use it
    name: str = MISSING  # name of the data, as in data=
    dir: str | None = path()  # a folder of local files, used instead of downloads
    folder: str | None = None  # folder name under $HEADWISE_DATA
    train: str = "train"  # a split
    valid: str = "valid"
    test: list[str] = field(default_factory=lambda: ["test"])  # scored at the end of a run
    language: str | None = None  # language code; null: none, or unknown
    window: int = 256  # tokens that are read and scored together
    document_mask: bool = False  # documents in a window do not attend to each other
    stride: int = 8  # of patterns, suggested for this window
    label_smoothing: float = 0.0  # of the loss, suggested
    vocab_size: int = 8000  # suggested for text of this size
    max_updates: int = 100_000  # suggested for data of this size
    warmup_updates: int = 4000  # suggested for data of this size
    licence: str = MISSING
    notes: str = ""


@dataclass
class TextDataConfig(DensityDataConfig):
    """A text of one language; see `headwise.data.plain_text`."""

    _target_: str = "headwise.config.density_data.TextDataConfig"
    files: Any = path()  # split -> file, or a list of alternatives; null: SPLIT.txt
    file: str | None = path()  # one file with all splits
    split: list[float] = field(default_factory=list)  # its shares: train, valid and test
    column: str | None = None  # files are tables (tsv, csv, jsonl, parquet): the one with the text
    documents: str | None = None  # line, blank_line or heading; null: a split is one document
    downloads: list[Any] = field(default_factory=list)  # archives: {file, url, sha256}


@dataclass
class BuiltinTextConfig(DensityDataConfig):
    """English of the built-in corpus; see `headwise.data.builtin.text`."""

    _target_: str = "headwise.config.density_data.BuiltinTextConfig"
    seed: int = 1  # of the generator
    n_train: int = 30_000  # sentences
    n_valid: int = 500
    n_test: int = 1000


@dataclass
class ImageDataConfig(DensityDataConfig):
    """Images of one shape; see `headwise.data.images` and `headwise.data.labelled_images`."""

    aligned: ClassVar[bool] = True
    unit: ClassVar[str] = "dimension"

    _target_: str = "headwise.config.density_data.ImageDataConfig"
    shape: list[int] = field(default_factory=lambda: [32, 32, 3])  # rows, columns, channels
    archives: dict[str, Any] = field(default_factory=dict)  # name -> {files, downloads}
    # name -> [{archive, members, images}], with labels also {labels, names}
    splits: dict[str, Any] = field(default_factory=dict)
    patch: int = 4  # classification: rows and columns of a patch; 1: pixels by value
    shift: int = 0  # classification: training images are shifted by up to so many pixels
    flip: bool = False  # classification: half of the training images are mirrored
    label_fraction: float = 1.0  # classification: share of the training images, of every class
    labels: list[str] | None = None  # classification: names of the classes in order; null: sorted
    class_weights: Any = None  # classification: of the loss; null, balanced, or a list


@dataclass
class MusicDataConfig(DensityDataConfig):
    """Audio files; see `headwise.data.music`."""

    unit: ClassVar[str] = "dimension"

    _target_: str = "headwise.config.density_data.MusicDataConfig"
    sample_rate: int = 12_000  # Hz, to which audio is resampled


@dataclass
class WindowsConfig:
    """Evaluation of a density model in windows of `data.window` tokens."""

    _target_: str = "headwise.config.density_data.WindowsConfig"
    min_context: int = 0  # tokens before every scored one in its window; 0: windows side by side
    max_windows: int = 0  # score only so many, evenly spaced; 0: the whole split
    precision: str = "fp32"  # fp32, bf16 (autocast: bits differ), or auto as in training

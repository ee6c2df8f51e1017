"""The data configs of density modelling, one per kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from omegaconf import MISSING


@dataclass
class DensityDataConfig:
    """Data whose values are predicted one by one.

    Attributes:
        documents: whether every chunk of the corpus is read from the start token on.
        aligned: whether training windows start at documents, or at equal parts of them.
    """

    documents: ClassVar[bool] = False
    aligned: ClassVar[bool] = False

    _target_: str = MISSING
    tasks: list[str] = field(default_factory=lambda: ["density"])  # tasks that use it
    name: str = MISSING  # name of the data, as in data=
    dir: str | None = None  # a folder of local files, used instead of downloads
    folder: str | None = None  # folder name under $HEADWISE_DATA
    train: str = "train"  # a split
    valid: str = "valid"
    test: list[str] = field(default_factory=lambda: ["test"])  # scored at the end of a run
    language: str | None = None  # language code; null: none, or unknown
    window: int = 256  # tokens that are read and scored together
    unit: str = "byte"  # unit of the metric: bits per byte or per dimension
    vocab_size: int = 8000  # suggested for text of this size
    max_updates: int = 100_000  # suggested for data of this size
    warmup_updates: int = 4000  # suggested for data of this size
    licence: str = MISSING
    notes: str = ""


@dataclass
class TextDataConfig(DensityDataConfig):
    """A text of one language; see `headwise.data.plain_text`."""

    _target_: str = "headwise.config.density_data.TextDataConfig"


@dataclass
class ImageDataConfig(DensityDataConfig):
    """Images of one shape; see `headwise.data.images`."""

    documents: ClassVar[bool] = True
    aligned: ClassVar[bool] = True

    _target_: str = "headwise.config.density_data.ImageDataConfig"
    unit: str = "dimension"
    shape: list[int] = field(default_factory=lambda: [32, 32, 3])  # rows, columns, channels
    archives: dict[str, Any] = field(default_factory=dict)  # name -> {files, downloads}
    splits: dict[str, Any] = field(default_factory=dict)  # name -> [{archive, members, images}]


@dataclass
class MusicDataConfig(DensityDataConfig):
    """Audio files; see `headwise.data.music`."""

    documents: ClassVar[bool] = True

    _target_: str = "headwise.config.density_data.MusicDataConfig"
    unit: str = "dimension"
    sample_rate: int = 12_000  # Hz, to which audio is resampled

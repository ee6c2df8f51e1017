"""The settings of data: a dataclass for each kind; `_target_` names the class that reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from omegaconf import MISSING

from headwise.config.fields import bounded, changed_texts, path
from headwise.files import nfc

NAMES = {"labels", "columns", "text", "label", "pair"}  # of classes and columns


@dataclass
class FilesConfig:
    """Keys of all data in files."""

    _target_: str = MISSING  # the class of the corpus
    tasks: list[str] = field(default_factory=list)  # tasks that use it
    name: str = MISSING  # name of the data, as in data=
    dir: str | None = path()  # a folder of local files, used instead of downloads
    folder: str | None = None  # folder name under $HEADWISE_DATA
    train: str = "train"  # a split; of pairs and labelled text, several too: a+b
    valid: str = "valid"  # as train
    test: list[str] = field(default_factory=lambda: ["test"])  # scored at the end of a run
    vocab_size: int = 8000  # suggested for text of this size
    max_updates: int = 100_000  # suggested for data of this size
    warmup_updates: int = 4000  # suggested for data of this size
    licence: str = MISSING
    notes: str = ""

    def __post_init__(self) -> None:
        for key in vars(self).keys() & NAMES:
            setattr(self, key, changed_texts(nfc, getattr(self, key)))


@dataclass
class DensityDataConfig(FilesConfig):
    """Data whose values are predicted one by one.

    Attributes:
        aligned: whether training windows start at documents, or at equal parts of them.
        unit: of the metric: bits per byte or per dimension.
    """

    aligned: ClassVar[bool] = False
    unit: ClassVar[str] = "byte"

    tasks: list[str] = field(default_factory=lambda: ["density"])  # tasks that use it
    language: str | None = None  # language code; null: none, or unknown
    window: int = bounded(256, 1)  # tokens that are read and scored together
    document_mask: bool = False  # documents in a window do not attend to each other
    stride: int = 8  # of patterns, suggested for this window
    label_smoothing: float = 0.0  # of the loss, suggested


@dataclass
class TextDataConfig(DensityDataConfig):
    """A text of one language; see `headwise.tasks.stream.text`."""

    _target_: str = "headwise.tasks.stream.text.TextCorpus"
    files: Any = path()  # split -> file, or a list of alternatives; null: SPLIT.txt
    file: str | None = path()  # one file with all splits
    split: list[float] = field(default_factory=list)  # its shares: train, valid and test
    column: str | None = None  # files are tables (tsv, csv, jsonl, parquet): the one with the text
    documents: str | None = None  # line, blank_line or heading; null: a split is one document
    downloads: list[Any] = field(default_factory=list)  # archives: {file, url, sha256}


@dataclass
class BuiltinTextConfig(DensityDataConfig):
    """English of the built-in corpus; see `headwise.data.builtin.corpus`."""

    _target_: str = "headwise.data.builtin.corpus.BuiltinText"
    seed: int = 1  # of the generator
    n_train: int = 30_000  # sentences
    n_valid: int = 500
    n_test: int = 1000


@dataclass
class ImageDataConfig(DensityDataConfig):
    """Images of one shape, with or without labels; see `headwise.data.images`."""

    aligned: ClassVar[bool] = True
    unit: ClassVar[str] = "dimension"

    _target_: str = "headwise.data.images.ImageCorpus"
    shape: list[int] = field(default_factory=lambda: [32, 32, 3])  # rows, columns, channels
    archives: dict[str, Any] = field(default_factory=dict)  # name -> {files, downloads}
    # name -> [{archive, members, images}], with labels also {labels, names}
    splits: dict[str, Any] = field(default_factory=dict)
    patch: int = 4  # classification: rows and columns of a patch; 1: pixels by value
    shift: int = 0  # classification: training images are shifted by up to so many pixels
    flip: bool = False  # classification: half of the training images are mirrored
    label_fraction: float = bounded(1.0, above=0, high=1)  # share of training images, by class
    labels: list[str] | None = None  # classification: names of the classes in order; null: sorted
    class_weights: Any = None  # classification: of the loss; null, balanced, or a list


@dataclass
class MusicDataConfig(DensityDataConfig):
    """Audio files; see `headwise.tasks.stream.music`."""

    unit: ClassVar[str] = "dimension"

    _target_: str = "headwise.tasks.stream.music.MusicCorpus"
    sample_rate: int = 12_000  # Hz, to which audio is resampled


@dataclass
class LabelledDataConfig(FilesConfig):
    """Texts, or pairs of texts, with labels; see `headwise.tasks.classification.text`."""

    _target_: str = "headwise.tasks.classification.text.LabelledText"
    tasks: list[str] = field(default_factory=lambda: ["classification"])  # tasks that use it
    files: Any = path()  # split -> file or stem, or alternatives; null: SPLIT.tsv, .csv, .jsonl
    columns: list[str] = field(default_factory=list)  # of files without a header; []: a header
    text: str = "text"  # column
    pair: str | None = None  # column of the second text; null: single texts
    label: str = "label"  # column
    labels: list[str] | None = None  # names of the classes in order; null: sorted
    valid_fraction: float = bounded(0.0, 0, below=1)  # share of train that is valid; 0: a file
    label_fraction: float = bounded(1.0, above=0, high=1)  # share of training rows, by class
    class_weights: Any = None  # of the loss: balanced, or a list; null: all 1
    language: str | None = None  # language code; null: unknown
    max_length: int = bounded(128, 2)  # tokens of a text or pair; longer ones are truncated
    origins: list[Any] = field(default_factory=list)  # tried in order if no folder is set
    stride: int = 8  # of patterns, suggested for this length
    label_smoothing: float = 0.0  # of the loss, suggested
    max_updates: int = 10_000  # suggested for data of this size
    warmup_updates: int = 1000  # suggested for data of this size


@dataclass
class NoDataConfig:
    """No files: the task generates its examples."""

    _target_: str = "headwise.config.data.NoDataConfig"
    name: str = MISSING  # name in tables
    valid: str = "valid"  # name of a split, interpreted by the task
    test: list[str] = field(default_factory=lambda: ["test"])  # splits scored at the end of a run
    max_updates: int = 1000  # suggested
    warmup_updates: int = 100  # suggested


@dataclass
class SequenceConfig:
    """Synthetic rows of several lengths; see `headwise.tasks.sequence.rows`."""

    _target_: str = "headwise.config.data.SequenceConfig"
    tasks: list[str] = field(default_factory=lambda: ["sequence"])  # tasks that use it
    name: str = MISSING  # name in tables
    rows: Any = MISSING  # the class of rows
    min_length: int = bounded(32, 2)  # of sources in training; one in a batch
    max_length: int = 64  # of the sources in training, and of the validation set
    curriculum: int = bounded(0, 0)  # batches in which the longest length grows from first_length
    first_length: int = 8
    epoch_batches: int = bounded(1000, 1)  # batches of an epoch
    test_lengths: list[int] = field(default_factory=lambda: [64, 256, 1024])  # a split each
    n_test: int = bounded(200, 1)  # rows of a split, at most
    test_tokens: int = bounded(65_536, 0)  # of the sources of a split, at most, but for 8 rows
    valid: str = "valid"  # name of a split, whose rows have max_length
    label_smoothing: float = 0.0  # of the loss, suggested
    max_updates: int = 1000  # suggested
    warmup_updates: int = 100  # suggested

    @property
    def test(self) -> list[str]:
        """The splits that are scored at the end of a run: lengths."""
        return [str(length) for length in self.test_lengths]


@dataclass
class CleaningConfig:
    """Filters of training pairs; validation and test sets are never filtered.

    A pair is dropped if a side is empty, a limit is exceeded, or the ratio of the lengths in
    white-space words is above `max_ratio`. Limits of 0 are off.
    """

    max_words: int = 0  # white-space words, both sides
    max_source_characters: int = 0  # of a sentence
    max_target_characters: int = 0  # of its translation
    max_target_moses_tokens: int = 0  # the rule of KFTT's cleaned English side (40)
    max_ratio: float = 0.0  # longer side / shorter side, in white-space words
    normalise: list[str] = field(default_factory=list)  # e.g. [romanian_comma_below]


@dataclass
class DataConfig(FilesConfig):
    """A parallel corpus with named splits; see `headwise.tasks.translation.corpus`."""

    _target_: str = "headwise.tasks.translation.corpus.ParallelCorpus"
    tasks: list[str] = field(default_factory=lambda: ["translation"])  # tasks that use it
    source: str = MISSING  # language code of the input side
    target: str = MISSING  # language code of the output side
    files: dict[str, list[str]] = path(dict)  # split -> alternative file stems
    split: list[float] = field(default_factory=list)  # shares of train for train, valid and test
    test: list[str] = field(default_factory=list)  # test sets, scored at the end of a run
    origins: list[Any] = field(default_factory=list)  # tried in order if no folder is set
    cleaning: CleaningConfig = field(default_factory=CleaningConfig)
    vocab_size: int = 32000  # suggested for text of this size
    max_train_pairs: int | None = None  # keep the first N pairs after cleaning

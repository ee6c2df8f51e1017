"""The config of labelled text, and of `scripts/predict.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from headwise.config.sampling import RunSelection
from headwise.config.text_and_paths import path
from headwise.files import STDIN, STDOUT


@dataclass
class LabelledDataConfig:
    """Texts, or pairs of texts, with labels; see `headwise.data.labelled`."""

    _target_: str = "headwise.config.labelled_data.LabelledDataConfig"
    tasks: list[str] = field(default_factory=lambda: ["classification"])  # tasks that use it
    name: str = MISSING  # name of the data, as in data=
    dir: str | None = path()  # a folder of local files, used instead of downloads
    folder: str | None = None  # folder name under $HEADWISE_DATA
    files: Any = path()  # split -> file or stem, or alternatives; null: SPLIT.tsv, .csv, .jsonl
    columns: list[str] = field(default_factory=list)  # of files without a header; []: a header
    text: str = "text"  # column
    pair: str | None = None  # column of the second text; null: single texts
    label: str = "label"  # column
    labels: list[str] | None = None  # names of the classes in order; null: sorted
    train: str = "train"  # a split, or several: a+b
    valid: str = "valid"  # a split, or several
    test: list[str] = field(default_factory=lambda: ["test"])  # scored at the end of a run
    valid_fraction: float = 0.0  # share of the training rows that is the validation set; 0: a file
    label_fraction: float = 1.0  # share of the training rows that is kept, of each class, by seed
    class_weights: Any = None  # of the loss: balanced, or a list; null: all 1
    language: str | None = None  # language code; null: unknown
    max_length: int = 128  # tokens of a text or pair; longer ones are truncated
    origins: list[Any] = field(default_factory=list)  # tried in order if no folder is set
    stride: int = 8  # of patterns, suggested for this length
    label_smoothing: float = 0.0  # of the loss, suggested
    vocab_size: int = 8000  # suggested for text of this size
    max_updates: int = 10_000  # suggested for data of this size
    warmup_updates: int = 1000  # suggested for data of this size
    licence: str = MISSING
    notes: str = ""


@dataclass
class PredictConfig(RunSelection):
    """`scripts/predict.py`: label the texts of a file or of stdin, or pictures."""

    run: str = path(MISSING)  # its folder
    input: str | None = path(stream=STDIN)  # lines, table, picture or a folder of them; null: stdin
    output: str | None = path(stream=STDOUT)  # a file; null writes to stdout
    buffer_size: int = 10_000  # texts or pictures that are read and labelled at a time

"""Labelled texts, or pairs of texts, from tables: published sets, or files of the user."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwise.config.data import LabelledDataConfig
from headwise.data.sources.digest import combined_digest
from headwise.data.sources.folder import Folder
from headwise.data.sources.origins import Origin, find_origin, known_parts, local_folder
from headwise.data.sources.tables import check_columns, class_names, one_line
from headwise.errors import DataError, refuse, require
from headwise.files import check_file_name, nfc
from headwise.tasks.classification.inputs import ClassCorpus

Texts = tuple[str, ...]  # one text, or two
STEMS = {"train": ["train"], "valid": ["valid", "validation", "dev", "val"], "test": ["test"]}


def check_labelled_config(config: LabelledDataConfig) -> None:
    """Reject values that are invalid for every text.

    Raises:
        ConfigError: names the key, the value and the allowed values.
    """
    for split in (config.train, config.valid, *config.test):
        check_file_name("data", split)
    files = {} if config.files is None else config.files
    require(isinstance(files, dict), "data.files", "a mapping from split to file", files)
    columns = [config.text, config.label, *([config.pair] if config.pair else [])]
    distinct = len(set(columns)) == len(columns)
    require(distinct, "data.text, data.label and data.pair", "different columns", columns)
    valid = config.valid_fraction
    cut = not valid or config.train != config.valid
    require(cut, "data.valid", "another split than data.train", config.valid)
    many = config.labels is None or len(set(config.labels)) == len(config.labels) > 1
    require(many, "data.labels", "null, or two or more different names", config.labels)


def text_columns(config: LabelledDataConfig) -> list[str]:
    """The column of a text, or the two of a pair."""
    return [config.text, *([config.pair] if config.pair else [])]


def texts_of(record: Mapping[str, Any], columns: Sequence[str], where: str) -> Texts:
    """The texts of a record; a `DataError` for one that is empty."""
    for column in columns:
        if not isinstance(text := record[column], str) or not text.strip():
            raise DataError(f"{where}: no text in the column {column!r}; got {text!r}")
    return tuple(one_line(record[column], where) for column in columns)


@dataclass(frozen=True)
class LabelledText(ClassCorpus):
    """Labelled text that is located but not encoded.

    Attributes:
        config: where the files are, and their columns.
        cache_dir: folder of encoded data, downloads and file hashes.
        saved: names of the classes of a run.
    """

    config: LabelledDataConfig
    cache_dir: Path
    saved: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_labelled_config(self.config)

    @functools.cached_property
    def origin(self) -> Origin:
        """The tables, located and, if necessary, downloaded.

        Raises:
            DataError: they do not exist; the message names the folder and the files.
        """
        config, cache_dir = self.config, self.cache_dir
        if config.valid_fraction:
            config = replace(config, valid=config.train)
        folder = local_folder(config)
        if folder is None and config.files:
            folder = Path()
        text = None
        if folder is not None:
            files = {
                split: [names] if isinstance(names, str) else names
                for split, names in (config.files or STEMS).items()
            }
            text = Folder(folder, files, cache_dir, config.columns)
        names = ", ".join(f"{split}.tsv" for split in (config.train, config.valid))
        return find_origin(config, cache_dir, text, f"{names} (or .csv, .jsonl, .parquet)")

    def identity(self, split: str) -> str:
        """Hash of the files of a split and of the settings of reading."""
        names = "text", "pair", "label", "labels", "columns", "valid_fraction"
        settings = {name: getattr(self.config, name) for name in names}
        parts = [self.origin.identity(part) for part in self._parts(split)]
        in_use = [list(self._names_of_file(part).values()) for part in self._parts(split)]
        content = [split, settings, *(n for n in in_use if n not in ([], self.config.labels))]
        return combined_digest([*parts, json.dumps(content, sort_keys=True)])

    def path(self, split: str) -> Path:
        """The first file of a split."""
        return self.origin.path(self._parts(split)[0])

    def rows(self, split: str) -> Iterator[tuple[Texts, str]]:
        """Each text, or pair of texts, with its label.

        With `data.valid_fraction`, the validation set is that share of the training rows of each
        label, evenly spaced.

        Raises:
            DataError: a column or text is missing, or a label is not one of `data.labels`.
        """
        return ((texts, label) for _, texts, label in self._located(split))

    def names(self, split: str) -> Iterator[str]:
        return (where for where, *_ in self._located(split))

    def _located(self, split: str) -> Iterator[tuple[str, Texts, str]]:
        share, n_seen = self._share(split), Counter[str]()
        for part in self._parts(split):
            names = self._names_of_file(part)
            for where, record in self.origin.rows(part, self._select):
                label = self._label(record, where, names)
                before = n_seen[label]
                n_seen[label] += 1
                is_valid = math.floor((before + 1) * share) > math.floor(before * share)
                if not share or is_valid == (split == self.config.valid):
                    yield where, texts_of(record, text_columns(self.config), where), label

    def _names_of_file(self, part: str) -> dict[str, str]:
        """Names of numbers in the files of a part; none if other classes are known."""
        names = class_names(self.origin.path(part), self.config.label)
        known = self.saved or self.config.labels or ()  # runs of 0.1.0 saved numbers
        return names if {*names.values(), "-1"}.issuperset(known) else {}  # -1: no label

    def _share(self, split: str) -> float:
        """Share of the rows of the files of a split that are for validation."""
        is_cut = split in (self.config.train, self.config.valid)
        return self.config.valid_fraction if is_cut else 0.0

    def _parts(self, split: str) -> list[str]:
        """The splits of `origin` with the rows of a split."""
        if self.config.valid_fraction and split == self.config.valid:
            split = self.config.train
        return known_parts(self.config, split, self.origin.splits())

    def _select(self, name: str, columns: Sequence[str]) -> list[str]:
        advice = "Columns are set by data.text=, data.label= and data.pair= (null: single texts); "
        advice += f"without a header by data.columns=[{self.config.text},{self.config.label}]"
        wanted = [*text_columns(self.config), self.config.label]
        check_columns(name, columns, wanted, advice)
        return wanted

    def _label(self, record: Mapping[str, Any], where: str, of_file: Mapping[str, str]) -> str:
        """The name of the label; a number is an index into those of the file or `data.labels`."""
        self._select(where, list(record))
        value, names = record[self.config.label], self.config.labels
        is_whole = isinstance(value, float) and value.is_integer()
        if not (is_whole or value is None or isinstance(value, (str, int))):
            raise DataError(
                f"{where}: the label in the column {self.config.label!r} must be text or a whole "
                f"number, got {value!r}"
            )
        label = "" if value is None else nfc(str(int(value) if is_whole else value)).strip()
        if not label:
            raise DataError(f"{where}: no label in the column {self.config.label!r}")
        label = of_file.get(label, label)
        if names is None or label in names:
            return label
        if label.isdecimal() and int(label) < len(names):
            return names[int(label)]
        raise DataError(str(refuse(f"{where}: the label", label, names)))

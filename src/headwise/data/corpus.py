"""Opens a corpus, and converts its splits to cached text.

Sources are tried in this order:

1. the folder `data.dir` (text, the original archives, or a copy of the Hub's Parquet files);
2. `$HEADWISE_DATA/<data.folder>`, if it exists;
3. an origin of the yaml whose files are on disk;
4. the origins of the yaml in their order, by download.

`data.train`, `data.valid` and each of `data.test` name a split, or several that are concatenated:
`test_tst2015+test_tst2016`.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from omegaconf import MISSING

from headwise.config.schema import DataConfig
from headwise.data.cache import make_once
from headwise.data.cleaning import Cleaner, CleaningReport, Normaliser
from headwise.data.conversion import Pair, ParallelText, write_text
from headwise.data.corpora.folder import FolderSource
from headwise.data.digest import combined_digest
from headwise.errors import ConfigError, DataError, refuse
from headwise.file_names import check_file_name

# Part of every hash of text; increase when reading, cleaning or the layout changes the result.
READER_VERSION = 2


class Source(Protocol):
    """One origin of parallel text.

    An origin that may download also has `is_local(splits) -> bool`.
    """

    def splits(self) -> list[str]:
        """Names of the splits that can be read."""

    def pairs(self, split: str) -> Iterator[Pair]:
        """(source sentence, target sentence), streamed in bounded memory, without line feeds."""

    def identity(self, split: str) -> str:
        """Hash of the content (or version of the generator); downloads missing files.

        Raises:
            DataError: the files are not available.
        """


@dataclass(frozen=True)
class Corpus:
    """A parallel corpus: its config, source and cache."""

    config: DataConfig
    source: Source
    cache_dir: Path

    def splits(self) -> list[str]:
        """Names of the splits that can be read."""
        return self.source.splits()

    def text(self, split: str, progress: bool = False) -> ParallelText:
        """A complete split, normalised; converted by the first call, then cached.

        Args:
            split: one of `splits()`, or several joined by +.
            progress: show a bar during conversion.

        Raises:
            DataError: an unknown split, or text that is missing, misaligned, empty or corrupt.
        """
        return self._converted(split, False, progress)

    def train_text(self, progress: bool = False) -> ParallelText:
        """The first `max_train_pairs` cleaned training pairs; see `text`.

        Raises:
            DataError: also if cleaning drops all pairs.
        """
        return self._converted(self.config.train, True, progress)

    def read(self, split: str) -> tuple[list[str], list[str]]:
        """A complete split in memory: (source sentences, target sentences)."""
        source, target = map(list, self.text(split).sides)
        return source, target

    def fingerprint(self) -> str:
        """Hash of the training text, the rules applied to it, and the languages."""
        return self._hash(self.config.train, True)

    @property
    def test_sets(self) -> list[str]:
        """Splits that are scored at the end of a run."""
        return self.config.test

    def hashes(self) -> list[str]:
        """Hashes of the training and the validation text."""
        return [self.fingerprint(), self.identity(self.config.valid)]

    def identity(self, split: str) -> str:
        """Hash of the text of a split, or of several joined by +, and of its normalisations."""
        return self._hash(split, False)

    def _hash(self, split: str, clean: bool) -> str:
        rules = asdict(self.config.cleaning) | {"max_train_pairs": self.config.max_train_pairs}
        content = {
            "version": READER_VERSION,
            "text": [self.source.identity(part) for part in self._parts(split)],
            "rules": rules if clean else {"normalise": rules["normalise"]},
            "languages": self._languages,
        }
        return combined_digest([json.dumps(content, sort_keys=True)])

    @property
    def _languages(self) -> tuple[str, str]:
        return self.config.source, self.config.target

    def _parts(self, split: str) -> list[str]:
        options = self.source.splits()
        parts = joined_splits(split, options)
        for part in parts:
            if part not in options:
                raise DataError(str(refuse(f"a split of data={self.config.name}", part, options)))
        return parts

    def _converted(self, split: str, clean: bool, progress: bool) -> ParallelText:
        names = [f"{split}.{code}" for code in self._languages]
        kind = "cleaned" if clean else "whole"
        key = self._hash(split, clean)[:16]
        folder = self.cache_dir / "corpora" / self.config.name / f"{split}-{kind}-{key}"

        def convert(partial: Path) -> dict[str, Any]:
            report = CleaningReport()
            pairs = self._pairs(split, report if clean else None)
            n_pairs = write_text(pairs, [partial / name for name in names], progress)
            if not n_pairs:
                raise DataError(self._no_pairs(split, report if clean else None))
            sources = {part: self.source.identity(part) for part in self._parts(split)}
            counts = {"cleaning": report.as_dict()} if clean else {}
            return {"pairs": n_pairs, **counts, "sources": sources}

        report = make_once(folder, convert)
        return ParallelText((folder / names[0], folder / names[1]), report)

    def _pairs(self, split: str, report: CleaningReport | None) -> Iterator[Pair]:
        """Normalised pairs of the source; with a `report`, also cleaned, and counted in it."""
        normalise = Normaliser(self.config.cleaning.normalise, *self._languages)
        pairs = normalise(chain.from_iterable(map(self.source.pairs, self._parts(split))))
        if report is None:
            return pairs
        cleaner = Cleaner(self.config.cleaning, self.config.target)
        return cleaner(pairs, report, self.config.max_train_pairs)

    def _no_pairs(self, split: str, report: CleaningReport | None) -> str:
        if report is None:
            return f"data.name={self.config.name}: no pairs in the split {split!r}"
        return (
            f"no training pair is left: {report}. Loosen data.cleaning, or check that "
            f"data.source={self.config.source} and data.target={self.config.target} are right."
        )


def joined_splits(split: str, known: Collection[str]) -> list[str]:
    """The splits of a name: `a+b` is a, then b, unless `a+b` is one of `known`."""
    return [split] if split in known else split.split("+")


def open_corpus(config: DataConfig, cache_dir: Path) -> Corpus:
    """Open the corpus of `config`, from the sources in the order above.

    Args:
        config: of `conf/data/`.
        cache_dir: folder of downloads and file hashes.

    Returns:
        A corpus whose train, valid and test splits exist. If the config has neither test sets nor
        origins (text of the user), all splits named `test*` are test sets.

    Raises:
        ConfigError: a wrong cleaning rule, a missing language, or a split with an invalid name.
        DataError: the corpus or one of its splits is missing; the message says where to put it.
    """
    check_data_config(config)
    folder = _local_folder(config)
    if folder is not None:
        source = _from_folder(config, folder, cache_dir)
    else:
        source = _from_origins(config, cache_dir)
    tests = list(config.test)
    if not tests and not config.origins:
        tests = [split for split in source.splits() if split.startswith("test")]
        if isinstance(source, FolderSource):
            source.require_both_sides("test")
    return Corpus(replace(config, test=tests), source, cache_dir)


def check_data_config(config: DataConfig) -> None:
    """Reject languages, names and rules that are invalid for every text.

    Raises:
        ConfigError: names the key, the value and the allowed values.
    """
    missing = [key for key in ("name", "source", "target") if getattr(config, key) == MISSING]
    if missing:
        keys = ", ".join(f"data.{key}" for key in missing)
        raise ConfigError(f"{keys} must be set, for example data.source=de data.target=en")
    if config.max_train_pairs is not None and config.max_train_pairs < 1:
        raise ConfigError(
            f"data.max_train_pairs must be null or at least 1, got {config.max_train_pairs}"
        )
    for key in ("name", "source", "target", "train", "valid"):
        check_file_name(f"data.{key}", getattr(config, key))
    for split in config.test:
        check_file_name("data.test", split)
    Normaliser(config.cleaning.normalise, config.source, config.target)
    Cleaner(config.cleaning, config.target)


def _required(config: DataConfig, known: Collection[str]) -> dict[str, str]:
    """Each split that the config names -> the first key that names it."""
    required: dict[str, str] = {}
    named = [("train", config.train), ("valid", config.valid), *(("test", t) for t in config.test)]
    for key, split in named:
        for part in joined_splits(split, known):
            required.setdefault(part, key)
    return required


def _local_folder(config: DataConfig) -> Path | None:
    if config.dir is not None:
        return Path(config.dir).expanduser()
    root = os.environ.get("HEADWISE_DATA")
    folder = Path(root or "").expanduser() / (config.folder or "")
    return folder if root and config.folder and folder.is_dir() else None


def _from_folder(config: DataConfig, folder: Path, cache_dir: Path) -> Source:
    """Text in `folder`, else the original archives or Parquet files in it."""
    text = FolderSource(folder, config.source, config.target, config.files, cache_dir)
    for source in (text, *_origins(config, cache_dir, folder)):
        known = set(source.splits())
        required = _required(config, known)
        needed = {split for split, key in required.items() if key != "test"}
        # A folder with archives of some splits is used too; `identity` reports the missing ones.
        if needed <= known or (source is not text and needed & known):
            return _checked(source, required)
    return _checked(text, _required(config, text.splits()))


def _from_origins(config: DataConfig, cache_dir: Path) -> Source:
    reasons: list[str] = []
    complete: list[tuple[Source, list[str]]] = []  # origin, required splits
    for origin in _origins(config, cache_dir, None):
        known = origin.splits()
        required = _required(config, known)
        absent = [split for split in required if split not in known]
        if absent:
            reasons.append(str(refuse(f"data.{required[absent[0]]}", absent[0], known)))
        else:
            complete.append((origin, list(required)))
    # Origins on disk come first, otherwise in the order of the list.
    complete.sort(key=lambda c: not getattr(c[0], "is_local", lambda splits: True)(c[1]))
    for origin, splits in complete:
        try:
            return _checked(origin, splits)
        except DataError as error:
            reasons.append(str(error))
    raise DataError(_advice(config, reasons))


def _checked(source: Source, splits: Iterable[str]) -> Source:
    """`source`, with the files of `splits` on disk; a `DataError` names a missing one."""
    for split in splits:
        source.identity(split)
    return source


def _origins(config: DataConfig, cache_dir: Path, folder: Path | None) -> Iterator[Source]:
    """The origins of the yaml; with a `folder`, those that can read from one."""
    from headwise.config.instantiate import instantiate, target_class

    offered = {
        "source": config.source,
        "target": config.target,
        "cache_dir": cache_dir,
        "folder": folder,
    }
    for number, node in enumerate(config.origins):
        key = f"data.origins[{number}]"
        accepted = inspect.signature(target_class(node, key)).parameters
        if folder is None or "folder" in accepted:
            runtime = {name: value for name, value in offered.items() if name in accepted}
            yield instantiate(node, key, **runtime)


def _advice(config: DataConfig, reasons: list[str]) -> str:
    """The message for a missing corpus: which files are needed in which folder."""
    stems = [config.files.get(split, [split])[0] for split in (config.train, config.valid)]
    names = ", ".join(f"{s}.{code}" for s in stems for code in (config.source, config.target))
    lines = [f"data={config.name} is not on this machine. Either of these helps:"]
    lines.append(f"- data.dir=FOLDER with {names} (plain or .gz; or .parquet, .jsonl, .tsv)")
    if config.folder:
        lines.append(f"- HEADWISE_DATA=FOLDER with such a folder named {config.folder}")
    lines.extend(f"- {reason}" for reason in reasons)
    return "\n".join(lines)

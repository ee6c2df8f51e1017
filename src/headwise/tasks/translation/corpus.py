"""Opens a corpus, and converts its splits to cached text (`headwise.data.sources.origins`: files).

`data.train`, `data.valid` and each of `data.test` name a split, or several that are concatenated:
`test_tst2015+test_tst2016`.

A folder of converted text has `SPLIT.xx` and `SPLIT.yy` (UTF-8, one normalised sentence per line,
aligned), for each side the byte offsets of its lines (`.offsets`, int64, one more than lines), so
that single lines can be read, and `manifest.json` with counts and hashes of the source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from omegaconf import MISSING

from headwise.config.data import DataConfig
from headwise.data.cache import make_once
from headwise.data.file_corpus import Corpus
from headwise.data.sources.digest import combined_digest
from headwise.data.sources.folder import Folder, check_shares
from headwise.data.sources.lines import read_pairs
from headwise.data.sources.origins import Origin, find_origin, known_parts, local_folder, log_paths
from headwise.data.sources.tables import language_columns, row_pairs
from headwise.data.store import FlatWriter, IdStore, TextStore, with_ending
from headwise.errors import ConfigError, DataError, require
from headwise.files import check_file_name
from headwise.progress import progress_bar
from headwise.runs.environment import package_versions
from headwise.tasks.data import Sides, open_corpus
from headwise.tasks.translation.cleaning import Cleaner, CleaningReport, Normaliser

Pair = tuple[str, str]

CHUNK_PAIRS = 10_000  # in memory while they are written


@dataclass(frozen=True)
class ParallelText:
    """The aligned lines of both sides, and their manifest."""

    paths: tuple[Path, Path]
    report: dict[str, Any]

    @cached_property
    def sides(self) -> tuple[TextStore, TextStore]:
        """Source and target."""
        return TextStore(self.paths[0]), TextStore(self.paths[1])

    def __len__(self) -> int:
        return len(self.sides[0])

    def __iter__(self) -> Iterator[Pair]:
        return zip(*self.sides, strict=True)


def write_pairs(pairs: Iterator[Pair], paths: Sequence[Path], progress: bool = False) -> int:
    """Write a stream of pairs in this layout; return their number."""
    with (
        progress_bar(f"reading {paths[0].stem}", progress) as bar,
        FlatWriter(paths[0]) as source,
        FlatWriter(paths[1]) as target,
    ):
        while chunk := list(islice(pairs, CHUNK_PAIRS)):
            for writer, side in zip((source, target), zip(*chunk, strict=True), strict=True):
                lines = [text.replace("\n", " ").encode() + b"\n" for text in side]
                writer.append(b"".join(lines), np.fromiter(map(len, lines), np.int64))
            bar.update(len(chunk))
    return source.n_rows


@dataclass
class EncodedSplit:
    """Aligned rows of both sides."""

    source: IdStore
    target: IdStore

    @classmethod
    def from_lists(
        cls, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]
    ) -> EncodedSplit:
        """A split in memory."""
        return cls(IdStore.from_lists(source), IdStore.from_lists(target))

    @classmethod
    def open(cls, path: Path, dtype: npt.DTypeLike) -> EncodedSplit:
        """Memory-map `PATH.source` and `PATH.target`."""
        source, target = (IdStore.open(with_ending(path, s), dtype) for s in (".source", ".target"))
        return cls(source, target)

    def __len__(self) -> int:
        return len(self.source)


# Part of every hash of text; increase when reading, cleaning or the layout changes the result.
READER_VERSION = 2
HYPOTHESES = "hypotheses"  # folder of a run: translations, sources and references


@dataclass(frozen=True)
class ParallelCorpus(Corpus):
    """A parallel corpus that is located but not read.

    Attributes:
        config: where the text is, its languages, and rules of cleaning.
        cache_dir: folder of converted and encoded text, downloads and file hashes.
    """

    config: DataConfig
    cache_dir: Path

    def __post_init__(self) -> None:
        check_data_config(self.config)

    @cached_property
    def origin(self) -> Origin:
        """The text, located and, if necessary, downloaded.

        Raises:
            DataError: it or one of its splits is missing; the message says where to put it.
        """
        config, languages = self.config, self._languages
        folder = local_folder(config)
        if folder is None:
            require(not config.split, "data.split", "unset without data.dir=FOLDER", config.split)
            text = None
        else:
            files = folder, config.files, self.cache_dir
            text = Folder(*files, languages=languages, shares=config.split)
        stems = [config.files.get(split, [split])[0] for split in (config.train, config.valid)]
        names = ", ".join(f"{stem}.{code}" for stem in stems for code in languages)
        expected = f"{names} (plain or .gz; or .parquet, .jsonl, .tsv, .csv)"
        codes = {"source": config.source, "target": config.target}
        return find_origin(config, self.cache_dir, text, expected, **codes)

    @cached_property
    def test_sets(self) -> Sequence[str]:
        """Those of the config, or of text of the user all splits named `test*`."""
        config, origin = self.config, self.origin
        if config.test or config.origins:
            return config.test
        stems = {stem for stems in config.files.values() for stem in stems} - config.files.keys()
        tests = [s for s in origin.splits() if s.startswith("test") and s not in stems]
        if isinstance(origin, Folder):
            origin.require_both_sides("test")
        return tests

    def splits(self) -> list[str]:
        """Names of the splits that can be read."""
        return self.origin.splits()

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

    def hashes(self) -> list[str]:
        """Hashes of the training and the validation text."""
        return [self.fingerprint(), self.identity(self.config.valid)]

    def identity(self, split: str) -> str:
        """Hash of the text of a split, or of several joined by +, and of its normalisations."""
        return self._hash(split, False)

    def packages(self, splits: Sequence[str]) -> Sequence[str]:
        """See `Corpus.packages`; of cleaned text."""
        return ("sacremoses",) if self.config.cleaning.max_target_moses_tokens else ()

    def _hash(self, split: str, clean: bool) -> str:
        rules = asdict(self.config.cleaning) | {"max_train_pairs": self.config.max_train_pairs}
        content = {
            "version": READER_VERSION,
            "text": [self.origin.identity(part) for part in self._parts(split)],
            "rules": rules if clean else {"normalise": rules["normalise"]},
            "languages": self._languages,
        }
        return combined_digest([json.dumps(content, sort_keys=True)])

    @property
    def _languages(self) -> tuple[str, str]:
        return self.config.source, self.config.target

    def _parts(self, split: str) -> list[str]:
        return known_parts(self.config, split, self.origin.splits())

    def _converted(self, split: str, clean: bool, progress: bool) -> ParallelText:
        names = [f"{split}.{code}" for code in self._languages]
        kind = "cleaned" if clean else "whole"
        key = self._hash(split, clean)
        if clean and (packages := self.packages([split])):
            key = combined_digest([key, json.dumps(package_versions(packages))])
        folder = self.cache_dir / "corpora" / self.config.name / f"{split}-{kind}-{key[:16]}"

        def convert(partial: Path) -> dict[str, Any]:
            report = CleaningReport()
            pairs = self._pairs(split, report if clean else None)
            n_pairs = write_pairs(pairs, [partial / name for name in names], progress)
            if not n_pairs and clean:
                raise DataError(
                    f"no training pair is left: {report}. Loosen data.cleaning, or check that "
                    f"data.source={self.config.source} and data.target={self.config.target} are "
                    "right."
                )
            if not n_pairs:
                raise DataError(f"data.name={self.config.name}: no pairs in the split {split!r}")
            sources = {part: self.origin.identity(part) for part in self._parts(split)}
            counts = {"cleaning": report.as_dict()} if clean else {}
            return {"pairs": n_pairs, **counts, "sources": sources}

        report = make_once(folder, convert)
        return ParallelText((folder / names[0], folder / names[1]), report)

    def _pairs(self, split: str, report: CleaningReport | None) -> Iterator[Pair]:
        """Normalised pairs of a split; with a `report`, also cleaned, and counted in it."""
        normalise = Normaliser(self.config.cleaning.normalise, *self._languages)
        select = partial(language_columns, self._languages)
        parts = (self.origin.rows(part, select) for part in self._parts(split))
        pairs = normalise(row_pairs(chain.from_iterable(parts), *self._languages))
        if report is None:
            return pairs
        cleaner = Cleaner(self.config.cleaning, self.config.target)
        return cleaner(pairs, report, self.config.max_train_pairs)


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
    check_shares(config.split)
    for key in ("name", "source", "target", "train", "valid"):
        check_file_name(f"data.{key}", getattr(config, key))
    for split in config.test:
        check_file_name("data.test", split)
    Normaliser(config.cleaning.normalise, config.source, config.target)
    Cleaner(config.cleaning, config.target)


def named_sets(
    data: DataConfig, saved: Path, names: Sequence[str], cache: Path, folder: str | None = None
) -> dict[str, Sides]:
    """Sources and references by set, from the run folder or else from the corpus.

    Args:
        data: of a run of translation.
        saved: the run folder.
        names: sets.
        cache: folder of encoded data and downloads.
        folder: of a corpus; all sets are read from it if given.

    Raises:
        DataError: a set does not exist, or its sides are not aligned.
    """
    if folder is not None:
        return _corpus_sets(data, names, cache, folder)
    there = saved_sets(saved)
    absent = [name for name in names if name not in there]
    others = _corpus_sets(data, absent, cache, None) if absent else {}
    return {name: others[name] if name in others else _saved_set(saved, name) for name in names}


def saved_sets(saved: Path) -> list[str]:
    """Names of the sets whose sources and references are in the run folder."""
    texts = saved / HYPOTHESES
    names = [path.name.removesuffix(".src.txt") for path in texts.glob("*.src.txt")]
    return sorted(name for name in names if (texts / f"{name}.ref.txt").is_file())


def _saved_set(saved: Path, name: str) -> Sides:
    files = (saved / HYPOTHESES / f"{name}.{side}.txt" for side in ("src", "ref"))
    return read_pairs(*files)


def _corpus_sets(
    data: DataConfig, names: Sequence[str], cache: Path, folder: str | None
) -> dict[str, Sides]:
    """Sets of the run's corpus, or of that in a folder."""
    data_dir = data.dir
    # the training text may be absent
    data = replace(data, dir=folder or data_dir, train=names[0], valid=names[0], test=list(names))
    data = replace(data, split=[]) if folder else data
    log_paths(data, cache, folder)
    corpus: ParallelCorpus = open_corpus(data, cache)
    try:
        corpus.splits()  # locates them
    except DataError as error:
        if data_dir is None or folder is not None:
            raise
        raise DataError(
            f"{error}\nThe run folder does not hold the test sets {', '.join(names)}; searched in "
            f"the run's data.dir={data_dir}, here {Path(data_dir).absolute()}. Set "
            "data.dir= to the folder that holds them"
        ) from error
    return {name: corpus.read(name) for name in names}

"""Corpora in their published form: zip and tar archives, or single files.

The yaml of a corpus maps splits to archives and members. The name of a member with sentences
selects its reader:

- `*.xml`, `*.sgm`: IWSLT's and WMT's test sets, aligned by document and segment id;
- `train.tags.*`: IWSLT's training text; lines that begin with `<` are metadata and skipped;
- any other name: one sentence a line (KFTT, Europarl, Common Crawl, SETIMES in Moses format).

Tables are read by `headwise.data.sources.tables`.
"""

from __future__ import annotations

import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

from headwise.data.sources.digest import FileHashes, combined_digest
from headwise.data.sources.download import download, verify
from headwise.data.sources.lines import (
    READ_ERRORS,
    aligned,
    aligned_segments,
    decoded_lines,
    open_bytes,
    read_segments,
    unescape,
)
from headwise.data.sources.tables import Row, Select, aligned_rows, stored_rows
from headwise.errors import ConfigError, DataError, nearest, refuse
from headwise.files import check_file_name, check_relative_path

Located = tuple[Path, Sequence[str]]  # a file; of an archive alternative names of its member


class Archives:
    """Archives, or single files, in a folder of the user or in the download folder.

    Archives are read from `folder` if given, else from `cache_dir/downloads/<name>/`; missing
    ones are downloaded to the latter. Files in the download folder must have the published
    checksum; those in `folder` are not verified, since they may be another release or a subset.

    Args:
        name: of the corpus and of its download folder.
        archives: name -> {files: [alternative relative paths], downloads: [{url, file,
            md5 or sha1 or sha256}]}.
        cache_dir: folder of downloads and file hashes.
        folder: the user's own folder of archives.

    Raises:
        ConfigError: a path outside its folder.
    """

    def __init__(
        self, name: str, archives: dict[str, Any], cache_dir: Path, folder: Path | None = None
    ) -> None:
        check_file_name("name", name)
        for key, archive in archives.items():
            for file in archive["files"]:
                check_relative_path(f"archives.{key}.files", file)
            for entry in archive.get("downloads") or []:
                check_relative_path(f"archives.{key}.downloads.file", entry["file"])
        self.name, self.folder = name, folder
        self.downloads = Path(cache_dir) / "downloads" / name
        self._archives, self._hashes = archives, FileHashes(cache_dir)

    def is_local(self, key: str) -> bool:
        """Whether an archive is on disk."""
        return self._local_path(key) is not None

    def identity(self, key: str) -> str:
        """Hash of the bytes of an archive, which is downloaded if missing."""
        return self._hashes(self.path(key))

    def path(self, key: str) -> Path:
        """The archive, downloaded if missing.

        Raises:
            DataError: it is missing and cannot be downloaded, or has a wrong checksum.
        """
        path = self._local_path(key)
        entries = self._archives[key].get("downloads") or []
        if path is None:
            return self._download(key, entries)
        if self.folder is None:
            matching = (entry for entry in entries if self.downloads / entry["file"] == path)
            verify(path, next(matching, None), self._hashes)
        return path

    def open(
        self, key: str, members: Sequence[str] = ()
    ) -> AbstractContextManager[tuple[IO[bytes], str]]:
        """The first of `members` that an archive has, or the single file; and its name.

        `files` may list a member too, for a folder with the unpacked file.
        """
        path = self.path(key)
        is_unpacked = path.name in [Path(member).name for member in members]
        return open_file(path, () if is_unpacked else members)

    def located(self, key: str, members: Sequence[str]) -> list[Located]:
        """All `members`, of an archive or unpacked in the folder; without members the file."""
        unpacked = [next(filter(None, self._unpacked(member)), None) for member in members]
        if unpacked and all(unpacked):
            return [(path, ()) for path in unpacked if path]
        archive = self.path(key)
        return [(archive, (member,)) for member in members] or [(archive, ())]

    def _unpacked(self, member: str) -> Iterator[Path]:
        """A member in the folder of the user or one of its folders."""
        if self.folder is not None:
            yield from chain(self.folder.glob(member), self.folder.glob(f"*/{member}"))

    def _local_path(self, key: str) -> Path | None:
        """The archive in `folder` if given, else in the download folder; None if not there."""
        folder = self.downloads if self.folder is None else self.folder
        paths = (folder / name for name in self._archives[key]["files"])
        return next((path for path in paths if path.is_file()), None)

    def _download(self, key: str, entries: Sequence[Mapping[str, str]]) -> Path:
        files = " or ".join(self._archives[key]["files"])
        advice = f"put {files} into {self.folder or self.downloads}"
        if entries:
            advice += f" (from {entries[0]['url']})"
        if self.folder is not None or not entries:
            raise DataError(f"archive {key!r} is missing: {advice}")
        try:
            return download(entries, self.downloads)
        except DataError as error:
            raise DataError(f"{advice}; downloading failed ({error})") from error


class Archive:
    """Splits of tables, or of parallel text, in the original archives.

    Args:
        name, archives, cache_dir, folder: see `Archives`.
        splits: split -> parts, concatenated; each {archive, members}. Without `members` the
            "archive" is itself the table or text, plain or .gz. Of parallel text both may be
            mappings from language to value, and `members` a list of alternatives; `{lang}` is
            replaced by the language, `{role}` by src or ref.
        columns: of tables without a header; see `headwise.data.sources.tables`.
        values: column of a table -> value in the file -> value that replaces it.
        source: language code of the source side of parallel text; empty: tables.
        target: language code of the target side.

    Raises:
        ConfigError: a path outside its folder, a name of a split that is not a file name, or an
            unknown language.
    """

    def __init__(
        self,
        name: str,
        archives: dict[str, Any],
        splits: dict[str, Any],
        cache_dir: Path,
        folder: Path | None = None,
        columns: list[str] | None = None,
        values: dict[str, Any] | None = None,
        source: str = "",
        target: str = "",
    ) -> None:
        self.archives, self._splits = Archives(name, archives, cache_dir, folder), splits
        self._columns, self._values = columns or [], values or {}
        self.languages = (source, target) if source else ()
        for split, parts in splits.items():
            check_file_name("splits", split)
            for value in (value for part in parts for value in part.values()):
                for code in self.languages:
                    if isinstance(value, Mapping) and code not in value:
                        raise ConfigError(
                            f"splits.{split}: {name} has no language {code!r}; "
                            f"it has {', '.join(sorted(value))}"
                        )

    def splits(self) -> list[str]:
        """Splits that are on disk or, without a folder, can be downloaded."""
        has_folder = self.archives.folder is not None
        return [n for n in sorted(self._splits) if not has_folder or self.is_local([n])]

    def is_local(self, splits: Sequence[str]) -> bool:
        """Whether every archive of `splits` is on disk."""
        known = [split for split in splits if split in self._splits]
        return all(self.archives.is_local(key) for split in known for key in self._needed(split))

    def identity(self, split: str) -> str:
        """Hash of the archives' bytes and of the settings of reading; downloads missing archives.

        Raises:
            DataError: an archive is missing and cannot be downloaded, or has a wrong checksum.
        """
        hashes = [self.archives.identity(key) for key in self._needed(split)]
        identity = combined_digest([*hashes, json.dumps(self._splits[split], sort_keys=True)])
        if self.languages:
            return identity
        settings = json.dumps([self._columns, self._values], sort_keys=True)
        return combined_digest([identity, settings])

    def path(self, split: str) -> Path:
        """The first archive of a split."""
        return self.archives.path(self._needed(split)[0])

    def rows(self, split: str, select: Select) -> Iterator[Row]:
        """The split's rows, streamed from the archives; see `stored_rows`.

        Raises:
            DataError: missing, damaged, misaligned, empty or not UTF-8.
        """
        for part in self._parts(split):
            with ExitStack() as stack:
                sides = self.languages or ("",)
                opened = [stack.enter_context(self._open(part, code)) for code in sides]
                if self.languages:
                    yield from aligned_rows(_pairs(*opened), self.languages)
                    continue
                for where, row in stored_rows(*opened[0], select, self._columns):
                    yield where, {k: self._values.get(k, {}).get(v, v) for k, v in row.items()}

    def _needed(self, split: str) -> list[str]:
        """Names of the archives of `split`."""
        sides = self.languages or ("",)
        keys = [_for_language(p["archive"], code) for p in self._parts(split) for code in sides]
        return list(dict.fromkeys(keys))

    def _parts(self, split: str) -> Any:
        if split not in self._splits:
            raise DataError(str(refuse(f"a split of {self.archives.name}", split, self._splits)))
        return self._splits[split]

    def _open(
        self, part: Mapping[str, Any], code: str
    ) -> AbstractContextManager[tuple[IO[bytes], str]]:
        """A table, or one side of parallel text: its bytes, and its name in messages."""
        patterns = _for_language(part.get("members", []), code)
        patterns = [patterns] if isinstance(patterns, str) else patterns
        # Sets published in one direction only are used for the other direction too.
        roles = ("src", "ref") if code in self.languages[:1] else ("ref", "src")
        members = [p.format(lang=code, role=role) for role in roles for p in patterns]
        archive = _for_language(part["archive"], code)
        return self.archives.open(archive, list(dict.fromkeys(members)))


def _for_language(value: Any, code: str) -> Any:
    return value[code] if isinstance(value, Mapping) else value


@contextmanager
def open_file(path: Path, members: Sequence[str] = ()) -> Iterator[tuple[IO[bytes], str]]:
    """A file, plain or .gz, or the first of `members` that an archive has; and its name."""
    if members:
        with _open_member(path, members) as opened:
            yield opened
    else:
        with open_bytes(path) as stream:
            yield stream, str(path)


@contextmanager
def _open_member(archive: Path, members: Sequence[str]) -> Iterator[tuple[IO[bytes], str]]:
    """Open the first of `members` that the archive holds, in any of its folders.

    Raises:
        DataError: the archive has none of them, or the file is not an archive.
    """
    with ExitStack() as stack:
        open_file: Any
        try:
            if zipfile.is_zipfile(archive):
                unzipped = stack.enter_context(zipfile.ZipFile(archive))
                names, open_file = unzipped.namelist(), unzipped.open
            else:
                untarred = stack.enter_context(tarfile.open(archive))
                names, open_file = untarred.getnames(), untarred.extractfile
        except READ_ERRORS as error:
            raise DataError(
                f"{archive} is truncated or not a zip or tar archive ({error}); download it again"
            ) from error
        name = _member(archive, names, members)
        try:
            stream = stack.enter_context(open_file(name))
        except (*READ_ERRORS, RuntimeError) as error:  # encrypted, or an unknown compression
            raise DataError(f"{archive}:{name} cannot be extracted: {error}") from error
        yield stream, f"{archive}:{name}"


def _member(archive: Path, names: Sequence[str], members: Sequence[str]) -> str:
    for member in members:
        for name in names:
            if name == member or name.endswith(f"/{member}"):
                return name
    closest = nearest(members[0], names)
    hint = f"; closest match: {closest}" if closest else f"; it holds {len(names)} other files"
    raise DataError(f"{archive} has no {' or '.join(members)}{hint}")


def _pairs(
    source: tuple[IO[bytes], str], target: tuple[IO[bytes], str]
) -> Iterator[tuple[str, str]]:
    """Aligned sentences of two open files."""
    names = source[1], target[1]
    if all(name.endswith((".xml", ".sgm")) for name in names):
        return aligned_segments(read_segments(*source), read_segments(*target), *names)
    return aligned(_sentences(*source), _sentences(*target), *names)


def _sentences(stream: IO[bytes], name: str) -> Iterator[str]:
    lines = decoded_lines(stream, name)
    if "train.tags." not in name:
        return lines
    # entities are decoded as in IWSLT's xml files
    return (unescape(line).strip() for line in lines if not line.startswith("<"))

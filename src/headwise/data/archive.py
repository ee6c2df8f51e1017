"""Corpora as they were first published: zip and tar archives of plain text, xml and sgm.

Which archive holds which split under which name stands in the corpus' yaml; this module knows
only the formats:

- `lines`: one sentence a line (KFTT, Europarl, Common Crawl, SETIMES in Moses format);
- `tags`: IWSLT's training files, where lines that begin with `<` are about the talk;
- `segments`: IWSLT's xml and WMT's sgm, aligned by document and segment id; a member that is
  neither (some of WMT's sets are also published as plain text) is read as `lines`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from headwise.data.digest import FileMemo, combined_digest
from headwise.data.download import MANIFEST, download, published_checksum, recorded_sha256
from headwise.data.lines import aligned, decoded_lines, open_bytes
from headwise.data.members import find_member, open_member
from headwise.data.names import check_file_name, check_relative_path
from headwise.data.segments import aligned_segments, read_segments, unescape
from headwise.errors import ConfigError, DataError, refuse

FORMATS = ("lines", "tags", "segments")


class ArchiveSource:
    """Splits read straight from the original archives.

    Archives are looked for in `folder`, when that is given; else in
    `cache_dir/downloads/<name>/`, where they are downloaded to when they are missing. Files in
    the download folder must have the published checksum; those in `folder` are taken as they
    are, since they may be another release or a part.

    Args:
        name: the corpus, naming its download folder.
        archives: name -> {files: [names or relative paths it may have], downloads: [{url, file,
            md5 or sha1 or sha256}]}.
        splits: split -> parts, read one after the other; each {archive, format, members}.
            `archive` and `members` may be mappings from language to value, and `members` a list
            of alternatives; `{lang}` stands for the language and `{role}` for src or ref.
            Without `members` the "archive" is itself the text, plain or .gz.
        source: language code of the source side.
        target: language code of the target side.
        cache_dir: where downloads are kept.
        folder: the user's own folder of archives.

    Raises:
        ConfigError: a name that leads out of the folder, an unknown format or language.
    """

    def __init__(
        self,
        name: str,
        archives: dict[str, Any],
        splits: dict[str, Any],
        source: str,
        target: str,
        cache_dir: Path,
        folder: Path | None = None,
    ) -> None:
        _check_names(name, archives, splits)
        self.name, self.source, self.target = name, source, target
        self.downloads = Path(cache_dir) / "downloads" / name
        self.folder = folder
        self._archives, self._splits = archives, splits
        self._memo = FileMemo(Path(cache_dir))
        for split, parts in splits.items():
            for part in parts:
                if part["format"] not in FORMATS:
                    raise refuse(f"splits.{split}.format", part["format"], FORMATS)
                for code in (source, target):
                    self._check_language(part, code, split)

    def splits(self) -> list[str]:
        """Splits that are here or, without a folder of the user's, can be downloaded."""
        names = sorted(self._splits)
        return names if self.folder is None else [n for n in names if not self._missing(n)]

    def is_local(self, splits: Sequence[str]) -> bool:
        """Whether every archive that `splits` need is on disk."""
        return not any(self._missing(split) for split in splits if split in self._splits)

    def prepare(self, splits: Sequence[str]) -> None:
        """Have every archive on disk that `splits` need.

        Raises:
            DataError: one is missing and cannot be downloaded, or has a wrong checksum.
        """
        for split in splits:
            for key in self._needed(split):
                self._path(key)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The split's sentences, streamed from the archives.

        Raises:
            DataError: missing, damaged, misaligned, empty or not UTF-8.
        """
        self.prepare([split])
        for part in self._parts(split):
            yield from self._part_pairs(part)

    def identity(self, split: str) -> str:
        """Hash of the archives' bytes and of what is read from them."""
        self.prepare([split])
        hashes = [self._memo.sha256(self._path(key)) for key in self._needed(split)]
        members = [
            f"{part['format']}:{self._member(part, code)[1]}"
            for part in self._parts(split)
            for code in (self.source, self.target)
        ]
        return combined_digest([*hashes, *members])

    def _part_pairs(self, part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        first, second = (self._member(part, code) for code in (self.source, self.target))
        names = [f"{path}:{member}" if member else str(path) for path, member in (first, second)]
        with _open(*first) as source, _open(*second) as target:
            if part["format"] == "segments" and _has_segments(first[1], second[1]):
                sides = read_segments(source, names[0]), read_segments(target, names[1])
                yield from aligned_segments(*sides, *names)
                return
            left, right = decoded_lines(source, names[0]), decoded_lines(target, names[1])
            if part["format"] == "tags":
                left, right = _without_tags(left), _without_tags(right)
            yield from aligned(left, right, names[0], names[1])

    def _parts(self, split: str) -> Sequence[Mapping[str, Any]]:
        if split not in self._splits:
            raise DataError(str(refuse(f"a split of {self.name}", split, self._splits)))
        parts: Sequence[Mapping[str, Any]] = self._splits[split]
        return parts

    def _needed(self, split: str) -> list[str]:
        """Names of the archives that `split` is read from."""
        keys = [
            _of_language(part["archive"], code)
            for part in self._parts(split)
            for code in (self.source, self.target)
        ]
        return list(dict.fromkeys(keys))

    def _missing(self, split: str) -> list[str]:
        return [key for key in self._needed(split) if self._found(key) is None]

    def _found(self, key: str) -> Path | None:
        """The archive in the user's folder or, without one, among the downloads."""
        folder = self.downloads if self.folder is None else self.folder
        paths = (folder / name for name in self._archives[key]["files"])
        return next((path for path in paths if path.is_file()), None)

    def _path(self, key: str) -> Path:
        path = self._found(key)
        entries = self._archives[key].get("downloads") or []
        if path is None:
            advice = (
                f"put {' or '.join(self._archives[key]['files'])} into "
                f"{self.folder or self.downloads}"
            )
            if entries:
                advice += f" (from {entries[0]['url']})"
            if self.folder is not None or not entries:
                raise DataError(f"archive {key!r} is missing: {advice}")
            try:
                return download(entries, self.downloads)
            except DataError as error:
                raise DataError(f"{advice}; downloading failed ({error})") from error
        if self.folder is None:
            self._verify(path, entries)
        return path

    def _verify(self, path: Path, entries: Sequence[Mapping[str, str]]) -> None:
        """Compare a download with the published checksum or, without one, with what was got."""
        own = [entry for entry in entries if self.downloads / entry["file"] == path]
        published = [found for entry in own if (found := published_checksum(entry))]
        noted = recorded_sha256(path, self.downloads)
        what = "the published file"
        if not published and noted is not None:
            published, what = [("sha256", noted)], f"what {self.downloads / MANIFEST} recorded"
        for algorithm, expected in published:
            actual = self._memo.checksum(path, algorithm)
            if actual != expected:
                raise DataError(
                    f"{path} is not {what}: {algorithm} {actual}, expected {expected}. Delete it "
                    "to have it fetched again, or, if it is your own version, name a folder that "
                    "holds it with data.dir="
                )

    def _member(self, part: Mapping[str, Any], code: str) -> tuple[Path, str | None]:
        """Archive and member name of one side of a part; None for a file that is no archive."""
        path = self._path(_of_language(part["archive"], code))
        if "members" not in part:
            return path, None
        patterns = _of_language(part["members"], code)
        patterns = [patterns] if isinstance(patterns, str) else patterns
        role = "src" if code == self.source else "ref"
        other = "ref" if role == "src" else "src"
        # Sets that were published in one direction only serve the other one too.
        wanted = [p.format(lang=code, role=r) for r in (role, other) for p in patterns]
        return path, find_member(path, list(dict.fromkeys(wanted)), self._memo)

    def _check_language(self, part: Mapping[str, Any], code: str, split: str) -> None:
        for key in ("archive", "members"):
            value = part.get(key)
            if isinstance(value, Mapping) and code not in value:
                raise ConfigError(
                    f"splits.{split}: {self.name} has no language {code!r}; "
                    f"it has {', '.join(sorted(value))}"
                )


def _check_names(name: str, archives: Mapping[str, Any], splits: Mapping[str, Any]) -> None:
    """Refuse names by which something outside of the folder would be read or written."""
    check_file_name("name", name)
    for split in splits:
        check_file_name("splits", split)
    for key, archive in archives.items():
        for file in archive["files"]:
            check_relative_path(f"archives.{key}.files", file)
        for entry in archive.get("downloads") or []:
            check_relative_path(f"archives.{key}.downloads.file", entry["file"])


def _open(path: Path, member: str | None) -> AbstractContextManager[IO[bytes]]:
    return open_bytes(path) if member is None else open_member(path, member)


def _has_segments(*members: str | None) -> bool:
    return all(member is not None and member.endswith((".xml", ".sgm")) for member in members)


def _of_language(value: Any, code: str) -> Any:
    return value[code] if isinstance(value, Mapping) else value


def _without_tags(lines: Iterator[str]) -> Iterator[str]:
    """The sentences of an IWSLT training file, entities undone as in its xml files."""
    for line in lines:
        if not line.startswith("<"):
            yield unescape(line).strip()

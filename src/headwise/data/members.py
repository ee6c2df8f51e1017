"""Files inside of zip and tar archives, read in place.

A member is streamed from the archive, so nothing is unpacked to disk or held in memory. A
compressed tar can only be read from its start: each member costs one pass up to its place.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from headwise.data.digest import FileMemo
from headwise.data.lines import DAMAGED
from headwise.errors import DataError, nearest


def member_names(archive: Path) -> list[str]:
    """Names of all files in an archive, in its order.

    Raises:
        DataError: the file is no zip or tar, or is truncated.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as unzipped:
                return [info.filename for info in unzipped.infolist() if not info.is_dir()]
        with tarfile.open(archive, "r|*") as untarred:
            return [info.name for info in untarred if info.isfile()]
    except DAMAGED as error:
        raise DataError(
            f"{archive} is truncated or no zip or tar archive ({error}); get it again"
        ) from error


def find_member(archive: Path, patterns: Sequence[str], memo: FileMemo) -> str:
    """The first of `patterns` that is a member; folders above it may differ.

    Raises:
        DataError: none is; what was looked for and the nearest member are named.
    """
    names: list[str] = memo.recall(archive, "members", member_names)
    for pattern in patterns:
        for name in names:
            if name == pattern or name.endswith(f"/{pattern}"):
                return name
    closest = nearest(patterns[0], names)
    hint = f"; nearest there: {closest}" if closest else f"; it holds {len(names)} other files"
    raise DataError(f"{archive} has no {' or '.join(patterns)}{hint}")


@contextmanager
def open_member(archive: Path, name: str) -> Iterator[IO[bytes]]:
    """The bytes of one member."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as unzipped, unzipped.open(name) as stream:
            yield stream
        return
    with tarfile.open(archive, "r|*") as untarred:
        for info in untarred:
            if info.name == name:
                content = untarred.extractfile(info)
                if content is not None:
                    with content:
                        yield content
                    return
    raise DataError(f"{archive} has no {name}")

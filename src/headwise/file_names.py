"""Checks of names in configs that become paths: none may point outside its folder.

The config of an untrusted run folder must not cause reads or writes outside the cache and the
run folder.
"""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from headwise.errors import require

MAX_BYTES = 200  # file systems allow 255, and endings are appended
# One spelling of a name of a class or column: files of macOS write "é" as two characters.
nfc = partial(unicodedata.normalize, "NFC")
_INVALID = re.compile(r"[\\\0\r\n]")


def check_file_name(key: str, value: Any) -> None:
    """Reject a value that is not a single file name.

    Raises:
        ConfigError: empty, `.`, `..`, too long, or with a separator; the message names `key`.
    """
    fits = _is_relative(value) and "/" not in value and value != "."
    require(fits, key, "a plain name, without / in it", value)
    n_bytes = len(value.encode())
    require(n_bytes <= MAX_BYTES, key, f"a name of at most {MAX_BYTES} bytes", f"{n_bytes} bytes")


def check_relative_path(key: str, value: Any) -> None:
    """Reject a path that is absolute or contains `..`.

    Raises:
        ConfigError: the message names `key`.
    """
    require(_is_relative(value), key, "a relative path without ..", value)


def _is_relative(value: Any) -> bool:
    if not isinstance(value, str) or not value or _INVALID.search(value):
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts

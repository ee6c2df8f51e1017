"""Names from configs that become paths: none may lead out of the folder it is for.

A run folder got from a stranger holds a config; what is fetched or written on its word must stay
below the cache and below the run folder.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from headwise.errors import require

_FOREIGN = re.compile(r"[\\\0\r\n]")


def check_file_name(key: str, value: Any) -> None:
    """Refuse what is not the name of one file.

    Raises:
        ConfigError: empty, `.`, `..`, or with a separator in it; `key` names it.
    """
    fits = _is_relative(value) and "/" not in value and value != "."
    require(fits, key, "a plain name, without / in it", value)


def check_relative_path(key: str, value: Any) -> None:
    """Refuse a path that is absolute or holds `..`.

    Raises:
        ConfigError: it is, or does; `key` names it.
    """
    require(_is_relative(value), key, "a relative path without ..", value)


def _is_relative(value: Any) -> bool:
    if not isinstance(value, str) or not value or _FOREIGN.search(value):
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts

"""Properties of languages, by their codes."""

from __future__ import annotations

WITHOUT_SPACES = frozenset({"ja", "zh", "yue", "th", "lo", "km", "my", "bo"})  # between words


def language_of(code: str) -> str:
    """Return the language of a code with region or script: "zh-CN" and "zh_Hans" are "zh"."""
    return code.replace("_", "-").split("-")[0].lower()


def has_spaces(code: str) -> bool:
    """Whether words are separated by spaces."""
    return language_of(code) not in WITHOUT_SPACES

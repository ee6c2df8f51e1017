"""Errors that a user can fix.

A `HeadwiseError` is printed as one message without a traceback and ends the command with a
non-zero exit code; any other exception is a defect and is printed with its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class HeadwiseError(Exception):
    """A problem that the user can fix; the message says what is wrong and what to do."""


class ConfigError(HeadwiseError):
    """A configuration key or value that is not allowed."""


class UntrustedError(ConfigError):
    """A class outside of the trusted packages, which may be added to HEADWISE_PLUGINS."""


class DataError(HeadwiseError):
    """A corpus that is missing, misaligned, empty or not readable as UTF-8."""


class CheckpointError(HeadwiseError):
    """A checkpoint that is truncated, in another format, or of another model."""


class Pruned(HeadwiseError):
    """A run stopped at a validation by the pruner of a search."""


class RunError(HeadwiseError):
    """A run folder that cannot be used (locked, other settings, not finished)."""


class Interrupted(BaseException):
    """A run stopped by a signal, after saving; not an `Exception`, so that a sweep ends too."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.signal_number)


def nearest(word: str, options: Iterable[str]) -> str | None:
    """Return the option closest to `word`, or None if none is close."""
    close = difflib.get_close_matches(word, list(options), n=1, cutoff=0.5)
    return close[0] if close else None


def meant(word: str, options: Iterable[str], form: str = "{}") -> str:
    """Return the sentence that suggests the closest option, written as `form`, or nothing."""
    close = nearest(word, options)
    return f" Did you mean {form.format(close)}?" if close else ""


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: 1 run, 2 runs."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{n:,} {noun}{plural if n != 1 else ''}"


def refuse(key: str, value: object, options: Iterable[str]) -> ConfigError:
    """Return the error for a `value` of `key` that is not one of `options`."""
    allowed = sorted(options)
    hint = meant(str(value), allowed)
    return ConfigError(f"{key} must be one of {', '.join(allowed)}; got {value!r}.{hint}")


def unknown(prefix: str, key: str, known: Sequence[str]) -> ConfigError:
    """Return the error for a `key` after `prefix` ("decode." or "") that is not one of `known`."""
    allowed, hint = ", ".join(known) or "none", meant(key, known, f"{prefix}{{}}")
    return ConfigError(f"{prefix}{key} is not known; allowed: {allowed}.{hint}")


def unset(key: str, instead: str = "") -> ConfigError:
    """Return the error for a `key` without a value; `instead`: other keys that can be set."""
    return ConfigError(f"{key} is missing: set {key}=…{instead}")


def require(condition: bool, key: str, allowed: str, value: object) -> None:
    """Raise a `ConfigError` that names key, value and allowed values unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{key} must be {allowed}, got {value!r}")

"""Which training pairs are kept, and the few normalisations that all text gets.

Dropping rules apply to training text only: a test set with sentences left out is another test
set. Normalisations apply to every split, since the model must meet at test time the letters it
was trained on.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headwise.config.schema import CleaningConfig
from headwise.errors import ConfigError, refuse
from headwise.languages import has_spaces, language_of

# Moses keeps a run of ASCII letters and digits whole and never splits a single character, so
# this counts at least as many pieces as it makes; white-space words count at most as many.
_MOST_TOKENS = re.compile(r"[A-Za-z0-9]+|\S")
# Moses deletes these before it counts, so a word made of them is no token.
_CONTROL = re.compile(r"[\x00-\x1f]")

# Romanian s and t with comma below (U+0218..U+021B) are the standard letters; text typed with
# old fonts has the Turkish cedilla letters instead. newstest2016 has only the comma.
_COMMA_BELOW = str.maketrans(
    {"\u015e": "\u0218", "\u015f": "\u0219", "\u0162": "\u021a", "\u0163": "\u021b"}
)


def romanian_comma_below(text: str) -> str:
    """Cedilla letters as comma-below letters (S and T, both cases)."""
    return text.translate(_COMMA_BELOW)


# name -> (language whose text it changes, function)
NORMALISATIONS: dict[str, tuple[str, Callable[[str], str]]] = {
    "romanian_comma_below": ("ro", romanian_comma_below),
}


@dataclass
class CleaningReport:
    """What became of the training pairs that were read."""

    n_read: int = 0
    n_kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # by rule
    truncated: bool = False  # reading stopped at max_train_pairs

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for the run folder."""
        return {
            "read": self.n_read,
            "kept": self.n_kept,
            "dropped": dict(sorted(self.dropped.items())),
            "truncated": self.truncated,
        }

    def __str__(self) -> str:
        rules = ", ".join(f"{rule} {count}" for rule, count in sorted(self.dropped.items()))
        rest = "; stopped at max_train_pairs" if self.truncated else ""
        return f"kept {self.n_kept} of {self.n_read} pairs (dropped: {rules or 'none'}){rest}"


class Normaliser:
    """The normalisations of a config: `source(text)` and `target(text)`, bound to the languages."""

    def __init__(self, names: Iterable[str], source: str, target: str) -> None:
        chosen = []
        for name in names:
            if name not in NORMALISATIONS:
                raise refuse("data.cleaning.normalise", name, NORMALISATIONS)
            chosen.append(NORMALISATIONS[name])
            if chosen[-1][0] not in (source, target):
                raise ConfigError(
                    f"data.cleaning.normalise: {name} changes {chosen[-1][0]!r} text, but the "
                    f"languages are {source!r} and {target!r}; leave it out"
                )
        self.source = _composed([change for language, change in chosen if language == source])
        self.target = _composed([change for language, change in chosen if language == target])

    def __call__(self, pairs: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """The pairs, normalised."""
        return ((self.source(source), self.target(target)) for source, target in pairs)


def _composed(functions: list[Callable[[str], str]]) -> Callable[[str], str]:
    return lambda text: functools.reduce(lambda done, change: change(done), functions, text)


class Cleaner:
    """The dropping rules of a config.

    Args:
        config: the limits; 0 turns one off.
        target: language code of the target side, for its Moses tokeniser.

    Raises:
        ConfigError: a negative limit, a ratio below 1, or Moses tokens of a language that is
            written without spaces.
    """

    def __init__(self, config: CleaningConfig, target: str) -> None:
        self.config = config
        for key in (
            "max_words",
            "max_source_characters",
            "max_target_characters",
            "max_target_moses_tokens",
        ):
            if getattr(config, key) < 0:
                raise ConfigError(f"data.cleaning.{key} must be 0 (off) or positive")
        if config.max_ratio != 0 and not config.max_ratio >= 1:
            raise ConfigError(
                f"data.cleaning.max_ratio must be 0 (off) or at least 1, got {config.max_ratio}"
            )
        if config.max_target_moses_tokens and not has_spaces(target):
            raise ConfigError(
                f"data.cleaning.max_target_moses_tokens counts words between spaces, and "
                f"{target!r} has none: set it to 0 and use max_target_characters"
            )
        self._moses = _MosesLimit(config.max_target_moses_tokens, target)

    def verdict(self, source: str, target: str) -> str | None:
        """The first rule that drops the pair, or None when it is kept."""
        rules = self.config
        if not source.strip() or not target.strip():
            return "empty"
        if rules.max_source_characters and len(source) > rules.max_source_characters:
            return "max_source_characters"
        if rules.max_target_characters and len(target) > rules.max_target_characters:
            return "max_target_characters"
        if rules.max_words or rules.max_ratio:
            lengths = (len(source.split()), len(target.split()))  # 1 at least
            if rules.max_words and max(lengths) > rules.max_words:
                return "max_words"
            if rules.max_ratio and max(lengths) > rules.max_ratio * min(lengths):
                return "max_ratio"
        if rules.max_target_moses_tokens and self._moses.exceeded(target):
            return "max_target_moses_tokens"
        return None

    def __call__(
        self,
        pairs: Iterator[tuple[str, str]],
        report: CleaningReport,
        limit: int | None = None,
    ) -> Iterator[tuple[str, str]]:
        """The first `limit` pairs that are kept, without white space around; `report` counts."""
        for source, target in pairs:
            source, target = source.strip(), target.strip()
            report.n_read += 1
            rule = self.verdict(source, target)
            if rule is not None:
                report.dropped[rule] += 1
                continue
            report.n_kept += 1
            yield source, target
            if report.n_kept == limit:
                report.truncated = True
                return


class _MosesLimit:
    """Whether a sentence has more than `limit` Moses tokens.

    The tokeniser takes about 80 us a sentence, two bounds on its count take 3: over KFTT's
    437,433 English lines only 8 % lie between the bounds and are tokenised.
    """

    def __init__(self, limit: int, language: str) -> None:
        self.limit = limit
        self._language = language
        self._tokenizer: Any = None

    def exceeded(self, sentence: str) -> bool:
        if len(sentence) <= self.limit or len(_MOST_TOKENS.findall(sentence)) <= self.limit:
            return False
        if len(sentence.split()) > self.limit and not _CONTROL.search(sentence):
            return True
        return self.count(sentence) > self.limit

    def count(self, sentence: str) -> int:
        """The number of Moses tokens, by the tokeniser itself."""
        if self._tokenizer is None:
            from sacremoses import MosesTokenizer

            self._tokenizer = MosesTokenizer(lang=language_of(self._language))
        return len(self._tokenizer.tokenize(sentence, escape=False))

"""Filters of training pairs, and normalisations of all text.

Filters apply to training text only: a filtered test set would be a different test set.
Normalisations apply to every split, since test text must have the same letters as training text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headwise.config.data import CleaningConfig
from headwise.errors import ConfigError, refuse, require
from headwise.languages import has_spaces, language_of

# Moses never splits a run of ASCII letters and digits, so this counts at least as many tokens as
# Moses makes.
_MOST_TOKENS = re.compile(r"[A-Za-z0-9]+|\S")

# Romanian s and t with comma below (U+0218..U+021B) are the standard letters; text typed with
# old fonts has the Turkish cedilla letters instead. newstest2016 has only the comma.
_COMMA_BELOW = str.maketrans("\u015e\u015f\u0162\u0163", "\u0218\u0219\u021a\u021b")

# name -> (language whose text it changes, letter -> letter)
NORMALISATIONS = {"romanian_comma_below": ("ro", _COMMA_BELOW)}


@dataclass
class CleaningReport:
    """Counts of training pairs that were read, kept and dropped."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # by rule
    truncated: bool = False  # reading stopped at max_train_pairs

    def as_dict(self) -> dict[str, Any]:
        """The report as plain types, for the run folder."""
        return {**vars(self), "dropped": dict(sorted(self.dropped.items()))}

    def __str__(self) -> str:
        rules = ", ".join(f"{rule} {count}" for rule, count in sorted(self.dropped.items()))
        rest = "; stopped at max_train_pairs" if self.truncated else ""
        return f"kept {self.kept} of {self.read} pairs (dropped: {rules or 'none'}){rest}"


class Normaliser:
    """The normalisations of a config: `source(text)` and `target(text)`."""

    def __init__(self, names: Iterable[str], source: str, target: str) -> None:
        languages = language_of(source), language_of(target)
        letters: dict[str, dict[int, int]] = {language: {} for language in languages}
        for name in names:
            if name not in NORMALISATIONS:
                raise refuse("data.cleaning.normalise", name, NORMALISATIONS)
            language, changes = NORMALISATIONS[name]
            if language not in letters:
                raise ConfigError(
                    f"data.cleaning.normalise: {name} changes {language!r} text, but the "
                    f"languages are {source!r} and {target!r}; remove it"
                )
            letters[language].update(changes)
        self._source, self._target = map(letters.__getitem__, languages)

    def source(self, text: str) -> str:
        """Text of the source side, normalised."""
        return text.translate(self._source) if self._source else text

    def target(self, text: str) -> str:
        """Text of the target side, normalised."""
        return text.translate(self._target) if self._target else text

    def __call__(self, pairs: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """The pairs, normalised."""
        return ((self.source(source), self.target(target)) for source, target in pairs)


class Cleaner:
    """The filters of a config.

    Args:
        config: the limits; 0 is off.
        target: language code of the target side, for its Moses tokeniser.

    Raises:
        ConfigError: a negative limit, a ratio below 1, or a limit on Moses tokens of a language
            without spaces.
    """

    def __init__(self, config: CleaningConfig, target: str) -> None:
        self.config = config
        characters = "max_source_characters", "max_target_characters"
        for key in ("max_words", *characters, "max_target_moses_tokens"):
            limit = getattr(config, key)
            require(limit >= 0, f"data.cleaning.{key}", "0 (off) or positive", limit)
        ratio = config.max_ratio
        allowed = "0 (off) or at least 1"
        require(ratio == 0 or ratio >= 1, "data.cleaning.max_ratio", allowed, ratio)
        if config.max_target_moses_tokens and not has_spaces(target):
            raise ConfigError(
                f"data.cleaning.max_target_moses_tokens counts words between spaces, and "
                f"{target!r} has none: set it to 0 and use max_target_characters"
            )
        self._language = language_of(target)

    def dropped_by(self, source: str, target: str) -> str | None:
        """Name of the first rule that drops the pair; None if it is kept."""
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
        if rules.max_target_moses_tokens and self._has_more_tokens(target):
            return "max_target_moses_tokens"
        return None

    def __call__(
        self,
        pairs: Iterator[tuple[str, str]],
        report: CleaningReport,
        limit: int | None = None,
    ) -> Iterator[tuple[str, str]]:
        """Yield the first `limit` pairs that are kept, stripped; counts in `report`."""
        for source, target in pairs:
            source, target = source.strip(), target.strip()
            report.read += 1
            rule = self.dropped_by(source, target)
            if rule is not None:
                report.dropped[rule] += 1
                continue
            report.kept += 1
            yield source, target
            if report.kept == limit:
                report.truncated = True
                return

    def _has_more_tokens(self, sentence: str) -> bool:
        """Whether a sentence has more Moses tokens than `max_target_moses_tokens`."""
        limit = self.config.max_target_moses_tokens
        # an upper bound first, as the tokeniser is slow
        return len(_MOST_TOKENS.findall(sentence)) > limit and self.n_tokens(sentence) > limit

    def n_tokens(self, sentence: str) -> int:
        """The exact number of Moses tokens."""
        return len(self._moses.tokenize(sentence, escape=False))

    @cached_property
    def _moses(self) -> Any:
        from sacremoses import MosesTokenizer

        return MosesTokenizer(lang=self._language)

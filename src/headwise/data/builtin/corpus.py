"""The built-in German-English corpus, written by a grammar of our own.

Made for the demo and the tests: no download, no licence, and much for attention to do. German
verb-second and verb-final clauses, separable verbs, the perfect and modal brackets, agreement,
compounds, wh-words in questions and in clauses, pronouns with an antecedent, adverbials that move.
A sentence has one right translation, so that BLEU can come near 100.

Some combinations of known words (12 in 100: a subject noun with a verb, an adjective with a noun, a
compound's modifier with its head) are kept out of `train` and `valid`; every sentence of `test`
holds at least one of them. The choice depends on the words alone, not on the seed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache

from headwise.data.builtin.lexicon import COMPOUNDS, FOLDER, FORMS
from headwise.data.builtin.sampler import Sampler
from headwise.errors import refuse, require

GENERATOR_VERSION = 3  # raised when the code draws other pairs; rules and words are hashed
HELD_OUT_PERCENT = 12
SPLITS = ("train", "valid", "test")
_LANGUAGES = ("de", "en")
_MAX_PAIRS = 1_000_000  # far below the number of sentences the grammar can make

Pair = tuple[str, str]


@cache
def held_out(combination: str) -> bool:
    """Whether a combination of words is kept for the test set."""
    digest = hashlib.sha256(combination.encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


@cache
def _grammar_hash() -> str:
    """Changes with the rules and the words."""
    digest = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("*.tsv")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def words_of(text: str) -> list[str]:
    """The words without punctuation, the first ones of sentences as written."""
    return re.findall(r"[\w-]+", text)


class BuiltinCorpus:
    """German-English sentence pairs from a seed; see the module.

    Generated at the first use of a split, then kept. A smaller `n_train` gives the first pairs of a
    larger one. Every word of `test` occurs in `train` (a held-out compound as its two parts),
    provided that `n_train` is large enough to show the lexicon, about 10000.
    """

    def __init__(
        self,
        source: str,
        target: str,
        seed: int = 1,
        n_train: int = 30000,
        n_valid: int = 500,
        n_test: int = 1000,
    ) -> None:
        """Choose direction and sizes; raises `ConfigError` for what the grammar cannot make."""
        for key, language in (("data.source", source), ("data.target", target)):
            if language not in _LANGUAGES:
                raise refuse(key, language, _LANGUAGES)
        require(source != target, "data.target", "another language than data.source", target)
        for key, count in (("n_train", n_train), ("n_valid", n_valid), ("n_test", n_test)):
            require(1 <= count <= _MAX_PAIRS, key, f"between 1 and {_MAX_PAIRS}", count)
        self.source, self.target, self.seed = source, target, seed
        self.sizes = {"train": n_train, "valid": n_valid, "test": n_test}
        self._pairs: dict[str, list[Pair]] | None = None

    def splits(self) -> list[str]:
        """The names of the splits."""
        return list(SPLITS)

    def pairs(self, split: str) -> Iterator[Pair]:
        """Pairs of (source sentence, target sentence) of a split, always in the same order."""
        if split not in SPLITS:
            raise refuse("split", split, SPLITS)
        if self._pairs is None:
            self._pairs = self._generate()
        forward = self.source == "de"
        for de, en in self._pairs[split]:
            yield (de, en) if forward else (en, de)

    def identity(self, split: str) -> str:
        """Version and hash of the generator with its arguments."""
        if split not in SPLITS:
            raise refuse("split", split, SPLITS)
        arguments = f"{self.source} {self.target} {self.seed} {self.sizes} {HELD_OUT_PERCENT}"
        digest = hashlib.sha256(f"{_grammar_hash()} {arguments} {split}".encode()).hexdigest()
        return f"builtin-{GENERATOR_VERSION}-{digest[:16]}"

    def _generate(self) -> dict[str, list[Pair]]:
        seen: set[str] = set()  # sentences of either language
        valid = self._draw("valid", self.sizes["valid"], seen)
        train = self._draw("train", self.sizes["train"], seen)
        # A few more than needed: those of known words come first, others if `train` is very small.
        size, known = self.sizes["test"], _known_words(train)
        test = self._draw("test", size + size // 8 + 1, seen)
        test.sort(key=lambda pair: not known.issuperset(words_of(" ".join(pair))))
        return {"train": train, "valid": valid, "test": test[:size]}

    def _draw(self, split: str, size: int, seen: set[str]) -> list[Pair]:
        """New pairs, with a held-out combination in the test set alone."""
        sampler = Sampler(f"headwise {self.seed} {split}")
        pairs: list[Pair] = []
        while len(pairs) < size:
            pair = sampler.draw()
            held = any(map(held_out, sampler.combinations))
            if held == (split == "test") and seen.isdisjoint(pair):
                seen.update(pair)
                pairs.append(pair)
        return pairs


def compound_forms() -> dict[str, tuple[str, str]]:
    """Every spelling of every compound, with its modifier and its head in the same form."""
    return {
        noun[form]: (noun["modifier"], noun[form].removeprefix(noun["modifier"]))
        for noun in COMPOUNDS
        for form in FORMS
    }


def _known_words(pairs: list[Pair]) -> set[str]:
    """The words of the pairs, and compounds whose parts both occur in another one."""
    known = set(words_of(" ".join(map(" ".join, pairs))))
    forms = compound_forms()
    modifiers = {forms[word][0] for word in known & forms.keys()}
    heads = {forms[word][1] for word in known & forms.keys()}
    made = {form for form, (first, last) in forms.items() if first in modifiers and last in heads}
    return known | made

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
from collections.abc import Iterator
from functools import cache

from headwise.data.builtin.lexicon import COMPOUNDS
from headwise.data.builtin.rules import FOLDER
from headwise.data.builtin.sampler import Sampler
from headwise.errors import refuse, require

GENERATOR_VERSION = 2  # raised when the code draws other pairs; rules and words are hashed
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
    return text.replace(",", "").replace(".", "").replace("?", "").split()


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
        valid = self._draw("valid", seen)
        train = self._draw("train", seen)
        return {"train": train, "valid": valid, "test": self._draw_test(seen, train)}

    def _sampler(self, split: str) -> Sampler:
        def accept(combinations: list[str]) -> bool:
            return any(map(held_out, combinations)) == (split == "test")

        return Sampler(f"headwise {self.seed} {split}", accept)

    def _draw(self, split: str, seen: set[str]) -> list[Pair]:
        """Distinct pairs without a held-out combination."""
        sampler = self._sampler(split)
        pairs: list[Pair] = []
        while len(pairs) < self.sizes[split]:
            de, en = sampler.draw()
            if de not in seen and en not in seen:
                seen.update((de, en))
                pairs.append((de, en))
        return pairs

    def _draw_test(self, seen: set[str], train: list[Pair]) -> list[Pair]:
        """Distinct pairs with a held-out combination, of words that `train` has."""
        known = set(words_of(" ".join(sentence for pair in train for sentence in pair)))
        known |= _unseen_compounds(known)
        sampler, size = self._sampler("test"), self.sizes["test"]
        pairs: list[Pair] = []
        rest: list[Pair] = []  # with an unknown word: used only when `train` is very small
        for _ in range(10 * size + 1000):
            if len(pairs) == size:
                break
            de, en = sampler.draw()
            if de in seen or en in seen:
                continue
            seen.update((de, en))
            fits = known.issuperset(words_of(f"{de} {en}"))
            (pairs if fits else rest).append((de, en))
        return pairs + rest[: size - len(pairs)]


def compound_forms() -> dict[str, tuple[str, str]]:
    """Every spelling of every compound, with its modifier and its head in the same form."""
    parts = {}
    for noun in COMPOUNDS:
        for form in (noun.de, noun.de_oblique, noun.de_plural, noun.de_plural + "n"):
            parts[form] = (noun.modifier, form[len(noun.modifier) :])
    return parts


def _unseen_compounds(known: set[str]) -> set[str]:
    """The compounds whose modifier and head both occur in another known one."""
    forms = compound_forms()
    seen = [forms[word] for word in known if word in forms]
    modifiers = {modifier for modifier, _ in seen}
    heads = {head for _, head in seen}
    return {form for form, (first, last) in forms.items() if first in modifiers and last in heads}

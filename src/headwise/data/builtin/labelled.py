"""The English of the built-in corpus, labelled by the kind of its sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headwise.data.builtin.corpus import BuiltinCorpus
from headwise.data.sources.tables import Row, Select

# Label -> pattern in the layout of a sentence; the first that matches.
KINDS = {
    "question": r"\?",
    "reason": "[Bb]ecause",
    "contrast": "[Aa]lthough|but",
    "time": "[Ww]hen|while|[Bb]efore",
    "sequence": " and ",
    "plan": r"b\.infinitive",  # wants to, tries to
    "report": r"b\.",  # says that, asks whether, asks who
    "statement": "",
}


class BuiltinTables(BuiltinCorpus):
    """Columns `text`, a sentence without its final mark, and `label`, one of `KINDS`.

    The test set has new combinations of words (`headwise.data.builtin.corpus`).
    """

    def __init__(
        self, seed: int = 1, n_train: int = 6000, n_valid: int = 500, n_test: int = 1000
    ) -> None:
        super().__init__("en", "de", seed, n_train, n_valid, n_test)

    def identity(self, split: str) -> str:
        """Version and hash of the generator with its arguments."""
        return f"{super().identity(split)}-labelled"

    def rows(self, split: str, select: Select) -> Iterator[Row]:
        """The sentences of a split, with their labels."""
        for number, (sentence, _) in enumerate(self.pairs(split), 1):
            layout = self.layouts[sentence]
            label = next(kind for kind, pattern in KINDS.items() if re.search(pattern, layout))
            yield f"{self.path(split)} {number}", {"text": sentence.rstrip(".?"), "label": label}

"""The built-in corpus: rules and words as data files, and a sampler of sentence pairs."""

from __future__ import annotations

from headwise.data.builtin.corpus import BuiltinCorpus, BuiltinTables

__all__ = ["BuiltinCorpus", "BuiltinTables"]

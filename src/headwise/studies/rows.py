"""Group runs into lines of a figure: runs of one corpus that differ only in their seed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwise.plots.style import drawable
from headwise.studies.match import SavedRun, differing_keys
from headwise.studies.names import OTHER_GROUPS, choice_name, class_word, corpus_name

FIRST_ROWS = ("softmax", "entmax15", "alpha_entmax")  # in figures, as in papers
MAX_KEYS = 3  # in the name of a row
NAMED_GROUPS = ("attention", "sites", *OTHER_GROUPS)


@dataclass(frozen=True)
class CorpusRows:
    """The runs of one corpus.

    Attributes:
        corpus: displayed name and languages.
        stem: the same for file names.
        rows: name of a choice -> its runs, by seed.
    """

    corpus: str
    stem: str
    rows: Mapping[str, Sequence[SavedRun]]

    @property
    def runs(self) -> list[SavedRun]:
        """All of them."""
        return [run for runs in self.rows.values() for run in runs]


def corpus_rows(runs: Sequence[SavedRun]) -> list[CorpusRows]:
    """Group runs by corpus and choice, in the order of first occurrence."""
    texts: dict[tuple[Any, ...], list[SavedRun]] = {}
    for run in runs:
        languages = run.task.languages
        key = run.config.data.name, languages, run.data.get("text"), run.data.get("vocabulary")
        texts.setdefault(key, []).append(run)
    corpora: list[CorpusRows] = []
    for (name, languages, *_), same_text in texts.items():
        corpus = corpus_name(same_text[0].config)
        same = sum(other.corpus.partition(" (")[0] == corpus for other in corpora)
        if same:  # another text with the same name, or other tokens
            corpus = f"{corpus} (text {same + 1})"
        stem = "_".join([name, *languages, *([str(same + 1)] if same else [])])
        corpora.append(CorpusRows(corpus, file_stem(stem), named_rows(same_text)))
    return corpora


def named_rows(runs: Sequence[SavedRun], but: str = "") -> dict[str, list[SavedRun]]:
    """Group runs of one corpus by choice, named by the attention and other differing keys.

    Args:
        but: a key that may differ in a group.
    """
    choices: list[tuple[Mapping[str, Any], list[SavedRun]]] = []
    for run in runs:
        settings = {key: value for key, value in run.decisive.items() if key != but}
        row = next((same for decisive, same in choices if decisive == settings), None)
        if row is None:
            choices.append((settings, [run]))
        else:
            row.append(run)
    target_keys = [f"{group}._target_" for group in ("attention", *OTHER_GROUPS)]  # always named
    differing = differing_keys([decisive for decisive, _ in choices])
    keys = [key for key in differing if key not in target_keys]
    other_keys = [key for key in keys if key.partition(".")[0] not in NAMED_GROUPS]
    names = [_name(same[0], decisive, other_keys) for decisive, same in choices]
    if len(set(names)) < len(names):  # the same attention with other settings
        names = [_name(same[0], decisive, keys) for decisive, same in choices]
    rows: dict[str, list[SavedRun]] = {}
    for name, (_, same) in zip(names, choices, strict=True):
        unique = name if name not in rows else f"{name} ({len(rows) + 1})"
        rows[unique] = sorted(same, key=lambda run: run.seed)
    return {name: rows[name] for name in (*filter(rows.__contains__, FIRST_ROWS), *rows)}


def file_stem(name: str) -> str:
    """Return a name that is safe in file names."""
    return re.sub(r"[^\w.-]+", "_", drawable(name)).strip("_.-")


def _name(run: SavedRun, decisive: Mapping[str, Any], keys: Sequence[str]) -> str:
    parts = [choice_name(run.config)]
    for key in keys[:MAX_KEYS]:
        group, _, last = key.rpartition(".")
        value = decisive.get(key)
        if last == "_target_":
            parts.append(f"{group} {class_word(value)}")
        elif last == "name":
            parts.append(f"{group} {value}")
        else:
            parts.append(f"{last} {'none' if value is None else value}")
    return ", ".join(parts)

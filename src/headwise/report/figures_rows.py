"""Which runs make one line of a figure: those of one corpus that differ in their seed alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.report.paper_runs import FoundRun, differing_keys, read_run
from headwise.report.run_names import BESIDE, choice_name, class_word, corpus_name

FIRST = ("softmax", "entmax15", "alpha_entmax")  # in the order of the papers
MOST_KEYS = 3  # that tell rows apart in a name
NAMED = ("attention", "sites", *BESIDE)


@dataclass(frozen=True)
class CorpusRows:
    """The runs on one text.

    Attributes:
        corpus: its name and languages, as a reader sees them.
        stem: the same as part of a file name.
        rows: name of a choice -> its runs, by seed.
    """

    corpus: str
    stem: str
    rows: Mapping[str, Sequence[FoundRun]]


def corpus_rows(folders: Sequence[Path]) -> list[CorpusRows]:
    """Runs by corpus and choice, in the order of the first of each.

    Raises:
        RunError: a folder that holds no run, or one of another version.
    """
    texts: dict[tuple[Any, ...], list[FoundRun]] = {}
    for folder in folders:
        run = read_run(folder)
        key = run.config.data.name, run.task.languages(run.config), run.text
        texts.setdefault(key, []).append(run)
    found: list[CorpusRows] = []
    for (name, languages, _), runs in texts.items():
        corpus = corpus_name(runs[0].config)
        same = sum(other.corpus.partition(" (")[0] == corpus for other in found)
        if same:  # other text under the same name
            corpus = f"{corpus} (text {same + 1})"
        stem = "_".join([name, *languages, *([str(same + 1)] if same else [])])
        found.append(CorpusRows(corpus, file_stem(stem), named_rows(runs)))
    return found


def named_rows(runs: Sequence[FoundRun]) -> dict[str, list[FoundRun]]:
    """Runs of one corpus by what was chosen, named by the attention and what else differs."""
    choices: list[tuple[Mapping[str, Any], list[FoundRun]]] = []
    for run in runs:
        row = next((own for decisive, own in choices if decisive == run.decisive), None)
        if row is None:
            choices.append((run.decisive, [run]))
        else:
            row.append(run)
    chosen = [f"{group}._target_" for group in ("attention", *BESIDE)]  # named in any case
    differing = differing_keys([decisive for decisive, _ in choices])
    keys = [key for key in differing if key not in chosen]
    elsewhere = [key for key in keys if key.partition(".")[0] not in NAMED]
    names = [_name(own[0], decisive, elsewhere) for decisive, own in choices]
    if len(set(names)) < len(names):  # settings of one and the same attention
        names = [_name(own[0], decisive, keys) for decisive, own in choices]
    rows: dict[str, list[FoundRun]] = {}
    for name, (_, own) in zip(names, choices, strict=True):
        unique = name if name not in rows else f"{name} ({len(rows) + 1})"
        rows[unique] = sorted(own, key=lambda run: run.seed)
    return {name: rows[name] for name in (*filter(rows.__contains__, FIRST), *rows)}


def file_stem(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_.-")


def _name(run: FoundRun, decisive: Mapping[str, Any], keys: Sequence[str]) -> str:
    parts = [choice_name(run.config)]
    for key in keys[:MOST_KEYS]:
        group, _, last = key.rpartition(".")
        value = decisive.get(key)
        if last == "_target_":
            parts.append(f"{group} {class_word(value)}")
        elif last == "name":
            parts.append(f"{group} {value}")
        else:
            parts.append(f"{last} {'none' if value is None else value}")
    return ", ".join(parts)

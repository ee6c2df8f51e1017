"""Group runs into the rows of a table and the lines of a figure, by content and settings.

A corpus is what runs were trained and validated on, by its hash. A row of a corpus has runs that
differ only in their seed: their settings are equal, also those of cost that a sweep varied, their
vocabulary, and the number of updates that they reached. Names of folders and typed words only name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from headwise.data.sources.digest import combined_digest
from headwise.plots.style import drawable
from headwise.runs.folder import NOT_IN_FINGERPRINT, PATHS, canonical, costs, flat, last_typed
from headwise.studies.match import differing_keys
from headwise.studies.names import OTHER_GROUPS, choice_parts, class_word, corpus_name
from headwise.studies.record import TaskRecord

FIRST_ROWS = ("softmax", "entmax15", "alpha_entmax")  # in figures, as in papers
MAX_KEYS = 3  # in a name, besides those that were typed
MAX_LETTERS = 40  # of the value of one
NAMED_GROUPS = ("attention", "sites", *OTHER_GROUPS)  # `choice_parts` has their names
CHOSEN_BY = {"tokenizer.folder": "vocabulary", "init_from": "init_weights"}  # content in data.json
NO_TEXT = combined_digest([])

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class CorpusRows:
    """The runs of one corpus.

    Attributes:
        corpus: displayed name and languages.
        stem: the same for file names.
        rows: name of a choice -> its runs, one of each seed.
        notes: on runs that are left out.
    """

    corpus: str
    stem: str
    rows: Mapping[str, Sequence[TaskRecord]]
    notes: Sequence[str] = ()

    @property
    def runs(self) -> list[TaskRecord]:
        """All of them."""
        return [run for runs in self.rows.values() for run in runs]


def corpus_rows(runs: Sequence[TaskRecord]) -> list[CorpusRows]:
    """Group runs by corpus and choice, in the order of first occurrence.

    Of several runs of one row and seed, which are the same run, one is used: a finished one, with
    the most updates.
    """
    hashes = [None if run.data.get("text") == NO_TEXT else run.data.get("text") for run in runs]
    texts = dict(zip(runs, known_or_alike(hashes, map(data_settings, runs)), strict=True))
    same_texts = _alike(
        runs, lambda run: [run.settings["task"]["_target_"], run.task.languages, texts[run]]
    )
    firsts = [same[0] for same in same_texts]
    stems = _unique(["_".join([run.config.data.name, *run.task.languages]) for run in firsts])
    corpora = []
    for name, stem, same in zip(_corpus_names(firsts), stems, same_texts, strict=True):
        rows, notes = named_rows(same), []
        for row, of_row in rows.items():
            of_row.sort(key=lambda run: (run.seed, run.results is None, -run.updates))
            for first, run in pairwise(of_row):
                if run.seed == first.seed:
                    why = f"the same settings, text and seed as {first.folder}"
                    notes.append(f"{run.folder} is not counted: {why}")
            rows[row] = [next(of_seed) for _, of_seed in groupby(of_row, lambda run: run.seed)]
        corpora.append(CorpusRows(name, file_stem(stem), rows, notes))
    return corpora


def known_or_alike(contents: Iterable[str | None], settings: Iterable[Any]) -> list[str]:
    """Return what tells contents apart.

    Args:
        contents: their hashes; None where it is not known.
        settings: that choose them, of plain types. Content that is not known is taken for the only
            known one with equal settings; if there is none, it is alike where the settings are.
    """
    pairs = list(zip(map(canonical, settings), contents, strict=True))
    known: dict[str, set[str]] = {text: set() for text, _ in pairs}
    for text, content in pairs:
        known[text] |= {content} if content else set()
    return [content or "".join(sorted(known[text])) or text for text, content in pairs]


def named_rows(runs: Sequence[TaskRecord], but: str = "") -> dict[str, list[TaskRecord]]:
    """Group runs of one corpus by choice, named by the attention and other differing keys.

    Args:
        but: a key that may differ in a group.
    """
    swept = {key for run in runs for key in run.data.get("swept") or ()}

    def recipe(run: TaskRecord) -> dict[str, Any]:
        settings = {**run.decisive, **costs(run.settings, swept), "trainer.max_updates": run.length}
        return {key: value for key, value in settings.items() if key != but}

    hashes = [run.data.get("vocabulary") for run in runs]
    vocabularies = dict(zip(runs, known_or_alike(hashes, map(recipe, runs)), strict=True))
    choices = [
        ({"vocabulary": part[0].data.get("vocabulary"), **recipe(part[0]), **origin}, part)
        for same in _alike(runs, lambda run: [recipe(run), vocabularies[run]])
        for origin, part in _by_origin(same)
    ]
    rows = dict(zip(_row_names(choices), (part for _, part in choices), strict=True))
    return {name: rows[name] for name in (*filter(rows.__contains__, FIRST_ROWS), *rows)}


def file_stem(name: str) -> str:
    """Return a name that is safe in file names."""
    return re.sub(r"[^\w.-]+", "_", drawable(name)).strip("_.-")


def _alike(runs: Iterable[TaskRecord], key: Callable[[TaskRecord], Any]) -> list[list[TaskRecord]]:
    """Group runs by a key of plain types, in the order of first occurrence."""
    groups: dict[str, list[TaskRecord]] = {}
    for run in runs:
        groups.setdefault(canonical(key(run)), []).append(run)
    return list(groups.values())


def data_settings(run: TaskRecord) -> dict[str, Any]:
    """Return the settings that choose the text of a run, paths included."""
    return flat({"data": run.settings["data"]}, {*NOT_IN_FINGERPRINT} - {*PATHS})


def _by_origin(runs: list[TaskRecord]) -> list[tuple[dict[str, Any], list[TaskRecord]]]:
    """Split a row if runs of one seed started from several weights; else each seed has its own.

    Returns:
        content that names the part, and its runs.
    """

    def origin(run: TaskRecord) -> Any:  # runs of version 0.1.0 have only the path
        return run.data.get("init_weights") or run.settings.get("init_from")

    parts = _alike(runs, origin)
    seeds = [seed for part in parts for seed in {run.seed for run in part}]
    if len(set(seeds)) == len(seeds):
        return [({}, runs)]
    return [({"init_weights": origin(part[0])}, part) for part in parts]


# -- names ----------------------------------------------------------------------------------------


def _corpus_names(runs: Sequence[TaskRecord]) -> list[str]:
    """Return a unique name for the corpus of each run, with the task or settings that differ."""
    names = [corpus_name(run.config) for run in runs]
    names = _longer(names, [{"task": run.task.name} for run in runs])
    return _unique(_longer(names, [*map(data_settings, runs)]), "text ")


def _row_names(choices: Sequence[tuple[Settings, Sequence[TaskRecord]]]) -> list[str]:
    """Return a unique name for each row: the groups that differ, and settings that its run typed.

    Where these are not enough, other settings that differ are shown.
    """
    settings = [own for own, _ in choices]
    keys = differing_keys(settings)
    groups = [choice_parts(same[0].config) for _, same in choices]
    common = set.intersection(*map(set, groups)) if len(groups) > 1 else set()
    names = [
        ", ".join([*(part for part in parts if part not in common), *_typed(same[0], own, keys)])
        for parts, (own, same) in zip(groups, choices, strict=True)
    ]
    if not all(names):  # their attention is the same
        names = [f"{own[0]}, {name}".strip(", ") for own, name in zip(groups, names, strict=True)]
    return _unique(_longer(names, settings))


def _typed(run: TaskRecord, settings: Settings, keys: Collection[str]) -> Iterator[str]:
    """Yield those of some settings that a run typed, or their group, such as model=small."""
    for word in sorted(last_typed(map(str, run.part("overrides") or ()))):
        name, _, text = word.lstrip("+~").partition("=")
        if name in keys or CHOSEN_BY.get(name) in keys:
            yield _label(name, text if CHOSEN_BY.get(name) in keys else settings.get(name))
        elif name not in NAMED_GROUPS and any(key.startswith(f"{name}.") for key in keys):
            yield f"{name}={text}"


def _longer(names: Sequence[str], settings: Sequence[Settings]) -> list[str]:
    """Return names with the settings in which those that are equal differ."""
    alike: dict[str, list[Settings]] = {}
    for name, own in zip(names, settings, strict=True):
        alike.setdefault(name, []).append(own)
    keys = {name: differing_keys(same) for name, same in alike.items()}
    return [
        ", ".join([name, *(_label(key, own[key]) for key in keys[name][:MAX_KEYS] if key in own)])
        for name, own in zip(names, settings, strict=True)
    ]


def _label(key: str, value: Any) -> str:
    """Return the text of a setting in a name."""
    group, _, last = key.rpartition(".")
    if last in ("_target_", "name"):
        return f"{group} {class_word(value)}"
    text = Path(value).name if isinstance(value, str) else json.dumps(value)
    return f"{last}={text[:MAX_LETTERS]}"


def _unique(names: Sequence[str], word: str = "") -> list[str]:
    """Return the names; a repeated one has a number."""
    earlier = [names[:number].count(name) for number, name in enumerate(names)]
    return [f"{a} ({word}{n + 1})" if n else a for a, n in zip(names, earlier, strict=True)]

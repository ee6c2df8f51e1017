"""Group runs into the rows of a table and the lines of a figure, by content and settings.

A corpus is what runs were trained and validated on, by its hash. A row of a corpus has runs that
differ only in their seed: their settings are equal, also those of cost that a sweep varied, and
the number of updates that they reached. Names of folders and typed words only name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.data.sources.digest import combined_digest
from headwise.plots.style import drawable
from headwise.runs.fingerprint import last_typed
from headwise.studies.match import SavedRun, differing_keys
from headwise.studies.names import OTHER_GROUPS, choice_parts, class_word, corpus_name

FIRST_ROWS = ("softmax", "entmax15", "alpha_entmax")  # in figures, as in papers
MAX_KEYS = 3  # in a name, besides those that were typed
NAMED_GROUPS = ("attention", "sites", *OTHER_GROUPS)
LENGTH = "trainer.max_updates"
# Content in data.json -> the setting that chooses it. Seeds of a row may differ in it, such as
# those that start from runs of their seed; two runs of one seed are two rows.
CONTENTS = {"vocabulary": "tokenizer.folder", "init_weights": "init_from"}
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
    rows: Mapping[str, Sequence[SavedRun]]
    notes: Sequence[str] = ()

    @property
    def runs(self) -> list[SavedRun]:
        """All of them."""
        return [run for runs in self.rows.values() for run in runs]


def corpus_rows(runs: Sequence[SavedRun]) -> list[CorpusRows]:
    """Group runs by corpus and choice, in the order of first occurrence.

    Of several runs of one row and seed, which are the same run, one is used: a finished one, with
    the most updates.
    """
    texts: dict[Hashable, list[SavedRun]] = {}
    settings = [run.settings["data"] for run in runs]
    identities = known_or_alike([_trained_text(run) for run in runs], settings)
    for run, text in zip(runs, identities, strict=True):
        key = run.settings["task"]["_target_"], run.task.languages, text
        texts.setdefault(key, []).append(run)
    firsts = [same[0] for same in texts.values()]
    stems = _numbered(["_".join([f.config.data.name, *f.task.languages]) for f in firsts])
    corpora = []
    for corpus, stem, same_text in zip(_corpus_names(firsts), stems, texts.values(), strict=True):
        rows, notes = named_rows(same_text), []
        for name, same in rows.items():
            used: dict[int, SavedRun] = {}
            for run in sorted(same, key=lambda run: (run.results is None, -run.updates)):
                first = used.setdefault(run.seed, run)
                if first is not run:
                    why = f"the same settings, text and seed as {first.folder}"
                    notes.append(f"{run.folder} is not counted: {why}")
            rows[name] = [used[seed] for seed in sorted(used)]
        corpora.append(CorpusRows(corpus, file_stem(stem), rows, notes))
    return corpora


def known_or_alike(contents: Sequence[str | None], settings: Sequence[Settings]) -> list[Hashable]:
    """Return what tells contents apart.

    Args:
        contents: their hashes; None where it is not known.
        settings: that choose them. Content that is not known is taken for the only known one with
            equal settings; if there is none, it is alike where the settings are.
    """
    texts = [json.dumps(choice, sort_keys=True) for choice in settings]
    known: dict[str, set[str]] = {}
    for content, text in zip(contents, texts, strict=True):
        known.setdefault(text, set()).update([content] if content else [])
    return [
        content or (next(iter(known[text])) if len(known[text]) == 1 else text)
        for content, text in zip(contents, texts, strict=True)
    ]


def named_rows(runs: Sequence[SavedRun], but: str = "") -> dict[str, list[SavedRun]]:
    """Group runs of one corpus by choice, named by the attention and other differing keys.

    Args:
        but: a key that may differ in a group.
    """
    swept = {key for run in runs for key in run.data.get("swept") or ()}
    choices: list[tuple[Settings, list[SavedRun]]] = []
    for run in runs:
        costs = {key: _setting(run, key) for key in swept}
        recipe = {**run.decisive, **costs, LENGTH: run.length}
        recipe.pop(but, None)
        row = next((same for other, same in choices if other == recipe), None)
        if row is None:
            choices.append((recipe, [run]))
        else:
            row.append(run)
    for content in CONTENTS:
        choices = [part for choice in choices for part in _by_content(*choice, content)]
    names = _row_names([(recipe, same[0]) for recipe, same in choices])
    rows = {
        name: sorted(same, key=lambda run: run.seed)
        for name, (_, same) in zip(names, choices, strict=True)
    }
    return {name: rows[name] for name in (*filter(rows.__contains__, FIRST_ROWS), *rows)}


def file_stem(name: str) -> str:
    """Return a name that is safe in file names."""
    return re.sub(r"[^\w.-]+", "_", drawable(name)).strip("_.-")


def _trained_text(run: SavedRun) -> str | None:
    """Return a hash of the training and validation text; None if it is not known.

    A corpus that has no files is known by its validation set.
    """
    text: str | None = run.data.get("text")
    if text == NO_TEXT:
        return run.content(run.settings["data"]["valid"])
    return text


def _setting(run: SavedRun, key: str) -> Any:
    """Return a setting by its dotted key; None if there is none."""
    node: Any = run.settings
    for name in key.split("."):
        node = (node or {}).get(name)
    return node


def _by_content(
    recipe: Settings, runs: Sequence[SavedRun], content: str
) -> list[tuple[Settings, list[SavedRun]]]:
    """Split a row in which two runs of one seed differ in a content, see `CONTENTS`."""
    parts: dict[Any, list[SavedRun]] = {}
    for run in runs:  # runs of version 0.1.0 have only the path of the initial weights
        key = run.data.get(content) or _setting(run, CONTENTS[content])
        parts.setdefault(key, []).append(run)
    seeds = [seed for key, part in parts.items() if key for seed in {run.seed for run in part}]
    if len(set(seeds)) == len(seeds):
        return [(recipe, list(runs))]
    return [({**recipe, CONTENTS[content]: key}, part) for key, part in parts.items()]


# -- names ----------------------------------------------------------------------------------------


def _corpus_names(runs: Sequence[SavedRun]) -> list[str]:
    """Return a unique name for the corpus of each run, with the settings that differ."""
    pairs = [(corpus_name(run.config), run.settings["data"]) for run in runs]
    names = []
    for name, choice in pairs:
        alike = [other for its, other in pairs if its == name]
        values = {k: v for k, v in choice.items() if not isinstance(v, Mapping | list)}
        differing = [k for k in values if any(other.get(k) != values[k] for other in alike)]
        words = [f"{key}={Path(str(values[key])).name}" for key in differing[:MAX_KEYS]]
        names.append(", ".join([name, *words]))
    return _numbered(names, "text ")


def _row_names(choices: Sequence[tuple[Settings, SavedRun]]) -> list[str]:
    """Return a unique name for each row: the groups and settings that differ.

    Typed settings are preferred; others are shown if these are not enough.

    Args:
        choices: the settings and a run of each row.
    """
    parts = [choice_parts(run.config) for _, run in choices]
    common = set.intersection(*map(set, parts)) if len(parts) > 1 else set()
    differing = differing_keys([recipe for recipe, _ in choices])
    named = [key for key in differing if key.partition(".")[0] in NAMED_GROUPS]
    keys = [key for key in differing if not (key in named and key.endswith("._target_"))]
    others = [key for key in keys if key not in named]
    words = [_typed(run) for _, run in choices]
    typed = [k for k in keys if any(f"{k}.".startswith(f"{one}.") for of in words for one in of)]
    names: list[str] = []
    for shown in (typed, others[:MAX_KEYS], keys[:MAX_KEYS], keys):
        rows = [
            [part for part in own if part not in common]
            + [_label(key, recipe, run, of_run) for key in shown if key in recipe]
            for own, of_run, (recipe, run) in zip(parts, words, choices, strict=True)
        ]
        if not all(rows):  # their attention is the same
            rows = [[own[0], *row] for own, row in zip(parts, rows, strict=True)]
        names = [", ".join(dict.fromkeys(row)) for row in rows]
        if len(set(names)) == len(names):
            break
    return _numbered(names)


def _typed(run: SavedRun) -> dict[str, str]:
    """Return the typed settings of a run: key -> text."""
    overrides = last_typed(map(str, run.part("overrides") or ()))
    return {key.lstrip("+~"): text for key, _, text in (o.partition("=") for o in overrides)}


def _label(key: str, recipe: Settings, run: SavedRun, typed: Mapping[str, str]) -> str:
    """Return the text of a setting in the name of a row."""
    (group, _, last), value = key.rpartition("."), recipe[key]
    if last in ("_target_", "name"):
        return f"{group} {class_word(value)}"
    if key in CONTENTS.values() and isinstance(value, str):  # a hash; see `_by_content`
        value = Path(_setting(run, key) or value[:8]).name
    elif key not in typed:  # but perhaps its group, such as model=small
        group = next((one for one in typed if key.startswith(f"{one}.")), "")
        last, value = (group, typed[group]) if group else (last, value)
    return f"{last}={value if isinstance(value, str) else json.dumps(value)}"


def _numbered(names: Sequence[str], word: str = "") -> list[str]:
    """Return unique names: a repeated one has a number."""
    earlier = [names[:number].count(name) for number, name in enumerate(names)]
    return [f"{a} ({word}{n + 1})" if n else a for a, n in zip(names, earlier, strict=True)]

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
from headwise.studies.names import OTHER_GROUPS, choice_name, class_word, corpus_name

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
        rows, notes = named_rows(same_text), list[str]()
        for name, same in rows.items():
            rows[name], repeated = _one_of_each_seed(same)
            notes += repeated
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
        return None if run.results is None else run.results.content(run.settings["data"]["valid"])
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


def _one_of_each_seed(runs: Sequence[SavedRun]) -> tuple[list[SavedRun], list[str]]:
    """Return the run of each seed that counts, and a note on each other."""
    used: dict[int, SavedRun] = {}
    for run in runs:
        other = used.setdefault(run.seed, run)
        if (run.results is not None, run.updates) > (other.results is not None, other.updates):
            used[run.seed] = run
    counting = {id(run) for run in used.values()}
    return [*used.values()], [
        f"{run.folder} is not counted: the same settings, text and seed as {used[run.seed].folder}"
        for run in runs
        if id(run) not in counting
    ]


# -- names ----------------------------------------------------------------------------------------


def _corpus_names(runs: Sequence[SavedRun]) -> list[str]:
    """Return a unique name for the corpus of each run, with the settings that differ."""
    names, choices = (
        [corpus_name(run.config) for run in runs],
        [run.settings["data"] for run in runs],
    )
    longer = []
    for name, choice in zip(names, choices, strict=True):
        alike = [other for other, its in zip(choices, names, strict=True) if its == name]
        words = [
            f"{key}={_word(Path(value).name if isinstance(value, str) else value)}"
            for key, value in choice.items()
            if not isinstance(value, Mapping | list)
            and any(other.get(key) != value for other in alike)
        ]
        longer.append(", ".join([name, *words[:MAX_KEYS]]))
    return _numbered(longer, "text ")


def _row_names(choices: Sequence[tuple[Settings, SavedRun]]) -> list[str]:
    """Return a unique name for each row: attention and other groups, and settings that differ.

    Typed settings are preferred; others are shown if these are not enough.

    Args:
        choices: the settings and a run of each row.
    """
    attentions = [choice_name(run.config) for _, run in choices]
    is_named = len(set(attentions)) > 1
    differing = differing_keys([recipe for recipe, _ in choices])
    roots = {key: key.partition(".")[0] for key in differing}
    keys = [k for k in differing if not (roots[k] in NAMED_GROUPS and k.endswith("._target_"))]
    others = [key for key in keys if roots[key] not in NAMED_GROUPS]
    words = [_typed(run) for _, run in choices]
    typed = [k for k in keys if any(f"{k}.".startswith(f"{one}.") for of in words for one in of)]
    names = attentions
    for shown in (typed, others[:MAX_KEYS], keys[:MAX_KEYS], keys):
        names = []
        for (recipe, run), attention, of_run in zip(choices, attentions, words, strict=True):
            parts = [_label(key, recipe, run, of_run) for key in shown if key in recipe]
            parts = [attention, *parts] if is_named or not parts else parts
            names.append(", ".join(dict.fromkeys(parts)))
        if len(set(names)) == len(names):
            break
    return _numbered(names)


def _typed(run: SavedRun) -> dict[str, str]:
    """Return the typed settings of a run: key -> text."""
    overrides = last_typed(map(str, run.part("overrides") or ()))
    pairs = (override.lstrip("+~").partition("=") for override in overrides)
    return {key: text for key, _, text in pairs}


def _label(key: str, recipe: Settings, run: SavedRun, typed: Mapping[str, str]) -> str:
    """Return the text of a setting in the name of a row."""
    group, _, last = key.rpartition(".")
    value = recipe[key]
    if last in ("_target_", "name"):
        return f"{group} {class_word(value)}"
    if key in CONTENTS.values() and isinstance(value, str):  # a hash; see `_by_content`
        path = _setting(run, key)
        return f"{last}={Path(path).name if path else value[:8]}"
    choice = next((one for one in typed if key.startswith(f"{one}.")), None)
    if choice is not None and key not in typed:  # such as model=small
        return f"{choice}={typed[choice]}"
    return f"{last}={_word(value)}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _numbered(names: Sequence[str], word: str = "") -> list[str]:
    """Return unique names: a repeated one has a number."""
    earlier = (names[:number].count(name) for number, name in enumerate(names))
    pairs = zip(names, earlier, strict=True)
    return [f"{name} ({word}{n + 1})" if n else name for name, n in pairs]

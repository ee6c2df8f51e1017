"""Group runs into the rows of a table and the lines of a figure, by content and settings.

A corpus is what runs were trained and validated on, by its hash. A row of a corpus has runs that
differ only in their seed: their settings are equal, also those of cost that a sweep varied, and
the number of updates that they reached. Names of folders and typed words only name.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.data.sources.digest import combined_digest
from headwise.plots.style import drawable
from headwise.runs.fingerprint import last_typed
from headwise.studies.match import SavedRun, differing_keys
from headwise.studies.names import OTHER_GROUPS, choice_parts, class_word, corpus_name

FIRST_ROWS = ("softmax", "entmax15", "alpha_entmax")  # in figures, as in papers
PLACES = ("dir", "folder", "files", "file")  # settings of data that say where its text is
MAX_KEYS = 3  # in a name, besides those that were typed
NAMED_GROUPS = ("attention", "sites", *OTHER_GROUPS)
LENGTH = "trainer.max_updates"
# Content in data.json -> the setting that chooses it. Seeds of a row may differ in it: they learn
# their vocabulary from other samples, and start from runs of their seed.
CONTENTS = {"vocabulary": "tokenizer.folder", "init_weights": "init_from"}
NO_TEXT = combined_digest([])

Settings = Mapping[str, Any]
Choice = tuple[Settings, SavedRun]  # settings, and a run that has them


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
    texts: dict[tuple[Any, ...], list[SavedRun]] = {}
    settings = [run.settings["data"] for run in runs]
    identities = known_or_alike([_trained_text(run) for run in runs], settings)
    for run, text in zip(runs, identities, strict=True):
        key = run.settings["task"]["_target_"], run.task.languages, text
        texts.setdefault(key, []).append(run)
    firsts = [same[0] for same in texts.values()]
    stems = _unique([["_".join([f.config.data.name, *f.task.languages])] for f in firsts])
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


def known_or_alike(contents: Sequence[str | None], settings: Sequence[Settings]) -> list[str]:
    """Return what tells contents apart.

    Args:
        contents: their hashes; None where it is not known.
        settings: that choose them. Content that is not known is taken for the only known one with
            equal settings; if there is none, it is alike where the settings are.
    """
    pairs = [(json.dumps(s, sort_keys=True), c) for s, c in zip(settings, contents, strict=True)]
    known: dict[str, set[str]] = {text: set() for text, _ in pairs}
    for text, content in pairs:
        known[text] |= {content} if content else set()
    return [content or "".join(sorted(known[text])) or text for text, content in pairs]


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
        return run.content(run.settings["data"].get("valid"))
    return text


def _setting(run: SavedRun, key: str) -> Any:
    """Return a setting by its dotted key; None if there is none."""
    settings: Any = run.settings
    return functools.reduce(lambda node, name: (node or {}).get(name), key.split("."), settings)


def _by_content(
    recipe: Settings, runs: Sequence[SavedRun], content: str
) -> list[tuple[Settings, list[SavedRun]]]:
    """Split a row in which two runs of one seed, or given tokenizers, differ in a content."""
    parts: dict[Any, list[SavedRun]] = {}
    for run in runs:  # runs of version 0.1.0 have only the path of the initial weights
        key = run.data.get(content) or _setting(run, CONTENTS[content])
        parts.setdefault(key, []).append(run)
    pairs = {(run.seed, key) for key, part in parts.items() if key for run in part}
    given = content == "vocabulary" and any(_setting(run, CONTENTS[content]) for run in runs)
    if len({seed for seed, _ in pairs}) == len(pairs) and not given:
        return [(recipe, list(runs))]
    key = CONTENTS[content]
    named = ((_setting(part[0], key) or own, part) for own, part in parts.items())
    return [({**recipe, key: name}, part) for name, part in named]


# -- names ----------------------------------------------------------------------------------------


def _corpus_names(runs: Sequence[SavedRun]) -> list[str]:
    """Return a unique name for the corpus of each run, with the settings that differ."""
    choices: list[Choice] = []
    for run in runs:
        data = run.settings["data"].items()
        choices.append(
            ({f"data.{k}": v for k, v in data if not isinstance(v, Mapping | list)}, run)
        )
    names = [[corpus_name(run.config)] for run in runs]
    for limit in (0, MAX_KEYS, MAX_KEYS):
        names = _longer(names, choices, limit)
    return _unique(names, "text ")


def _row_names(choices: Sequence[Choice]) -> list[str]:
    """Return a unique name for each row: the groups that differ, and settings that its run typed.

    Where these are not enough, other settings that differ are shown.
    """
    groups = [choice_parts(run.config) for _, run in choices]
    common = set.intersection(*map(set, groups)) if len(groups) > 1 else set()
    names = _longer([[] for _ in choices], choices, 0)
    names = [[p for p in own if p not in common] + n for own, n in zip(groups, names, strict=True)]
    if not all(names):  # their attention is the same
        names = [[own[0], *name] for own, name in zip(groups, names, strict=True)]
    for limit in (0, MAX_KEYS, None):
        names = _longer(names, choices, limit)
    return _unique(names)


def _longer(
    names: Sequence[list[str]], choices: Sequence[Choice], limit: int | None
) -> list[list[str]]:
    """Return names with the settings in which those that are equal differ.

    Args:
        names: parts of each.
        choices: the settings of each, and a run with them.
        limit: number of settings; 0: those that the run typed; None: all.
    """
    alike: dict[tuple[str, ...], list[Settings]] = {}
    for name, (settings, _) in zip(names, choices, strict=True):
        alike.setdefault(tuple(name), []).append(settings)
    keys = {name: differing_keys(same) for name, same in alike.items()}
    return [
        name
        + [*filter(None, (_label(k, *c, limit == 0) for k in keys[tuple(name)]))][: limit or None]
        for name, c in zip(names, choices, strict=True)
    ]


def _label(key: str, settings: Settings, run: SavedRun, if_typed: bool) -> str:
    """Return the text of a setting in a name; empty if it has none.

    Args:
        if_typed: only if the run typed the key or its group, such as model=small.
    """
    (group, _, last), value = key.rpartition("."), settings.get(key)
    is_named = key.partition(".")[0] in NAMED_GROUPS
    if key not in settings or (is_named and last == "_target_"):
        return ""
    overrides = last_typed(map(str, run.part("overrides") or ()))
    typed = {name.lstrip("+~"): text for name, _, text in (o.partition("=") for o in overrides)}
    if if_typed and key not in typed:
        choice = next((name for name in typed if key.startswith(f"{name}.")), None)
        return "" if choice is None or is_named else f"{choice}={typed[choice]}"
    if last in ("_target_", "name"):
        return f"{group} {class_word(value)}"
    return f"{last}={Path(value).name if isinstance(value, str) else json.dumps(value)}"


def _unique(names: Sequence[list[str]], word: str = "") -> list[str]:
    """Return the names as texts; a repeated one has a number."""
    texts = [", ".join(dict.fromkeys(name)) for name in names]
    earlier = [texts[:number].count(text) for number, text in enumerate(texts)]
    return [f"{a} ({word}{n + 1})" if n else a for a, n in zip(texts, earlier, strict=True)]

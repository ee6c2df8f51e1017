"""Add the hashes of texts that run folders and archives of headwise 0.1.0 lack.

    python scripts/hash_records.py PATH… [data.dir=FOLDER]

Each PATH is a folder of runs, or an archive that `headwise runs export=` wrote; it is changed in
place. The data of a run is read again as its settings say, from FOLDER or `$HEADWISE_DATA`, and
compared with the record: hashes of the training text and of the vocabulary, if it has them; per
scored split the number of items and of the targets of each, the labels, and the hash of the
references. If all agree, hashes of the training text, the vocabulary, the scored splits and their
items are added to `results.json` and `data.json`, which lists them as `computed_later`. A split
without statistics of items cannot be compared, and gets none. The vocabulary of an archived
classifier cannot be compared either, since its items are texts, not tokens: it stays unknown
(null).
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.data.sources.digest import combined_digest
from headwise.errors import DataError, HeadwiseError, counted
from headwise.files import machine_cache_dir, replacing, write_json
from headwise.runs.archive import archived
from headwise.runs.folder import ARCHIVE, list_folders
from headwise.runs.record import SETTINGS
from headwise.studies.record import TaskRecord
from headwise.tasks.classification.task import Classification
from headwise.tasks.task import Part
from headwise.tasks.translation.outputs import one_line

UNIT = "loss"  # of the statistics of items that every task has; their third column counts targets
OPTION = "data.dir="
CORPORA: dict[str, Any] = {}  # that were read, by settings


def corpus_of(run: TaskRecord, is_folder: bool, splits: list[str], folder: str | None) -> Any:
    """Hashes as in data.json; split -> its hashes, targets of each item, hash of references."""
    config, task = run.config, run.task.reading(folder)
    parts = config.task, config.data, config.tokenizer, config.decode, config.init_from
    key = repr([parts, splits, folder, run.folder if is_folder else None])
    if key not in CORPORA:
        CORPORA[key] = None  # if it cannot be read, this is tried once
        has_labels = isinstance(task, Classification)
        if has_labels and not is_folder:
            # The tokenizer may be in the folder of another run; hashes of labelled texts need none.
            tokenizer = replace(config.tokenizer, kind="byte", folder=None)
            task = task.changed(init_from=None, tokenizer=tokenizer)
        corpus = task.open(machine_cache_dir())
        data = task.restored(run.folder, splits, folder) if is_folder else task.prepare(corpus)
        vocabulary = None if is_folder or has_labels else data.vocabulary
        about = {"text": combined_digest(corpus.hashes()), "vocabulary": vocabulary}
        read = {}
        for split in splits:
            batches = task.batches(data, Part(split))
            targets: list[list[int]] = [[] for batch in batches for _ in batch.rows]
            for batch in batches:
                n = 1 if has_labels else [*batch.columns.values()][-1].ids_BN.shape[1]
                for place, target in zip(batch.scored_R, batch.targets_R.tolist(), strict=True):
                    targets[batch.rows[int(place) // n]].append(target)
            lines = data.texts(split)[1] if task.references else ()
            references = hashlib.sha256("".join(f"{one_line(s)}\n" for s in lines).encode())
            read[split] = (*task.contents(data, split), targets, references.hexdigest())
        CORPORA[key] = about, read
    if CORPORA[key] is None:
        raise DataError("the same data, which could not be read")
    return CORPORA[key]


def with_hashes(run: TaskRecord, is_folder: bool, folder: str | None) -> tuple[Any, Any]:
    """The content of results.json and data.json of a run with the hashes that they lack.

    Raises:
        DataError: what was read again is not what the record holds, or cannot be compared.
    """
    results, data = run.part("results") or {}, run.data
    if is_folder and not data:
        raise DataError("no data.json")
    entries = {
        split: [entry for entry in scores.values() if "score" in entry]
        for split, scores in results.get("scores", {}).items()
    }
    lacking = {
        split: items
        for split in sorted(entries)
        if any("content" not in entry for entry in entries[split])
        and (items := run.sums(split, UNIT)) is not None
    }
    if not lacking:
        raise DataError("no split without hashes that has statistics of items")
    about, read = corpus_of(run, is_folder, [*lacking], folder)
    for name, value in about.items():
        if None not in (value, data.get(name)) and data[name] != value:
            raise DataError(f"another {name} of the training")
    for split, items in lacking.items():
        content, of_items, targets, references = read[split]
        labels = run.task.labels(items)  # a column per class, or None
        known = run.text(run.references.format(split=split)) if run.references else None
        if [*map(len, targets)] != items[:, 2].tolist():
            raise DataError(f"other items in {split}")
        if labels is not None and [[label] for label in labels.argmax(1)] != targets:
            raise DataError(f"other labels in {split}")
        if known is not None and known.split()[0] != references:
            raise DataError(f"other references in {split}")
        for entry in entries[split]:
            entry |= {"content": content, "items": of_items}
    later = [name for name, value in about.items() if value and name not in data]
    return results, {**about, **data, "computed_later": [*later, "content", "items"]}


def write_archive(folder: Path, changes: dict[str, tuple[Any, Any]]) -> None:
    """Write results and data of runs, by name, into the lines of an archive."""
    path = folder / ARCHIVE
    with lzma.open(path, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    with replacing(path) as temporary, lzma.open(temporary, "wt", preset=9) as file:
        for line in lines:
            changed = zip(("results", "data"), changes.get(line["run"], ()), strict=False)
            json.dump(line | dict(changed), file, ensure_ascii=False, separators=(",", ":"))
            file.write("\n")


def main(arguments: list[str]) -> None:
    """Add the hashes; print for how many runs of each folder, and why not for others."""
    folder = next((a.removeprefix(OPTION) for a in arguments if a.startswith(OPTION)), None)
    outcomes: Counter[str] = Counter()
    for path, names in list_folders([a for a in arguments if not a.startswith(OPTION)]):
        is_folder = SETTINGS in names
        if not is_folder and ARCHIVE not in names:
            raise DataError(f"{path}: give the whole archive")
        changes = {}
        for run in [TaskRecord(path)] if is_folder else archived(path, TaskRecord):
            outcome = "hashes added"
            try:
                changes[run.folder.name] = with_hashes(run, is_folder, folder)
            except HeadwiseError as error:
                outcome = str(error)
            outcomes[f"{run.folder.parent}: {outcome}"] += 1
        if is_folder:
            for results, data in changes.values():
                write_json(path / "data.json", data)
                write_json(path / "results.json", results)
        elif changes:
            write_archive(path, changes)
    for outcome, n in outcomes.items():
        print(f"{outcome}: {counted(n, 'run')}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:] or sys.exit(__doc__))
    except HeadwiseError as error:
        sys.exit(f"hash_records: {error}")

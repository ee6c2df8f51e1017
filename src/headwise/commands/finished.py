"""Whether a run is finished: by its folder, before anything is computed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from headwise.data.file_corpus import Corpus
from headwise.errors import RunError, counted
from headwise.files import replacing
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.runs.results import Results
from headwise.tasks.task import Task


def check_checkpoints(folder: RunFolder) -> None:
    """Restore a removed best.pt from the numbered checkpoint of its update.

    Raises:
        RunError: last.pt was removed, or best.pt and that checkpoint: training would overwrite
            the records, or choose other weights.
    """
    saved = Record(folder.path).last_saved()
    best, best_update = folder.checkpoints / "best.pt", saved.get("best_update", 0)
    numbered = folder.checkpoints / f"update_{best_update:08d}.pt"
    if not best.is_file() and numbered.is_file():
        with replacing(best) as temporary:
            shutil.copyfile(numbered, temporary)
    for path, update in ((folder.last, saved.get("update")), (best, best_update)):
        if update and not path.is_file():
            raise RunError(
                f"{path} is missing, though it was saved at update {update}: copy it back, or "
                f"remove {folder.path} to start again"
            )


def valid_scores(
    folder: RunFolder, task: Task[Any], results: Results, data: Any, splits: Sequence[str]
) -> dict[str, Any]:
    """Split -> scores, where the references exist, and the text is that of one of `splits` now.

    Scores of other splits are not compared with a text.
    """
    name = task.references
    return {
        split: scores
        for split, scores in results.scores.items()
        if (not name or (folder.path / name.format(split=split)).is_file())
        and (split not in splits or results.content(split) == task.contents(data, split)[0])
    }


def final_results(folder: RunFolder, task: Task[Any], corpus: Corpus) -> Results | None:
    """The results of a finished run with figures and scores of every test set, else None.

    Scores of another text than a test set has now (`Task.contents`) do not count.
    """
    record = Record(folder.path)
    results = record.results
    updates = max(results.updates if results else 0, record.last_saved().get("update", 0))
    max_updates = task.config.trainer.max_updates
    if updates > max_updates:
        raise RunError(
            f"{folder.path} was already trained for {counted(updates, 'update')}, more than "
            f"trainer.max_updates={max_updates}; set experiment_name=… for a shorter run"
        )
    if results is None or not (results.stopped_early or results.updates == max_updates):
        return None
    # a process that was killed while it drew has written no time of it
    has_figures = "figures" in results.other_seconds and folder.figures.is_dir()
    splits = task.splits(corpus)
    if not has_figures or not set(splits) <= results.scores.keys():
        return None
    data = task.prepare(corpus)  # in the cache, if not changed
    has_scores = set(splits) <= valid_scores(folder, task, results, data, splits).keys()
    return results if has_scores else None

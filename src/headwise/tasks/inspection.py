"""What analyses and pages show of a finished run of any task: items of a split, or of a user."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.analysis.lengths import ByLength
from headwise.analysis.observe import observations
from headwise.analysis.survey import ColumnText
from headwise.config.commands import PruneDataConfig
from headwise.data.sources.lines import read_lines
from headwise.errors import DataError
from headwise.tasks.evaluate import most_items
from headwise.tasks.reading import Inspected, Items, Reading, rows_of, spaced
from headwise.tasks.task import Part, TrainedRun
from headwise.train.distributed import Ranks

ANALYSIS_PAIRS = 2**27  # of positions of the analysed items, if all are as long
PREFERRED_SHARE = 4  # at most one item in four is a preferred one


def inspected(
    run: TrainedRun, data: PruneDataConfig, max_tokens: int, longest: float = math.inf
) -> Inspected:
    """Items for the analysis of heads: the first ones of a split.

    Args:
        run: of any task.
        data: the split, and the number of its items; by default all of an analysis without
            `longest`, else at most `ANALYSIS_PAIRS` if rows are equally long.
        max_tokens: tokens per batch, with padding.
        longest: items with more tokens are left out; the default leaves none out.

    Raises:
        ConfigError: the split does not exist.
        DataError: its text does not exist, or all its items are too long.
    """
    split = data.split or run.config.data.valid
    trainer = replace(run.config.trainer, max_tokens=max_tokens)
    task = run.task.changed(trainer=trainer).plain()
    n = data.sentences
    if n is None and longest < math.inf:
        n = most_items(task, ANALYSIS_PAIRS)
    part, encoded = Part(split, n, longest=longest), run.data([split], data.dir)
    batches = task.batches(encoded, part)
    n_items = sum(map(len, batches))
    if not n_items:
        raise DataError(f"{split} has no {task.unit} of up to {longest} tokens")
    spellings = task.spellings(run.model, encoded)
    texts = {
        name: ColumnText(
            spelling.language,
            [list(map(spelling.number, row)) for row in rows_of(batches, name)],
            spelling.name,
        )
        for name, spelling in spellings.items()
    }
    shared = run.model, encoded, part, Ranks(0, 1, run.device)
    return Inspected(
        split,
        batches,
        texts,
        n_items,
        lambda: task.evaluate(*shared).measured,
        len(task.too_long(encoded, part)),
        task.unit,
        {name: spelling.places for name, spelling in spellings.items()},
    )


def items(run: TrainedRun, max_items: int, path: Path | None = None) -> Items:
    """Items to show with attention: of the run's first test set, or the first ones of a file.

    Those of a test set are evenly spaced; up to a quarter are preferred ones, see `Candidates`.

    Raises:
        ConfigError, RunError: the task does not show such items.
        DataError: the text is empty or cannot be read.
    """
    task, saved = run.task, run.folder.path
    if path is not None:
        origin, note = path.name, ""
        candidates = task.items_of_lines(saved, read_lines(path))
        numbers = list(range(min(max_items, candidates.n)))
    else:
        names = *run.config.data.test, *task.saved_tests(saved), run.config.data.valid
        origin = names[0]
        candidates = task.items(run.data([origin]), origin)
        preferred = spaced(candidates.preferred, max_items // PREFERRED_SHARE)
        others = [n for n in range(candidates.n) if n not in set(preferred)]
        numbers = sorted([*preferred, *spaced(others, max_items - len(preferred))])
        note = candidates.note if preferred else ""
    chosen = [item for item in map(candidates.item, numbers) if item.text.strip()]
    if not chosen:
        raise DataError(f"{path or origin} has no text to show")
    return Items(origin, candidates.unit, chosen, candidates.n, note)


def readings(run: TrainedRun, inputs: Sequence[Any]) -> Iterator[Reading]:
    """Yield the reading of each text, or `Item.input`.

    Raises:
        DataError: a text that cannot be the model's input.
    """
    yield from (_observed(run, reading) for reading in run.task.given(run, inputs))


def _observed(run: TrainedRun, reading: Reading) -> Reading:
    """Return a reading with the weights of every attention that has them."""
    shown = reading.queries, reading.with_cls
    ((_, observed),) = observations(run.model, [reading.batch], run.device, *shown)
    return replace(reading, observations=observed)


def length_rows(run: TrainedRun) -> list[dict[str, Any]]:
    """Return the rows of the table of heads by length; empty for tasks without lengths."""
    means = ByLength()
    for length, inputs in run.task.by_length().items():
        for reading in inputs:
            relevant = {site: axes.relevant for site, axes in reading.axes.items()}
            means.add(length, _observed(run, reading).observations, relevant)
    return means.rows()

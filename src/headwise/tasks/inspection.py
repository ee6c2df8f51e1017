"""What analyses, pages and figures show of a finished run of any task."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwise.analysis.lengths import by_length
from headwise.analysis.observe import Observation, observations
from headwise.analysis.survey import ColumnText
from headwise.config.commands import PruneDataConfig
from headwise.data.batch import Batch
from headwise.errors import DataError
from headwise.files import check_file_name
from headwise.metrics.metric import Measured
from headwise.tasks.evaluate import most_items
from headwise.tasks.shown import MAX_QUERIES, Item, Shown, rows_of, selected, spaced
from headwise.tasks.task import Part, TrainedRun
from headwise.train.distributed import Ranks

ANALYSIS_PAIRS = 2**27  # of positions of the analysed items, if all are as long
PREFERRED_SHARE = 4  # at most one item in four is a preferred one
MAX_WEIGHTS = 2**23  # of all heads and items on a page with pictures; determines the queries
# Of each length, so many rows at most, and so many tokens, but for one row, measure the heads.
MAX_MEASURED, MEASURED = 20, 16_384


@dataclass(frozen=True)
class Inspected:
    """Items of a split (sentences, windows) for the analysis of heads.

    Attributes:
        split: its name.
        batches: all items; their `rows` are indices into the texts.
        texts: of each column of the batches.
        n: number of items.
        measure: returns the metrics of a validation on these items with the current model.
        n_left_out: number of items that are too long.
    """

    split: str
    batches: Sequence[Batch]
    texts: Mapping[str, ColumnText]
    n: int
    measure: Callable[[], Sequence[Measured]]
    n_left_out: int = 0

    def digest(self) -> str:
        """Hash of the ids."""
        ids = {name: [list(map(int, row)) for row in t.ids] for name, t in self.texts.items()}
        return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Items:
    """Items chosen from a split or a file.

    Attributes:
        origin: name of the split or file.
        unit: what the items are, in the plural.
        chosen: in the order of their numbers.
        n_all: number of items to choose from.
        note: how they were chosen; empty: evenly spaced, or the first ones.
    """

    origin: str
    unit: str
    chosen: Sequence[Item]
    n_all: int
    note: str = ""


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
        ConfigError: the split does not exist, or is a path.
        DataError: its text does not exist, or all its items are too long.
    """
    split = run.config.data.valid if data.split is None else data.split
    check_file_name("data.split", split)
    task = run.task.changed(trainer=replace(run.config.trainer, max_tokens=max_tokens))
    n = data.sentences
    if n is None and longest < math.inf:
        n = most_items(task, ANALYSIS_PAIRS)
    part, encoded = Part(split, n, longest=longest, consecutive=True), run.data([split], data.dir)
    batches = task.batches(encoded, part)
    n_items = sum(map(len, batches))
    if not n_items:
        raise DataError(f"{split} has no {task.unit} of up to {longest} tokens")
    texts = {
        name: replace(text, ids=[list(map(_number, row)) for row in rows_of(batches, name)])
        for name, text in task.column_texts(run.model, encoded).items()
    }
    shared = run.model, encoded, part, Ranks(0, 1, run.device)
    n_left_out = len(task.too_long(encoded, part))

    def measure() -> Sequence[Measured]:
        return task.evaluate(*shared).measured

    return Inspected(split, batches, texts, n_items, measure, n_left_out)


def _number(value: int | list[int]) -> int:
    """An id, or a number for the values of a patch, equal for equal patches."""
    return zlib.crc32(bytes(value)) if isinstance(value, list) else value


def items(run: TrainedRun, max_items: int, path: Path | None = None) -> Items:
    """Items to show with attention: of the run's first test set, or the first ones of a file.

    Those of a test set are evenly spaced; up to a quarter are preferred ones, see `Candidates`.

    Raises:
        ConfigError, RunError: the task does not show such items.
        DataError: the text is empty or cannot be read.
    """
    task, note = run.task, ""
    if path is not None:
        origin, candidates = path.name, task.shown(run, path)
        numbers = list(range(min(max_items, candidates.n)))
    else:
        data = run.config.data
        origin = [*data.test, *task.saved_tests(run.folder.path), data.valid][0]
        candidates = task.shown(run, Part(origin))
        preferred = spaced(candidates.preferred, max_items // PREFERRED_SHARE)
        others = [n for n in range(candidates.n) if n not in set(preferred)]
        numbers = sorted([*preferred, *spaced(others, max_items - len(preferred))])
        note = candidates.note if preferred else ""
    chosen = [item for item in map(candidates.item, numbers) if item.title.strip()]
    if not chosen:
        raise DataError(f"{path or origin} has no text to show")
    return Items(origin, candidates.unit, chosen, candidates.n, note)


def readings(run: TrainedRun, inputs: Sequence[Any]) -> Iterator[Shown]:
    """Yield what is shown of each text, or `Item.input`, with the attention of the model on it.

    Raises:
        DataError: a text that cannot be the model's input.
    """
    candidates = run.task.shown(run, inputs)
    yield from observed(run, candidates.first(candidates.n), candidates.n)


def observed(run: TrainedRun, items: Iterable[Shown], n_items: int) -> Iterator[Shown]:
    """Yield each item with the weights of every attention that has them.

    Of a picture, for so many queries that those of `n_items` items are at most `MAX_WEIGHTS`.
    """
    n_heads = sum(attention.place.n_heads for _, _, attention in run.model.attentions())
    for item in items:
        if (picture := item.picture) is not None:
            n_queries = MAX_WEIGHTS // max(1, n_items * n_heads * math.prod(picture.grid[:2]))
            n_positions = item.batch.columns[item.last].ids_BN.shape[1]
            places = selected(picture.grid, n_queries, n_positions)
            cls = range(item.n_cls)
            item = replace(item, queries=[*cls, *(item.n_cls + place for place in places)])
        which = item.queries, item.n_cls > 0
        ((_, weights),) = observations(run.model, [item.batch], run.device, *which)
        yield replace(item, observations=weights)


def length_rows(run: TrainedRun) -> list[dict[str, Any]]:
    """Return the rows of the table of heads by length; empty for tasks without lengths."""

    def observations_by_length() -> Iterator[tuple[int, Observation, Sequence[int]]]:
        for length in getattr(run.config.data, "test_lengths", ()):  # each a split of that name
            n_rows = max(1, min(MAX_MEASURED, MEASURED // length))
            for row in run.task.shown(run, Part(str(length))).first(n_rows):
                queries = spaced(row.batch.scored_R.tolist(), MAX_QUERIES)
                (row,) = observed(run, [replace(row, queries=queries)], 1)
                keys = [row.relevant.get(query, -1) for query in queries]
                ends = row.last, next(iter(row.batch.columns))
                for obs in row.observations:
                    yield length, obs, keys if (obs.queries, obs.keys) == ends else ()

    return by_length(observations_by_length())

"""Synthetic sequences, scored by length: is what was learned on short rows right on long ones?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headwise.attention.place import Site
from headwise.config.data import SequenceConfig
from headwise.config.instantiate import instantiate
from headwise.config.schema import Config
from headwise.data.batch import Batch
from headwise.data.loader import Examples
from headwise.data.sources.digest import values_digest
from headwise.data.tokenizer import COLUMN
from headwise.errors import ConfigError, DataError, refuse, require
from headwise.metrics.metric import Floats, Measured, Metric, percent
from headwise.model.build import build_model, build_single, check_model, parts_of
from headwise.model.family import Model
from headwise.model.places import site_alone
from headwise.model.transformer import encoder_decoder_sites
from headwise.tasks.data import NoFiles, Sizes
from headwise.tasks.sequence.batches import Layout, TrainingRows, evaluation_row
from headwise.tasks.sequence.rows import Row, Rows
from headwise.tasks.shown import MAX_QUERIES, Candidates, Item, Shown, given, spaced
from headwise.tasks.task import Evaluation, Extra, Part, Source, Task
from headwise.train.distributed import Ranks

COLUMNS = {"decoder": (COLUMN,), "encoder_decoder": ("source", "target")}
MIN_ROWS = 8  # of a test length
MAX_POSITIONS = 128  # of a row that is shown as a whole; of a longer one `MAX_QUERIES`
VALIDATION = 2**32 - 1  # a length of its own: the validation set has other rows than a test length


class SequenceTask(Task[NoFiles]):
    """Synthetic rows, trained on short ones and scored by length: every test length is a split.

    Args:
        layout: "decoder": one stack reads the source, then the target; "encoder_decoder": two
            stacks. Targets in place need the first.
    """

    data = SequenceConfig
    name = "sequence"
    unit = "rows"

    def __init__(self, config: Config, layout: str) -> None:
        super().__init__(config)
        if layout not in COLUMNS:
            raise refuse("task.layout", layout, COLUMNS)
        self.columns = COLUMNS[layout]

    @property
    def layout(self) -> Layout:
        """The rows of the config, and the columns that they become."""
        return Layout(instantiate(self.config.data.rows, "data.rows", Rows), self.columns)

    def sites(self) -> tuple[Site, ...]:
        if len(self.columns) == 2:
            return encoder_decoder_sites(self.config.model)
        return (site_alone(self.config.model, "decoder_self", COLUMN),)

    def sizes(self) -> Sizes:
        return self.layout.sizes

    def check(self) -> None:
        data, rows = self.config.data, self.layout.rows
        allowed = f"at least data.min_length={data.min_length}"
        require(data.max_length >= data.min_length, "data.max_length", allowed, data.max_length)
        allowed = f"from 2 to data.max_length={data.max_length}"
        require(2 <= data.first_length <= data.max_length, "data.first_length", allowed,
                data.first_length)  # fmt: skip
        lengths = data.test_lengths
        fits = len(set(lengths)) == len(lengths) and all(length >= 2 for length in lengths)
        require(fits, "data.test_lengths", "different lengths of at least 2", lengths)
        if rows.in_place and len(self.columns) == 2:
            name = type(rows).__name__
            raise ConfigError(f"task.layout must be decoder: targets of {name} are in place")
        for split in (data.valid, *data.test):
            key = f"data.{'max_length' if split == data.valid else 'test_lengths'}"
            allowed = f"a length at which data.rows={type(rows).__name__} have targets"
            numbers = range(self.n_rows(split))
            has_target = any(self.rows(split, [n])[0].scored_T.any() for n in numbers)
            require(has_target, key, allowed, self.length(split))
        longest = self.longest(max([data.max_length, *lengths]))
        most, positions = parts_of(self.config).positions.max_positions, max(longest.values())
        allowed = f"at least {positions}, as a row of the longest data.test_lengths has"
        require(most is None or most >= positions, "positions.max_positions", allowed, most)
        check_model(self.config, self.sites(), longest)

    def longest(self, length: int) -> dict[str, int]:
        """Return the number of positions of a row of a length in each column."""
        layout = self.layout
        sides = layout.ids(evaluation_row(layout.rows, length, 0))
        return {name: len(side) for name, side in zip(self.columns, sides, strict=True)}

    def metrics(self, data: NoFiles | None = None) -> Sequence[Metric]:
        """See `Task.metrics`.

        Whole rows become rarer with their length by counting alone: `counted` is their share if
        errors were independent of each other.
        """
        unit = self.loss.metrics[0].unit
        return [
            Metric("tokens", "higher", percent, (2, 3), "percent", unit, "tokens right (%)",
                   has_interval=True),
            Metric("errors", "lower", errors, (2, 3), "per 1000", unit, "errors per 1,000 tokens"),
            Metric("whole", "higher", percent, (4, 5), "percent", unit, "whole rows right (%)",
                   has_interval=True),
            Metric("counted", "higher", counted, (2, 3, 4), "percent", unit,
                   "whole rows right by counting (%)"),
            *self.loss.metrics,
        ]  # fmt: skip

    def extra(self, data: NoFiles) -> Extra:
        return 1, lambda logits, targets: (logits.argmax(1) == targets).float()

    def open(self, cache: Path) -> NoFiles:
        return NoFiles(self.config.data.test, self.sizes())

    def model(self, sizes: Sizes, data: NoFiles | None = None) -> Model:
        if len(self.columns) == 2:
            return build_model(self.config, sizes["source"], sizes["target"], joint=False)
        return build_single(self.config, sizes[COLUMN], *self.sites())

    def examples(self, data: NoFiles, ranks: Ranks, scratch: Path) -> Examples:
        config = self.config
        positions = max(self.longest(config.data.max_length).values())
        n_rows = max(1, config.trainer.max_tokens // positions) * ranks.n_shares
        return TrainingRows(self.layout, config.data, n_rows, config.seed)

    def batches(self, data: NoFiles, part: Part) -> Sequence[Batch]:
        layout, length = self.layout, self.length(part.split)
        positions = max(self.longest(length).values())
        if positions > part.longest:
            return []
        numbers = range(self.n_rows(part.split))[: part.n]
        step = max(1, self.config.trainer.max_tokens // positions)
        return [
            layout.batch(self.rows(part.split, some), some)
            for some in (numbers[i : i + step] for i in range(0, len(numbers), step))
        ]

    def length(self, split: str) -> int:
        """Return the length of the sources of a split."""
        longest: int = self.config.data.max_length
        return longest if split == self.config.data.valid else int(split)

    def n_rows(self, split: str) -> int:
        """Return the number of rows of a split."""
        data: SequenceConfig = self.config.data
        return min(data.n_test, max(MIN_ROWS, data.test_tokens // self.length(split)))

    def rows(self, split: str, numbers: Iterable[int]) -> list[Row]:
        """Return rows of a split, the same for every run."""
        seed = VALIDATION if split == self.config.data.valid else 0
        rows, length = self.layout.rows, self.length(split)
        return [evaluation_row(rows, length, number, seed) for number in numbers]

    def evaluate(
        self, model: Model, data: NoFiles, part: Part, ranks: Ranks, progress: bool = False
    ) -> Evaluation:
        """See `Task.evaluate`; with whole rows: 1, and whether all of the row is right."""
        (measured,) = super().evaluate(model, data, part, ranks, progress).measured
        is_whole = measured.items[:, 2] == measured.items[:, 3]
        items = np.column_stack([measured.items, np.ones(len(is_whole)), is_whole])
        return Evaluation([Measured(items, measured.metrics)])

    def contents(self, data: NoFiles, split: str) -> tuple[str, str]:
        """See `Task.contents`: ids of sources and targets, and which are scored; in any layout."""
        rows = self.rows(split, range(self.n_rows(split)))
        parts = ((row.source_N, row.target_T, row.scored_T) for row in rows)
        return (values_digest([side.tolist() for side in sides] for sides in parts),) * 2

    def restored(self, saved: Path, splits: Sequence[str], folder: str | None = None) -> NoFiles:
        """See `Task.restored`; any length is a split."""
        self.reading(folder)
        for split in splits:
            if split != self.config.data.valid and not (split.isdecimal() and int(split) >= 2):
                raise refuse("data.test", split, [self.config.data.valid, "a length"])
        return self.open(saved)

    def shown(self, run: Any, source: Source) -> Candidates:
        """See `Task.shown`; an input names a split and the number of a row of it."""
        if not isinstance(source, Part):
            return given(source, self._read, self.unit)
        split = source.split

        def item(number: int) -> Item:
            return Item(number + 1, f"{split} {number}", {"row": f"{split} {number}"})

        return Candidates(self.n_rows(split), item, self._read, self.unit)

    def _read(self, items: Iterable[Item]) -> Iterator[Shown]:
        """Rows with names of their ids; of a long one some positions that predict are observed."""
        layout, mark = self.layout, self.layout.rows.n_ids
        for item in items:
            split, _, number = str(item.input).partition(" ")
            if not number.isdecimal():
                raise DataError(f"{item.input!r} must be a length and the number of a row: '64 0'")
            self.restored(Path(), [split])
            (row,) = self.rows(split, [int(number)])
            batch, ids = layout.batch([row], [0]), map(np.ndarray.tolist, layout.ids(row))
            names = [["·" if n == mark else str(n) for n in side] for side in ids]
            texts = ((side, " ".join(names[0])) for side in names)
            scored, n = batch.scored_R.tolist(), max(map(len, names))
            keys = zip(scored, row.relevant_T[row.scored_T].tolist(), strict=True)
            relevant = {place: key + layout.first_source() for place, key in keys if key >= 0}
            queries = None
            if n > MAX_POSITIONS:
                of_encoder = spaced(range(n), MAX_QUERIES) if len(names) > 1 else ()
                queries = sorted({*spaced(scored, MAX_QUERIES), *of_encoder})
            labels = dict(zip(self.columns, texts, strict=True))
            yield Shown(batch, labels, queries=queries, relevant=relevant)


def errors(sums: Floats) -> float:
    """Errors per 1,000 tokens, from the sums (tokens, right ones)."""
    return float(1000 * (1 - sums[1] / sums[0]))


def counted(sums: Floats) -> float:
    """Percent of whole rows right if errors were independent, from (tokens, right ones, rows)."""
    return float(100 * (sums[1] / sums[0]) ** (sums[0] / sums[2]))

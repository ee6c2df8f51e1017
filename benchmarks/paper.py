"""Time of an update of each cell of a paper's table, on its own data.

    HEADWISE_DATA=FOLDER OMP_NUM_THREADS=1 python -m benchmarks.paper --paper PAPER [--quick]

`PAPER` is a yaml of `conf/paper`, as in `scripts/report.py paper=PAPER`. The cells of a column are
trained interleaved on the first batch of their recipe; printed are milliseconds of an update, the
median, and the ratio to the table's baseline row. With one thread it is the processor's time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.clock import medians
from benchmarks.command import arguments, keep
from benchmarks.updates import CPU, Updates, run_config
from headwise.config.folders import group_node
from headwise.studies.paper import read_paper
from headwise.tasks.task import task_of
from headwise.train.distributed import Ranks


def of_recipe(*overrides: str) -> Updates:
    """Updates of a recipe on the first batch of its training data."""
    config = run_config(*overrides, "trainer.device=cpu", "trainer.progress=false", "tracker=none")
    task = task_of(config)
    with tempfile.TemporaryDirectory() as scratch:
        data = task.prepare(task.open(Path(scratch)))
        examples = task.examples(data, Ranks(0, 1, CPU), Path(scratch))
        batch = examples.collate(0, examples.plan(0)[0])
    return Updates(config, task.model(data.sizes), [batch])


def main() -> None:
    args = arguments(__doc__, paper={"required": True, "help": "name of a yaml of conf/paper"})
    paper, repeats = read_paper(group_node("paper", args.paper)), 3 if args.quick else 11
    kept = {}
    for column in paper.columns:
        cells = {cell.row: cell.overrides for cell in paper.cells if cell.column == column}
        taken = medians({row: of_recipe(*cells[row]) for row in cells}, repeats)
        base = taken[str(paper.baseline)]
        for row, seconds in taken.items():
            print(f"  {column:<12} {row:<20} {1e3 * seconds:8.1f} ms {seconds / base:6.2f}")
        kept[column] = taken
    keep(args.json, {"paper": args.paper, "repeats": repeats, "seconds": kept})


if __name__ == "__main__":
    main()

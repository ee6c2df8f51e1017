"""Time of an update of each cell of a study, on its own data.

    HEADWISE_DATA=FOLDER OMP_NUM_THREADS=1 python -m benchmarks.study --study STUDY [--quick]

`STUDY` is a yaml of `conf/study`, as in `scripts/table.py study=STUDY`. The cells of a column are
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
from headwise.studies.study import read_study
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
    args = arguments(__doc__, study={"required": True, "help": "name of a yaml of conf/study"})
    study, repeats = read_study(group_node("study", args.study)), 3 if args.quick else 11
    kept = {}
    for column in study.columns:
        cells = {cell.row: cell.overrides for cell in study.cells if cell.column == column}
        taken = medians({row: of_recipe(*cells[row]) for row in cells}, repeats)
        base = taken[str(study.baseline)]
        for row, seconds in taken.items():
            print(f"  {column:<12} {row:<20} {1e3 * seconds:8.1f} ms {seconds / base:6.2f}")
        kept[column] = taken
    keep(args.json, {"study": args.study, "repeats": repeats, "seconds": kept})


if __name__ == "__main__":
    main()

"""Updates of training as `python train.py` makes them: their time and memory.

    OMP_NUM_THREADS=1 python -m benchmarks.updates [--recipes OVERRIDES ...] [--quick] [--json FILE]
    OMP_NUM_THREADS=1 python -m benchmarks.updates --study variants [--columns builtin]

A recipe is the overrides of a run in one string, such as "model=deep model.recompute=false". With
`--study` the recipes are the cells of a yaml of `conf/study`, column by column. A recipe is trained
on the first batch of its data over and over; all of a column take turns in one process. Printed are
the median milliseconds of an update and the ratio to the first recipe, or the baseline of the
study. Then the MiB of a second update in a process of its own: what is held when all layers have
gone forward, without model and optimizer, and by how much the resident set rises at most (Linux).
With one thread the time is that of the processor, which other load lengthens less.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.clock import added_bytes, medians
from benchmarks.command import arguments, in_own_process, keep
from benchmarks.saved_storages import n_bytes, saved_storages
from headwise.config.instantiate import instantiate
from headwise.config.register import composed, group_node, typed
from headwise.config.schema import Config, ModelConfig
from headwise.data.batch import Batch, Column
from headwise.model.build import build_model
from headwise.model.family import Model
from headwise.precision import autocast, resolve_precision
from headwise.seed import seed_everything
from headwise.studies.study import read_study, selected
from headwise.tasks.task import task_of
from headwise.train.distributed import Ranks
from headwise.train.memory import keep_freed_memory, return_free_pages
from headwise.train.step import build_step

CPU = torch.device("cpu")
MIB = 2**20
RECIPES = ("attention=softmax", "attention=alpha_entmax")
Recipes = dict[str, Sequence[str]]  # name -> overrides


def run_config(*overrides: str) -> Config:
    """The configuration of `python train.py` with some overrides."""
    return typed(composed(*overrides))


def model_config(name: str) -> ModelConfig:
    """Sizes of `conf/model`."""
    return ModelConfig(**dict(group_node("model", name)))


def full_rows(n_rows: int, length: int, vocabulary: int) -> Batch:
    """Sources and targets of one length, of random ids."""
    numbers = torch.Generator().manual_seed(1)
    sides = [torch.randint(4, vocabulary, (n_rows, length), generator=numbers) for _ in range(2)]
    lengths, (source, target) = torch.full((n_rows,), length), sides
    columns = {"source": Column(source, lengths), "target": Column(target, lengths)}
    scored, n_targets = torch.arange(target.numel()), target.numel()
    return Batch(columns, scored, target.flatten(), list(range(n_rows)), n_targets)


class Updates:
    """A model that is trained on some batches over and over.

    Args:
        config: of the run.
        model: a model, or the size of either vocabulary of a Transformer.
        batches: one an update.
    """

    def __init__(
        self, config: Config, model: Model | int, batches: Sequence[Batch],
        device: torch.device = CPU,
    ) -> None:  # fmt: skip
        config.trainer.precision = resolve_precision(config.trainer.precision, device)
        seed_everything(config.seed, "model")
        if isinstance(model, int):
            model = build_model(config, model, model, config.tokenizer.joint)
        self.device = device
        loss, alone = instantiate(config.loss, "loss"), Ranks(0, 1, device)
        self.step = build_step(config, model.to(device), loss, alone)
        self.batches, self.n_batches = itertools.cycle(batches), len(batches)
        self.n_updates = 0

    @classmethod
    def of_recipe(cls, overrides: Sequence[str], cache: Path) -> Updates:
        """Of a run with some overrides, on the first batch of its data."""
        config = run_config(*overrides, "trainer.device=cpu", "trainer.progress=false")
        task = task_of(config)
        data = task.prepare(task.open(cache))
        examples = task.examples(data, Ranks(0, 1, CPU), cache)
        return cls(config, task.model(data.sizes), [examples.collate(0, examples.plan(0)[0])])

    def __call__(self) -> None:
        """One update."""
        self.n_updates += 1
        self.step(self.n_updates, [next(self.batches)])

    def round(self) -> None:
        """An update of each batch."""
        for _ in range(self.n_batches):
            self()

    def held_bytes(self) -> int:
        """Return the bytes that autograd saves in the forward pass of all layers of a batch."""
        model, batch = self.step.model.train(), next(self.batches).to(self.device)
        precision = self.step.config.precision
        with saved_storages(model) as saved, autocast(self.device, precision):
            model.states(**model.inputs(batch))
        return n_bytes(saved)


def recipes_of(name: str, columns: Sequence[str] | None) -> dict[str, Recipes]:
    """Column -> the recipes of a study, the baseline first."""
    study = selected(read_study(group_node("study", name)), None, columns)
    cells = sorted(study.cells, key=lambda cell: cell.row != study.baseline)
    tables: dict[str, Recipes] = {}
    for cell in cells:
        tables.setdefault(cell.column, {})[cell.row] = cell.overrides
    return tables


def memory(overrides: Sequence[str], cache: Path) -> dict[str, float]:
    """MiB of the second update in this process, which finds libraries and moments in place."""
    updates = Updates.of_recipe(overrides, cache)
    updates()
    return_free_pages()
    sizes = {"peak": added_bytes(updates), "held": updates.held_bytes()}
    return {name: (size or math.nan) / MIB for name, size in sizes.items()}


def measure(recipes: Mapping[str, Sequence[str]], repeats: int) -> dict[str, dict[str, float]]:
    """Seconds and MiB of an update of each recipe, which are printed; ratios are to the first."""
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        updates = {name: Updates.of_recipe(one, Path(cache)) for name, one in recipes.items()}
        for name, seconds in medians(updates, repeats).items():
            row = {"seconds": seconds} | in_own_process(memory, recipes[name], Path(cache))
            rows[name] = row
            ratio = seconds / next(iter(rows.values()))["seconds"]
            print(
                f"  {name:<40} {1e3 * seconds:8.1f} ms {ratio:5.2f} x"
                f"   held {row['held']:.0f} MiB   peak {row['peak']:.0f} MiB",
                flush=True,
            )
    return rows


def main() -> None:
    args = arguments(
        __doc__,
        recipes={"nargs": "+", "default": RECIPES, "help": "overrides of runs, a string each"},
        study={"help": "a yaml of conf/study, in place of --recipes"},
        columns={"nargs": "+", "help": "of the study; default: all"},
    )
    tables: dict[str, Recipes] = {"recipes": {one: one.split() for one in args.recipes}}
    if args.study:
        tables = recipes_of(args.study, args.columns)
    keep_freed_memory()
    # glibc then maps each tensor by itself, so that what is freed leaves the resident set
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # of the processes that are started
    results = {}
    for table, recipes in tables.items():
        print(table)
        results[table] = measure(recipes, 3 if args.quick else 11)
    keep(args.json, {"updates": results})


if __name__ == "__main__":
    main()

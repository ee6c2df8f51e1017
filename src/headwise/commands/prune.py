"""`headwise prune run=FOLDER`: importance of heads, and a run with fewer heads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from pandas import DataFrame

from headwise.analysis.importance import Importance, head_importance
from headwise.analysis.pruning import (
    Head,
    Heads,
    check_pruned,
    common_heads,
    flat_heads,
    is_gated,
    n_heads,
    one_left,
    one_removed,
    open_heads,
    present_heads,
    pruned_state,
    pruning_curve,
    pruning_order,
    without,
)
from headwise.analysis.tables import HEAD_KEY
from headwise.config.commands import PruneConfig
from headwise.config.register import group_node
from headwise.errors import ConfigError, RunError, refuse
from headwise.files import rename, write_json, write_text
from headwise.metrics.metric import Floats
from headwise.metrics.significance import paired_bootstrap
from headwise.model.family import Model, n_parameters
from headwise.model.places import check_heads, chosen_sites, typed_heads
from headwise.progress import progress_bar
from headwise.runs.folder import RunFolder, digest
from headwise.runs.record import Record
from headwise.tasks.inspection import Inspected, inspected
from headwise.tasks.load import load_selected
from headwise.tasks.task import TrainedRun
from headwise.track.base import numbered
from headwise.train.checkpoint import save_checkpoint
from headwise.train.trainer import Validation

METHODS = ("importance", "gates")
FORMAT = "{:.4f}".format  # of printed numbers
N_RESAMPLES = 2000  # of the test of a loss by bootstrap


def prune(config: PruneConfig) -> None:
    """Measure the heads of a run; write the requested tables and pruned run.

    Raises:
        ConfigError: options that cannot be combined, or do not fit the run.
        RunError: by=gates without gates, the output already exists, or the run's attention
            cannot be pruned.
    """
    _check(config)
    run: TrainedRun = load_selected(config.run, replace(config, decode={}))
    # the default is a search of translations, which other tasks lack
    run = run.searching({key: value for key, value in config.decode.items() if key in run.search})
    sites = chosen_sites("sites", config.sites, run.model.sites)
    heads = present_heads(run.model)
    if not flat_heads(heads, sites):
        raise RunError(f"run={run.folder.path} has no heads to prune ({', '.join(sites)})")
    kept = _heads_without_measuring(config, run, heads)
    if kept is None or config.table or config.ablation:
        importance = _measure(config, run, heads, sites)
        if kept is None and config.fraction is not None:
            order = pruning_order(importance.normalised, heads, sites)
            kept = without(heads, order[: round(config.fraction * len(order))])
    if kept is not None:
        _write_run(config, run, common_heads(open_heads(run.model), kept))


def _check(config: PruneConfig) -> None:
    """Raise an error for invalid options, before anything is loaded."""
    if config.by not in METHODS:
        raise refuse("by", config.by, METHODS)
    gates, fraction = config.by == "gates", config.fraction
    flags = {"fraction": fraction is not None, "keep": config.keep is not None, "by=gates": gates}
    chosen = [option for option, is_given in flags.items() if is_given]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} cannot be combined; give one of them")
    if config.output is not None:
        if not chosen:
            raise ConfigError("output needs fraction, keep or by=gates to select heads")
        _check_absent(Path(config.output))


def _check_absent(path: Path) -> None:
    if path.exists():
        raise RunError(f"output={path} already exists; remove it or give another")


def _heads_without_measuring(config: PruneConfig, run: TrainedRun, heads: Heads) -> Heads | None:
    """Heads kept by gates or by the user; None if they depend on importance."""
    if config.by == "gates":
        if not is_gated(run.model):
            raise RunError(
                f"run={run.folder.path} has no gates; train them with headwise train "
                f"init_from={run.folder.path} gates=hard_concrete, or use by=importance"
            )
        return open_heads(run.model)
    if config.keep is None:
        return None
    check_heads(replace(run.config.model, heads=config.keep), run.model.sites, "keep")
    for site, layer, number in flat_heads(config.keep):
        if number not in heads[site][layer - 1]:
            raise ConfigError(
                f"keep.{site}: head {number} of layer {layer} was already pruned from the run"
            )
    return common_heads(heads, config.keep)


# -- measuring ------------------------------------------------------------------------------------


def _measure(config: PruneConfig, run: TrainedRun, heads: Heads, sites: list[str]) -> Importance:
    """Importance of the heads; prints and writes it with the requested tables."""
    run.folder.check_writable()
    items = inspected(run, config.data, run.config.trainer.max_tokens)
    importance = head_importance(run.model, items.batches, run.task.loss, run.device)
    print(f"importance of heads on {importance.n_sentences} sentences of {items.split}")
    print(_importance_table(importance, heads).to_string(index=False, float_format=FORMAT))
    folder = run.folder.path / "pruning"
    folder.mkdir(exist_ok=True)
    monitor = run.task.metric
    about = {
        **_origin(run),
        "split": items.split,
        "sentences": importance.n_sentences,
        "metric": monitor.name,
        "loss": run.config.loss,
        "decode": run.search,
    }
    values = {"raw": importance.raw, "normalised": importance.normalised}
    write_json(folder / "importance.json", {**about, "heads": heads, **values})
    order = pruning_order(importance.normalised, heads, sites)
    wants_tables = config.table or config.ablation
    tables = _tables(config, run, items, order, sites) if wants_tables else {}
    suffix = "" if len(set(sites)) == len(run.model.sites) else "-" + "-".join(sites)
    for name, rows in tables.items():
        frame = DataFrame(rows)
        print(f"\n{name}\n{frame.to_string(index=False, float_format=FORMAT)}")
        write_json(folder / f"{name}{suffix}.json", {**about, "sites": sites, "rows": rows})
        write_text(folder / f"{name}{suffix}.csv", frame.to_csv(index=False, lineterminator="\n"))
    print(f"\nwritten to {folder}", flush=True)
    return importance


def _tables(
    config: PruneConfig,
    run: TrainedRun,
    items: Inspected,
    order: Sequence[Head],
    sites: Sequence[str],
) -> dict[str, list[dict[str, Any]]]:
    """The requested tables; each row is tested against all heads by a paired bootstrap."""
    monitor, loss = run.task.metric, run.task.loss
    n_measured = 1 + 11 * config.table + 2 * len(order) * config.ablation
    tables = {}
    with progress_bar("tables", config.progress, n_measured, " measurements") as bar:

        def scores_and_items() -> tuple[dict[str, float], Floats]:
            parts = items.measure()
            bar.update()
            of_monitor = next(part.items for part in parts if part.unit == monitor.unit)
            return Validation(parts).values(), of_monitor

        _, with_all = scores_and_items()

        def measure() -> dict[str, float]:
            values, without_some = scores_and_items()
            test = paired_bootstrap([without_some], [with_all], monitor, N_RESAMPLES)
            scores = {name: values[name] for name in (monitor.name, "loss", loss.measure)}
            gain = monitor.sign * test.difference  # above 0: better without these heads
            return {**scores, "difference": gain, "p_value": test.p_value}

        def sort_key(row: Mapping[str, float]) -> tuple[float, ...]:
            return monitor.sign * row[monitor.name], -row["loss"]

        if config.table:
            tables["curve"] = pruning_curve(run.model, order, measure)
        if config.ablation:
            tables["one_removed"] = one_removed(run.model, sites, measure)
            tables["one_left"] = one_left(run.model, sites, measure, sort_key)
    return tables


def _importance_table(importance: Importance, heads: Heads) -> DataFrame:
    columns = {"raw": importance.raw, "normalised": importance.normalised}
    table = DataFrame({name: dict(numbered(values, heads)) for name, values in columns.items()})
    return table.rename_axis(list(HEAD_KEY)).reset_index()


# -- the pruned run -------------------------------------------------------------------------------


def _write_run(config: PruneConfig, run: TrainedRun, kept: Heads) -> None:
    """Write a run folder whose model has only the heads `kept`."""
    before, after = n_heads(present_heads(run.model)), n_heads(kept)
    if before == after and not is_gated(run.model):
        print("no heads to prune: no run is written")
        return
    path = _output(config, run, kept)
    open_gates = group_node("gates", "none")  # the kept heads are open
    smaller = _smaller_model(run, kept, open_gates)
    container = Record(run.folder.path).saved
    container["model"]["heads"] = kept
    container["gates"] = open_gates
    about = {
        **_origin(run),
        "by": "keep" if config.keep is not None else config.by,
        "fraction": config.fraction,
        "heads_before": before,
        "heads": after,
        "parameters_before": n_parameters(run.model),
        "parameters": n_parameters(smaller),
    }
    override = typed_heads(kept)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = RunFolder(path.with_name(f".{path.name}.{os.getpid()}"))
    try:
        partial.make()
        partial.describe(container, [*_overrides(run.folder), override])
        _copy_data(run.task.data_files, run.folder, partial)
        save_checkpoint(partial.checkpoints / "best.pt", {"model": smaller.state_dict()})
        partial.write_json("pruned.json", about)
        rename(partial.path, path)  # atomic
    finally:
        shutil.rmtree(partial.path, ignore_errors=True)
    print(
        f"{sum(before.values())} heads, now {sum(after.values())} "
        f"({', '.join(f'{site} {n}' for site, n in after.items())}); "
        f"{about['parameters_before']:,} parameters, now {about['parameters']:,}\n"
        f"run folder  {path}\n"
        f"evaluate    headwise evaluate {quote(f'run={path}')}\n"
        f"continue    headwise train {quote(f'init_from={path}')} '{override}' "
        "and the run's other settings"
    )


def _smaller_model(run: TrainedRun, kept: Heads, gates: Any) -> Model:
    """The model without gates and with only the heads `kept`; its logits are verified."""
    model_config = replace(run.config.model, heads=kept)
    task = run.task.changed(model=model_config, gates=gates)
    smaller = task.model(run.sizes).to(run.device).eval()
    smaller.load_state_dict(pruned_state(run.model, smaller))
    check_pruned(run.model, kept, smaller)
    return smaller


def _output(config: PruneConfig, run: TrainedRun, kept: Heads) -> Path:
    """Path of the pruned run; the default name contains a hash of weights and kept heads."""
    if config.output is not None:
        return Path(config.output)
    run.folder.check_writable("set output=FOLDER, or ")
    origin = run.folder.path.resolve()
    path = origin.with_name(f"{origin.name}-pruned-{digest([run.weights['weights'], kept])}")
    _check_absent(path)
    return path


def _origin(run: TrainedRun) -> dict[str, Any]:
    """Path and weights of the original run."""
    return {"origin": str(run.folder.path), **run.weights}


def _overrides(folder: RunFolder) -> list[str]:
    overrides = Record(folder.path).part("overrides") or ()
    return [str(o) for o in overrides if not str(o).startswith(("gates", "model.heads="))]


def _copy_data(patterns: Sequence[str], old: RunFolder, new: RunFolder) -> None:
    """Copy tokenizers and test sets, without hypotheses."""
    for path in (path for pattern in patterns for path in old.path.glob(pattern)):
        copy = new.path / path.relative_to(old.path)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)

"""Every record in `results/` can be read, has typed values, and its scores follow from its sums."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from guide import ROOT
from headwise.config.instantiate import fits
from headwise.errors import HeadwiseError
from headwise.runs.archive import existing_record, find_records
from headwise.runs.folder import RunFolder
from headwise.runs.log import LAYER_STATISTICS
from headwise.runs.record import PARTS, read_yaml
from headwise.studies.record import TaskRecord

RESULTS = ROOT / "results"
UNFINISHED = "kftt_gpu"  # trained until the machine's time was over, then evaluated
TYPES = {"text": str | None, "vocabulary": str | None, "train": dict[str, Any] | None}
KEYS = {
    "data": ("text", "vocabulary"),
    "environment": ("platform", "cpus", "threads", "gpu", "world_size"),
}
LONG_RUN = "correia2019_long/attention-alpha_entmax_seed-2-5716f416"


def problems(run):
    """What is wrong with a record, as messages that name the run and the key."""
    try:
        parts = [_facts(run), _scalars(run), _heads(run), _sums(run)]
        return [f"{run.folder}: {problem}" for part in parts for problem in part]
    except HeadwiseError as error:
        return [str(error)]


def _facts(run):
    if (run.results is None) != (run.folder.parent.name == UNFINISHED):
        yield "results.json: not finished"
    overrides = run.part("overrides")
    if not fits(overrides, list[str]) or f"seed={run.seed}" not in overrides:
        yield f"overrides.yaml: {overrides}"
    for key, kind in TYPES.items():
        if not fits(run.data.get(key), kind):
            yield f"data.json: {key}={run.data.get(key)}"
    for name, keys in KEYS.items():
        content = run.part(name)  # older records lack it
        if content and (absent := set(keys) - set(content)):
            yield f"{PARTS[name]}: no {', '.join(sorted(absent))}"


def _scalars(run):
    logged = [line["update"] for line in run.part("metrics") or ()]
    updates = [0, *logged, *([run.updates] if run.results else [])]
    if updates != sorted(updates):
        yield f"metrics.jsonl: the updates are {updates}"


def _heads(run):
    records = [("heads.jsonl", line) for line in run.part("heads") or ()]
    if run.results is not None:
        records.append(("results.json", {**run.results.heads, "alpha": run.results.alpha}))
    n_heads = run.config.model.n_heads
    for file, record in records:
        for name, sites in record.items():
            width = 1 if name in LAYER_STATISTICS else n_heads
            for site, layers in sites.items() if isinstance(sites, Mapping) else ():
                values = np.array(layers, float)
                if values.shape != (run.sites.get(site), width):
                    yield f"{file}: {name} of {site} has the shape {values.shape}"
            if not isinstance(sites, Mapping) and name != "update":
                yield f"{file}: {name}={sites}"


def _sums(run):
    unknown = {name for name, _ in run.all_sums()}
    for split, scores in run.results.scores.items() if run.results else ():
        metrics = {metric.name: metric for metric in run.task.metrics()}
        if scores.keys() != metrics.keys():
            yield f"results.json: {split} has {sorted(scores)}, not {sorted(metrics)}"
        for name in scores.keys() & metrics.keys():
            unknown -= {f"{split}.{metrics[name].unit}"}
            items, saved = run.sums(split, metrics[name].unit), scores[name]["score"]
            if items is not None and metrics[name].score(items) != pytest.approx(saved, rel=1e-9):
                yield f"sums of {split} do not give {name}={saved}"
    if unknown:
        yield f"sums of no score: {sorted(unknown)}"


def folder_of(run, folder):
    """The folder that an archived run had, without weights."""
    folder.mkdir()
    for name, file in PARTS.items():
        lines = run.part(name) if file.endswith("jsonl") else [run.part(name)]
        text = "".join(f"{json.dumps(line)}\n" for line in lines if line is not None)
        (folder / file).write_text(text) if text else None
    for name, items in run.all_sums():
        RunFolder(folder).write_sums(*name.rsplit(".", 1), items)
    for name in run.names("*"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(run.text(name) or "", encoding="utf-8")
    return folder


@pytest.mark.slow
def test_every_record_is_read_and_gives_its_scores():
    runs = find_records([str(RESULTS)], TaskRecord)
    assert len(runs) == 560
    assert not (wrong := [problem for run in runs for problem in problems(run)]), wrong
    for run in (run for run in runs if run.folder.parent.name == UNFINISHED):
        assert run.json("results-best.json")["scores"]["test"].keys() >= {"bleu", "nll"}


def test_broken_files_are_named_with_the_run_and_the_key(tmp_path):
    archived = existing_record(str(RESULTS / LONG_RUN), TaskRecord)
    copy = folder_of(archived, tmp_path / "copied_run")
    assert problems(TaskRecord(copy)) == []
    (copy / "overrides.yaml").write_text("- seed=3\n")
    (copy / "data.json").write_text('{"text": 3}')
    (copy / "environment.json").write_text('{"cpus": 3}')
    (copy / "metrics.jsonl").write_text('{"update": 30000, "train/loss": 1.5}\n')
    (copy / "heads.jsonl").write_text('{"update": 1, "alpha": {"cross": [[1.5]]}}\n')
    np.savez(copy / "sums" / "test_tst2014.translation.npz", items=np.ones((3, 44)))
    keys = (
        "seed=3", "text=3", "data.json: no vocabulary", "environment.json: no gpu, platform",
        "[0, 30000, 20000]", "alpha of cross has the shape (1, 1)", "give bleu=",
    )  # fmt: skip
    messages = problems(TaskRecord(copy))
    for key in keys:
        assert any(str(copy) in problem and key in problem for problem in messages), key
    for name, key in {"config.yaml": "widths", "results.json": "bleus"}.items():
        content = read_yaml(copy / name)
        (copy / name).write_text(json.dumps({**content, key: 3}))
        (problem,) = problems(TaskRecord(copy))
        assert str(copy / name) in problem
        assert key in problem

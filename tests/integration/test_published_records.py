"""Every record in `results/` can be read, has typed values, and its scores follow from its sums."""

from __future__ import annotations

import json
import shutil
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guide import ROOT
from headwise.config.instantiate import fits
from headwise.errors import HeadwiseError
from headwise.files import read_json
from headwise.runs.folder import RunFolder, read_yaml
from headwise.runs.records import LAYER_STATISTICS
from headwise.studies.match import MACHINE, SavedRun, read_run
from headwise.track.jsonl import read_if_exists

RESULTS = ROOT / "results"
UNREADABLE = {  # study -> what is wrong with its records, which an older version wrote
    "kftt_gpu": "of another version: unknown checkpoint, decode",
    "multi30k_small": "no config.yaml there",
}
TYPES = typing.get_type_hints(SavedRun)
KEYS = {"data.json": ("text", "vocabulary"), "environment.json": MACHINE}
LONG_RUN = RESULTS / "correia2019_long" / "attention-alpha_entmax_seed-2-5716f416"


def problems(folder: Path) -> list[str]:
    """What is wrong with a record, as messages that name the run and the key."""
    try:
        run, overrides = read_run(folder), read_yaml(folder / "overrides.yaml")
        parts = [_facts(run, overrides), _scalars(run), _heads(run), _sums(run)]
        return [f"{folder}: {problem}" for part in parts for problem in part]
    except HeadwiseError as error:
        return [str(error)]


def _facts(run: SavedRun, overrides: Any) -> Iterator[str]:
    if run.results is None:
        yield "results.json: not finished"
    if not fits(overrides, list[str]) or f"seed={run.seed}" not in overrides:
        yield f"overrides.yaml: {overrides}"
    for key in ("text", "vocabulary", "train_pairs"):
        if not fits(getattr(run, key), TYPES[key]):
            yield f"data.json: {key}={getattr(run, key)}"
    for name, keys in KEYS.items():
        content = read_json(run.folder / name, missing_ok=True)  # older records lack the file
        if content and (absent := set(keys) - set(content)):
            yield f"{name}: no {', '.join(sorted(absent))}"


def _scalars(run: SavedRun) -> Iterator[str]:
    records = read_if_exists(RunFolder(run.folder).metrics)  # which checks that they are numbers
    updates = [0, *(record["update"] for record in records), run.updates]
    if updates != sorted(updates):
        yield f"metrics.jsonl: the updates are {updates}"


def _heads(run: SavedRun) -> Iterator[str]:
    records = [("heads.jsonl", record) for record in read_if_exists(RunFolder(run.folder).heads)]
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


def _sums(run: SavedRun) -> Iterator[str]:
    folder, used = RunFolder(run.folder), set()
    for split, scores in run.results.scores.items() if run.results else ():
        metrics = {metric.name: metric for metric in run.task.metrics()}
        if scores.keys() != metrics.keys():
            yield f"results.json: {split} has {sorted(scores)}, not {sorted(metrics)}"
        for name in scores.keys() & metrics.keys():
            if (items := folder.read_sums(split, metrics[name].unit)) is not None:
                used.add(folder.sums_file(split, metrics[name].unit))
                if metrics[name].score(items) != pytest.approx(scores[name]["score"], rel=1e-9):
                    yield f"sums of {split} do not give {name}={scores[name]['score']}"
    if unknown := set(folder.sums.glob("*")) - used:
        yield f"sums of no score: {sorted(path.name for path in unknown)}"


@pytest.mark.slow
def test_every_record_is_read_and_gives_its_scores() -> None:
    folders = sorted({path.parent for path in RESULTS.glob("*/*/results.json")})
    assert len(folders) == 517
    found = {folder: problems(folder) for folder in folders}
    for folder in [folder for folder in folders if folder.parent.name in UNREADABLE]:
        (problem,) = found.pop(folder)
        assert UNREADABLE[folder.parent.name] in problem
    assert not (wrong := [problem for list_ in found.values() for problem in list_]), wrong


def test_broken_files_are_named_with_the_run_and_the_key(tmp_path: Path) -> None:
    copy = shutil.copytree(LONG_RUN, tmp_path / "copied_run")
    assert problems(copy) == []
    (copy / "overrides.yaml").write_text("- seed=3\n")
    (copy / "data.json").write_text('{"text": 3}')
    (copy / "environment.json").write_text('{"cpus": 3}')
    (copy / "metrics.jsonl").write_text('{"update": 30000, "train/loss": 1.5}\n')
    (copy / "heads.jsonl").write_text('{"update": 1, "alpha": {"cross": [[1.5]]}}\n')
    np.savez(copy / "sums" / "test_tst2014.translation.npz", items=np.ones((3, 44)))
    keys = ("seed=3", "text=3", "data.json: no vocabulary", "environment.json: no gpu, platform",
            "[0, 30000, 20000]", "alpha of cross has the shape (1, 1)", "give bleu=")  # fmt: skip
    found = problems(copy)
    for key in keys:
        assert any(str(copy) in problem and key in problem for problem in found), key
    for name, key in {"results.json": "bleus", "config.yaml": "widths"}.items():
        content = read_yaml(copy / name)
        (copy / name).write_text(json.dumps({**content, key: 3}))
        (problem,) = problems(copy)
        assert str(copy / name) in problem
        assert key in problem

"""`headwise analyze`: measure the heads of trained runs, and write tables for each run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from headwise.analysis.findings import findings, findings_text
from headwise.analysis.importance import head_importance
from headwise.analysis.observe import for_each_block
from headwise.analysis.pruning import present_heads
from headwise.analysis.roles import Thresholds
from headwise.analysis.survey import Rows, survey
from headwise.analysis.tables import FINDINGS_TEXT, FOLDER, SETTINGS, TABLES, read_settings
from headwise.analysis.trajectories import trajectory_rows
from headwise.config.commands import AnalyzeConfig
from headwise.data.sources.digest import content_digest
from headwise.files import locked, write_json, write_text
from headwise.runs.folder import RunFolder, find_folders
from headwise.runs.record import Record
from headwise.studies.heads import write_comparison
from headwise.studies.names import attention_name
from headwise.studies.record import TaskRecord
from headwise.tasks.evaluate import MAX_HEAD_TOKENS
from headwise.tasks.inspection import Inspected, inspected, length_rows
from headwise.tasks.load import load_selected
from headwise.tasks.task import TrainedRun
from headwise.track.jsonl import read_if_exists

VERSION = 5  # of the analysis; results of another version are recomputed
MAX_TOKENS = 4096  # padded tokens per batch: all weights of a layer are in memory at once
# Settings that may differ between a current analysis and the requested one.
IGNORED_KEYS = ("run", "importance", "counts")
THRESHOLDS = tuple(field.name for field in fields(Thresholds))


def analyze(config: AnalyzeConfig) -> None:
    """Analyse the requested runs, and compare them if there are several.

    Raises:
        ConfigError: no run is given, or a value is not allowed.
        RunError: a folder does not contain a run.
        DataError: the text does not exist, or has no sentence.
    """
    analyses = analyze_folders(config)
    if config.runs:
        runs = [TaskRecord(folder.parent) for folder in analyses]
        print(write_comparison(runs, Path(config.output)))


def analyze_folders(config: AnalyzeConfig) -> list[Path]:
    """Analyse the requested runs without a current analysis; see `analyze`."""
    config.check_runs()
    return [_analyze(config, folder) for folder in _folders(config)]


def _folders(config: AnalyzeConfig) -> list[RunFolder]:
    """The requested runs without duplicates, in the order given."""
    if config.run is not None:
        return [RunFolder.existing(config.run)]
    folders: dict[Path, RunFolder] = {}
    for name in config.runs:
        for path in find_folders([name]) or [RunFolder.existing(name, "runs").path]:
            folders.setdefault(path.resolve(), RunFolder(path))
    return list(folders.values())


def _analyze(config: AnalyzeConfig, folder: RunFolder) -> Path:
    """Analyse one run unless its analysis is current; returns the folder of the analysis."""
    run = load_selected(folder.path, config)
    max_tokens = config.max_tokens or min(run.config.trainer.max_tokens, MAX_TOKENS)
    items = inspected(run, config.data, max_tokens, MAX_HEAD_TOKENS)
    about = _about(config, run, items)
    out = folder.path / FOLDER
    if not config.overwrite and _is_current(out, about):
        if config.run is not None:
            print((out / FINDINGS_TEXT).read_text(encoding="utf-8"), end="")
        print(f"{out} already exists (overwrite=true recomputes it)", flush=True)
        return out
    folder.check_writable()  # fail before measuring, not after
    out.mkdir(exist_ok=True)
    tables = _measure(config, run, items, about)
    with locked(folder.path / f".{FOLDER}.lock"):
        text = _write(out, tables, about)
    print(text if config.run is not None else "", end="")
    print(f"written to {out}", flush=True)
    return out


def _write(out: Path, tables: dict[str, Rows], about: dict[str, Any]) -> str:
    """Write tables, findings and settings; returns the text of the findings."""
    tables["findings"] = findings(tables, about)
    (out / SETTINGS).unlink(missing_ok=True)  # written last: marks a complete analysis
    for table in TABLES:
        write_text(table.path(out), table.text(tables[table.name]))
    text = findings_text(tables["findings"], about)
    write_text(out / FINDINGS_TEXT, text)
    write_json(out / SETTINGS, about)
    return text


def _about(config: AnalyzeConfig, run: TrainedRun, items: Inspected) -> dict[str, Any]:
    """Content of settings.json: the inputs and settings of the analysis."""
    attentions = [attention for _, _, attention in run.model.attentions()]
    return {
        "version": VERSION,
        "run": run.folder.path.resolve().name,
        "attention": attention_name(run.config),
        "not_distributions": sum(a.distribution_heads().count(False) for a in attentions),
        "effective_weights": any(a.forms_weights == "effective" for a in attentions),
        **run.weights,
        "record": content_digest(run.folder.heads) if run.folder.heads.is_file() else None,
        "split": items.split,
        "languages": "→".join(text.language for text in items.texts.values()),
        "self_attention": {s.name: s.keys for s in run.model.sites if s.queries == s.keys},
        "sentences": items.n,
        "unit": run.task.unit,
        "too_long": items.n_left_out,
        "text": items.digest(),
        "offsets": config.offsets,
        "thresholds": asdict(_thresholds(config)),
        "importance": config.importance,
    }


def _thresholds(config: AnalyzeConfig) -> Thresholds:
    return Thresholds(**{key: getattr(config, key) for key in THRESHOLDS})


def _is_current(out: Path, about: Mapping[str, Any]) -> bool:
    """Whether a complete analysis with these settings exists; it may have more tables."""
    before = read_settings(Record(out.parent))
    if not before or not all(table.path(out).is_file() for table in TABLES):
        return False
    same = all(before.get(key) == about[key] for key in about if key not in IGNORED_KEYS)
    return same and bool(before.get("importance") or not about["importance"])


def _measure(
    config: AnalyzeConfig, run: TrainedRun, items: Inspected, about: dict[str, Any]
) -> dict[str, Rows]:
    """Tables by name; adds the counts to `about`."""
    model, device, batches = run.model, run.device, items.batches
    bar = partial(tqdm, disable=not (config.progress and sys.stderr.isatty()))
    columns = {}
    if config.importance:
        scores = head_importance(model, bar(batches, "importance"), run.task.loss, device)
        columns = {"importance": scores.raw, "importance_normalised": scores.normalised}
        columns |= scores.gradients
    settings = config.offsets, _thresholds(config)
    blocks = partial(for_each_block, model, bar(batches, "heads"), device)
    result = survey(model, blocks, items.texts, *settings, columns)
    about["counts"] = result.counts
    records = read_if_exists(run.folder.heads)
    return {
        **result.tables,
        "lengths": length_rows(run),
        "trajectories": trajectory_rows(records, present_heads(model)),
    }

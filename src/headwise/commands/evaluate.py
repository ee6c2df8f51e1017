"""`headwise evaluate run=FOLDER`: scores of a run on test sets or on files of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.commands.outcome import score_lines
from headwise.config.commands import EvaluateConfig
from headwise.data.sources.lines import read_lines
from headwise.errors import ConfigError, require
from headwise.file_names import check_file_name
from headwise.files import read_json, write_json
from headwise.runs.folder import RESERVED_NAMES, RunFolder
from headwise.tasks.data import Sides
from headwise.tasks.evaluate import score
from headwise.tasks.load import load_selected
from headwise.tasks.task import TrainedRun
from headwise.tasks.translation.sets import check_aligned
from headwise.train.distributed import Ranks


def evaluate(config: EvaluateConfig) -> dict[str, Any]:
    """Score a trained run on test sets, translated or measured; returns the scores by set.

    Earlier scores in the same file, with the same weights and search, are preserved.
    """
    name = config.name
    if name is not None:
        check_file_name("name", name)
        require(not name.startswith("."), "name", "a name without a leading .", name)
    if name in RESERVED_NAMES:
        raise ConfigError(f"name={name} is reserved for {name}.json of the run; give another name")
    texts = _user_text(config)
    out = _out(config)
    return _evaluated(load_selected(config.run, config), config, out, texts, name)


def _out(config: EvaluateConfig) -> RunFolder:
    """The folder for the results, which can be written."""
    if config.output is not None:
        Path(config.output).mkdir(parents=True, exist_ok=True)
        return RunFolder(Path(config.output))
    run = RunFolder.existing(config.run)
    run.check_writable("set output=FOLDER, or ")
    return run


def _evaluated(
    run: TrainedRun,
    config: EvaluateConfig,
    out: RunFolder,
    texts: dict[str, Sides],
    name: str | None,
) -> dict[str, Any]:
    """Score a run, and write the scores."""
    name = name or f"results-{config.checkpoint}"
    path = out.path / f"{name}.json"
    content = {**run.weights, "decode": run.search}
    all_scores, files = _earlier_scores(path, content)
    scores, task = {}, run.task
    if texts:
        splits, data = list(texts), task.of_files(run.folder.path, texts)
    else:
        folder, named = config.data.dir, config.data.test
        splits = list(named or run.test_sets(folder) or [run.config.data.valid])
        for split in splits:
            check_file_name("data.test", split)
        data = run.data(splits, folder)
    for split in splits:
        shared = run.model, data, Ranks(0, 1, run.device), out, split, name
        of_split = score(task, *shared, progress=config.progress)
        files.pop(split, None)
        if split in texts:
            files[split] = _user_paths(config)
        print("\n".join(score_lines(split, of_split)), flush=True)
        all_scores[split] = scores[split] = of_split
        written = {**content, **({"files": files} if files else {}), "scores": all_scores}
        write_json(path, written)
    print(f"written to {path}")
    return scores


def _user_paths(config: EvaluateConfig) -> dict[str, str]:
    """Absolute paths of the user's files; sets are named after the file name only."""
    sides = {"source": config.data.source_file, "reference": config.data.reference_file}
    return {side: str(Path(str(path)).resolve()) for side, path in sides.items()}


def _earlier_scores(
    path: Path, content: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Scores at `path` with the same weights and search, and files by set; else empty."""
    before = read_json(path, missing_ok=True)
    scores: dict[str, Any] = before.pop("scores", {})
    files: dict[str, dict[str, str]] = before.pop("files", {})
    if before == content:
        return scores, files
    if scores:
        print(
            f"{path} contained scores of {', '.join(scores)} with other weights or search "
            "settings: they are overwritten (name=… keeps both)",
            flush=True,
        )
    return {}, {}


def _user_text(config: EvaluateConfig) -> dict[str, Sides]:
    source, reference = config.data.source_file, config.data.reference_file
    if source is None and reference is None:
        return {}
    if source is None or reference is None:
        raise ConfigError("data.source_file and data.reference_file must both be given")
    if config.data.test or config.data.dir is not None:
        raise ConfigError(
            "data.test and data.dir cannot be combined with data.source_file; use two commands, "
            "which write to one file"
        )
    sources, references = read_lines(Path(source)), read_lines(Path(reference))
    check_aligned(sources, references, source, reference)
    stem = Path(source).name.removesuffix(".gz")
    return {stem: (sources, references)}

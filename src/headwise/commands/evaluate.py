"""`headwise evaluate run=FOLDER`: scores of a run on test sets or on files of the user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.config.instantiate import instantiate
from headwise.config.schema import EvaluateConfig
from headwise.errors import ConfigError, require, unknown
from headwise.file_names import check_file_name
from headwise.files import read_json, write_json
from headwise.runs.folder import RESERVED_NAMES, RunFolder
from headwise.studies.outcome import score_lines
from headwise.tasks.evaluation import HYPOTHESES, evaluate_texts
from headwise.tasks.loading import load_selected
from headwise.tasks.task import TrainedRun
from headwise.tasks.texts import Sides, check_aligned, named_sets, read_lines
from headwise.tasks.translation_run import TranslationRun
from headwise.train.distributed import Ranks


def evaluate(config: EvaluateConfig) -> dict[str, Any]:
    """Score a trained run on test sets, translated or measured; returns the scores by set.

    Earlier scores in the same file, with the same weights and search, are preserved. A list as
    `decode.min_context` is evaluated one by one, and gives the scores by context.
    """
    name = config.name
    if name is not None:
        check_file_name("name", name)
        require(not name.startswith("."), "name", "a name without a leading .", name)
    if name in RESERVED_NAMES:
        raise ConfigError(f"name={name} is reserved for {name}.json of the run; give another name")
    texts = _user_text(config)
    out = _out(config)
    contexts = config.decode.get("min_context")
    if isinstance(contexts, list):
        return _by_context(config, out, contexts)
    return _evaluated(load_selected(config.run, config), config, out, texts, name)


def _by_context(config: EvaluateConfig, out: RunFolder, contexts: list[Any]) -> dict[str, Any]:
    """Evaluate with each minimum context, then write a table and a figure."""
    from headwise.studies.contexts import write_contexts

    is_list = bool(contexts) and all(type(n) is int for n in contexts)
    require(is_list, "decode.min_context", "a number or a list of numbers", contexts)
    first, *others = dict.fromkeys(contexts)
    run = load_selected(config.run, replace(config, decode={**config.decode, "min_context": first}))
    most = run.search["max_windows"]
    require(most == 0, "decode.max_windows", "0 with several contexts (their tokens differ)", most)
    runs = {n: run.task.loaded(run, {**run.search, "min_context": n}) for n in others}
    name = config.name or f"results-{config.checkpoint}"
    by_context = {
        n: _evaluated(run_n, config, out, {}, f"{name}-min_context{n}")
        for n, run_n in {first: run, **runs}.items()
    }
    for path in write_contexts(run, out, name, by_context):
        print(f"written to {path}")
    return {str(n): scores for n, scores in by_context.items()}


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
    scores = {}
    hypotheses = ""
    if isinstance(run, TranslationRun):
        scored = _translated(run, config, out, texts, name)
        hypotheses = f" and {out.path / HYPOTHESES / name}"
    else:
        scored = _measured(run, config, out, name)
    for split, of_split in scored:
        files.pop(split, None)
        if split in texts:
            files[split] = _user_paths(config)
        print("\n".join(score_lines(split, of_split)), flush=True)
        all_scores[split] = scores[split] = of_split
        written = {**content, **({"files": files} if files else {}), "scores": all_scores}
        write_json(path, written)
    print(f"written to {path}{hypotheses}")
    return scores


def _translated(
    run: TranslationRun, config: EvaluateConfig, out: RunFolder, texts: dict[str, Sides], name: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the scores of each set: of the user's text, or else of named sets."""
    texts = _normalised(texts, run) or named_sets(run, list(config.data.test), config.data.dir)
    ranks = Ranks(0, 1, run.translator.device)
    for split, sides in texts.items():
        shared = run.translator, run.config, *sides, split, out, ranks
        yield split, evaluate_texts(*shared, config.progress, name)[0]


def _measured(
    run: TrainedRun, config: EvaluateConfig, out: RunFolder, name: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the metrics of each split of a run without a search.

    The statistics of every item are written to `sums/NAME/`.
    """
    path = config.data.source_file
    require(path is None, "data.source_file", f"null with task={run.task.name}", path)
    for key, value in config.decode.items():
        if value is not None and key not in run.search:
            raise unknown("decode.", key, list(run.search))
    loss, data = instantiate(run.config.loss, "loss"), run.config.data
    for split in config.data.test or data.test or [data.valid]:
        check_file_name("data.test", split)
        prepared = run.task.prepared_split(run, split, config.data.dir)
        ranks = Ranks(0, 1, run.device)
        shared = run.model, loss, prepared, run.config, ranks, split
        measured = run.task.measured(*shared, progress=config.progress)
        out.write_sums(Path(name, split), measured.unit, measured.items)
        yield split, {**run.task.scores(measured)}


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


def _normalised(texts: dict[str, Sides], run: TranslationRun) -> dict[str, Sides]:
    """The user's text with the normalisation of the corpus."""
    normalise = run.normaliser
    return {
        name: (list(map(normalise.source, sources)), list(map(normalise.target, references)))
        for name, (sources, references) in texts.items()
    }

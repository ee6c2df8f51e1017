"""`headwise evaluate run=FOLDER`: scores of a run's test sets, of others, and of own text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.config.schema import EvaluateConfig
from headwise.errors import ConfigError, require
from headwise.file_names import check_file_name
from headwise.files import read_json, write_json
from headwise.report.outcome import score_lines
from headwise.runs.folder import OWN_FILES
from headwise.tasks.evaluation import HYPOTHESES, evaluate_texts
from headwise.tasks.loading import load_selected, translating
from headwise.tasks.texts import Sides, check_aligned, named_sets, read_lines
from headwise.tasks.translation_run import TranslationRun
from headwise.train.distributed import Ranks


def evaluate(config: EvaluateConfig) -> dict[str, Any]:
    """Translate and score test sets with a trained run; returns the scores by set.

    Sets scored before under the same name, with the same weights and search, stay in the file.
    """
    name = config.name
    if name is not None:
        check_file_name("name", name)
        require(not name.startswith("."), "name", "a name without a . in front", name)
    if name in OWN_FILES:
        raise ConfigError(f"name={name} is a file of the run's own, {name}.json: give another")
    texts = _own_text(config)
    run = translating(load_selected(config.run, config))
    name = name or f"results-{config.checkpoint}"
    texts = _normalised(texts, run) or named_sets(run, list(config.data.test), config.data.dir)
    path = run.folder.path / f"{name}.json"
    content = {**run.weights, "decode": run.search}
    known, files = _known_scores(path, content)
    files = {split: found for split, found in files.items() if split not in texts}
    if config.data.source_file is not None:
        files |= dict.fromkeys(texts, _places(config))
    scores = {}
    for split, (sources, references) in texts.items():
        scores[split], _ = evaluate_texts(
            run.translator,
            run.config,
            sources,
            references,
            split,
            run.folder,
            Ranks(0, 1, run.translator.device),
            config.progress,
            name,
        )
        print("\n".join(score_lines(split, scores[split])), flush=True)
        known[split] = scores[split]
        written = {**content, **({"files": files} if files else {}), "scores": known}
        write_json(path, written)
    print(f"written to {path} and {run.folder.path / HYPOTHESES / name}")
    return scores


def _places(config: EvaluateConfig) -> dict[str, str]:
    """Where own text lies: its sets are called by the file's name alone."""
    sides = {"source": config.data.source_file, "reference": config.data.reference_file}
    return {side: str(Path(str(place)).resolve()) for side, place in sides.items()}


def _known_scores(
    path: Path, content: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Scores at `path` that were made in the same way, and of which files; others make room."""
    before = read_json(path, may_lack=True)
    scores: dict[str, Any] = before.pop("scores", {})
    files: dict[str, dict[str, str]] = before.pop("files", {})
    if before == content:
        return scores, files
    if scores:
        print(
            f"{path} held scores of {', '.join(scores)} by another search or other weights: they "
            "make room (name=… keeps both)",
            flush=True,
        )
    return {}, {}


def _own_text(config: EvaluateConfig) -> dict[str, Sides]:
    source, reference = config.data.source_file, config.data.reference_file
    if source is None and reference is None:
        return {}
    if source is None or reference is None:
        raise ConfigError("data.source_file and data.reference_file belong together; one is null")
    if config.data.test or config.data.dir is not None:
        raise ConfigError(
            "data.test and data.dir name sets of a corpus, data.source_file text of your own: give "
            "two commands, whose scores go into one file"
        )
    sources, references = read_lines(Path(source)), read_lines(Path(reference))
    check_aligned(sources, references, source, reference)
    stem = Path(source).name.removesuffix(".gz")
    return {stem: (sources, references)}


def _normalised(texts: dict[str, Sides], run: TranslationRun) -> dict[str, Sides]:
    """Own text as the corpus would give it."""
    normalise = run.normaliser
    return {
        name: (list(map(normalise.source, sources)), list(map(normalise.target, references)))
        for name, (sources, references) in texts.items()
    }

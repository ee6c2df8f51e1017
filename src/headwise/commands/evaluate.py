"""`headwise evaluate run=FOLDER`: scores of a run on test sets or on files of the user."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from headwise.commands.outcome import score_lines
from headwise.config.commands import EvaluateConfig
from headwise.config.saved import current_search, named
from headwise.data.sources.lines import read_pairs
from headwise.errors import ConfigError, require
from headwise.files import check_file_name, locked, read_json, write_json
from headwise.runs.folder import RESERVED_NAMES, RunFolder
from headwise.runs.record import Record
from headwise.runs.results import Results
from headwise.tasks.data import Sides
from headwise.tasks.evaluate import score
from headwise.tasks.load import load_selected
from headwise.tasks.task import TrainedRun
from headwise.train.distributed import Ranks


def evaluate(config: EvaluateConfig) -> None:
    """Score a trained run on test sets, translated or measured.

    Earlier scores in the same file, with the same weights, search and scaling, are preserved, also
    those that another process writes meanwhile.

    Raises:
        ConfigError: an invalid option, or earlier scores of another text under the same name.
    """
    if config.name is not None:
        check_file_name("name", config.name)
        require(not config.name.startswith("."), "name", "a name without a leading .", config.name)
    if config.name in RESERVED_NAMES:
        raise ConfigError(f"name={config.name} is reserved for {config.name}.json of the run")
    if config.scaling is not None and config.name is None:
        raise ConfigError("scaling: set name=…, the results file of scores with another scaling")
    texts, out = _user_text(config), _out(config)
    run: TrainedRun = load_selected(config.run, config)
    if texts:
        splits, data = list(texts), run.task.of_files(run.folder.path, texts)
    else:
        folder, chosen = config.data.dir, config.data.test
        splits = list(chosen or run.test_sets(folder) or [run.config.data.valid])
        for split in splits:
            check_file_name("data.test", split)
        data = run.data(splits, folder)
    name = config.name or f"results-{config.checkpoint}"
    path = out.path / f"{name}.json"
    content = {**run.weights, "decode": run.search}
    if config.scaling is not None:
        content["scaling"] = named(run.config.scaling)
    about = path, content, type(run.config.decode)
    (earlier, replaced), is_own = _earlier_scores(*about), not texts and config.data.dir is None
    trained = Record(run.folder.path).results if config.name is None else None
    for split in splits:
        text = run.task.contents(data, split)[0]
        _check_text(path, earlier, split, text, is_own)
        _check_text(run.folder.results, trained.scores if trained else {}, split, text, is_own)
    _note_replaced(path, replaced)
    ranks = Ranks(0, 1, run.device)
    for split in splits:
        shared = run.model, data, ranks, out, split, name
        scores = score(run.task, *shared, progress=config.progress)
        print("\n".join(score_lines(split, scores)), flush=True)
        with locked(path.with_name(f".{path.name}.lock")):  # others may evaluate the run now
            earlier, others = _earlier_scores(*about)
            _note_replaced(path, others if others != replaced else {})
            write_json(path, {**content, "scores": {**earlier, split: scores}})
    print(f"written to {path}")


def _out(config: EvaluateConfig) -> RunFolder:
    """The folder for the results, which can be written."""
    if config.output is not None:
        Path(config.output).mkdir(parents=True, exist_ok=True)
        return RunFolder(Path(config.output))
    run = RunFolder.existing(config.run)
    run.check_writable("set output=FOLDER, or ")
    return run


def _earlier_scores(path: Path, content: dict[str, Any], search: type) -> tuple[Any, Any]:
    """Scores at `path` with the same weights and settings, and those with others; one is empty.

    Args:
        path: the results file.
        content: weights and settings of the new scores.
        search: the dataclass of `decode`.
    """
    before, new = read_json(path, missing_ok=True), dict(content)
    scores = before.pop("scores", {})
    for settings in (before, new):
        if "decode" in settings:
            with suppress(ConfigError):  # of a later version, so with other settings
                # `max_tokens` affects memory alone
                settings["decode"] = current_search(settings["decode"], search) | {"max_tokens": 0}
    return (scores, {}) if before == new else ({}, scores)


def _note_replaced(path: Path, scores: Any) -> None:
    """Print which scores of other settings a results file loses."""
    if scores:
        print(
            f"{path} contained scores of {', '.join(scores)} with other weights or search "
            "settings: they are overwritten (name=… keeps both)",
            flush=True,
        )


def _check_text(path: Path, scores: Any, split: str, text: str, is_own: bool) -> None:
    """Raise `ConfigError` if a file has scores of another text under the name of a split.

    Args:
        path: a results file.
        scores: in it.
        split: that is scored now.
        text: its hash.
        is_own: it is data of the run. Scores without a hash, of 0.1.0, count as scores of it.
    """
    before = Results(scores).content(split)
    if split in scores and before != text and not (is_own and before is None):
        kind = "another text (by its hash)" if before else "a text that 0.1.0 wrote no hash of"
        raise ConfigError(f"{path} has scores of {split} on {kind}: set name=…, another file")


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
    stem = Path(source).name.removesuffix(".gz")
    return {stem: read_pairs(Path(source), Path(reference))}

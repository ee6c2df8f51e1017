"""The page of a run: `scripts/report.py run=… page=true`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headwise.analysis.tables import FOLDER, SETTINGS
from headwise.config.schema import ReportConfig
from headwise.errors import ConfigError, DataError, require
from headwise.files import write_text
from headwise.page.document import page_text
from headwise.page.readings import reading_contents
from headwise.page.run import run_content
from headwise.plots.style import drawn_bytes
from headwise.report.figures import figures_of, training_figures
from headwise.runs.folder import RunFolder
from headwise.tasks.loading import load
from headwise.tasks.task import TrainedRun


def write_page(config: ReportConfig, analyze: Callable[[Path], object]) -> Path:
    """Write the page of `config.run`, beside a second run if `config.compare` names one.

    What the analysis found is shown with the heads; where the run folder has no analysis, it is
    made first. An analysis that is there stays as it is, whatever it was asked for.

    Args:
        config: of the command.
        analyze: makes the analysis of a run folder.

    Returns:
        The file: `<run>/page.html`, `<run>/page-<other run>.html`, or `config.output`.

    Raises:
        ConfigError: a number of sentences below 1, or both runs are one or read different texts.
        DataError: no text to show.
        RunError: no such run, or an output that cannot be written.
    """
    require(config.n_sentences >= 1, "n_sentences", "at least 1", config.n_sentences)
    folders = _folders(config)
    out = _output(config, folders)
    path = None if config.sentences is None else Path(config.sentences)
    if path is not None and not path.is_file():
        raise DataError(f"there is no file sentences={path}")
    for folder in folders:
        if not (folder.path / FOLDER / SETTINGS).is_file():
            analyze(folder.path)
    runs = [load(folder.path, config.checkpoint, config.device) for folder in folders]
    _check_alike(runs)
    items = runs[0].task.items(runs[0], config.n_sentences, path)
    contents = [
        {**run_content(run), "readings": reading_contents(run, items.chosen)} for run in runs
    ]
    write_text(out, page_text(contents, _pictures(folders), items))
    size = out.stat().st_size / 1e6
    print(f"{len(items.chosen)} {items.unit} of {items.origin}, {size:.1f} MB")
    print(f"written to {out}", flush=True)
    return out


def _folders(config: ReportConfig) -> list[RunFolder]:
    if config.run is None:
        raise ConfigError("run is missing: name the folder whose page to write, run=FOLDER")
    folders = [RunFolder.existing(config.run)]
    if config.compare is not None:
        folders.append(RunFolder.existing(config.compare, "compare"))
        if folders[0].path.resolve() == folders[1].path.resolve():
            raise ConfigError(f"compare={config.compare} is the run itself; give another")
    return folders


def _check_alike(runs: Sequence[TrainedRun]) -> None:
    read = [f"{run.task.name} {' → '.join(run.task.languages(run.config))}".strip() for run in runs]
    if len(set(read)) > 1:
        raise ConfigError(
            f"compare={runs[1].folder.path} is a run of {read[1]} and the other one of {read[0]}: "
            "they cannot be shown on the same text; give a run of the same task and languages"
        )


def _output(config: ReportConfig, folders: Sequence[RunFolder]) -> Path:
    """Where the page goes."""
    if config.output is None:
        others = "".join(f"-{folder.path.resolve().name}" for folder in folders[1:])
        return folders[0].path / f"page{others}.html"
    path = Path(config.output)
    if path.is_dir() or path.suffix not in (".html", ".htm"):
        raise ConfigError(f"output={path} must be an html file; give {path / 'page.html'}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"output={path} cannot be written: there is no folder {path.parent}")
    return path


def _pictures(folders: Sequence[RunFolder]) -> list[tuple[str, bytes]]:
    """Title and svg of every figure that `report figures=true` draws of these runs."""
    figures = list(figures_of([folder.path for folder in folders]).values())
    if len(folders) > 1:  # side by side; each one's own course before
        figures = [
            f for folder in folders for f in training_figures(folder.path).values()
        ] + figures
    return [(figure.get_suptitle(), drawn_bytes(figure, "svg")) for figure in figures]

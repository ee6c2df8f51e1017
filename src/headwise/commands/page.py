"""`headwise page`: the HTML page of a run, or of two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headwise.analysis.tables import FOLDER, SETTINGS
from headwise.commands.analyze import analyze_folders
from headwise.config.commands import AnalyzeConfig, PageConfig
from headwise.errors import ConfigError, DataError
from headwise.files import is_stream, write_text
from headwise.page.document import page_record, page_text, script_json
from headwise.page.run import reading_contents, run_content
from headwise.plots.style import failure_as_warning, figure_bytes
from headwise.runs.folder import RunFolder
from headwise.studies.figures import figures_of, training_figures
from headwise.studies.record import TaskRecord
from headwise.tasks.inspection import items as items_of
from headwise.tasks.load import load
from headwise.tasks.task import TrainedRun


def page(config: PageConfig) -> Path:
    """Write the page of `config.run`; `config.other` adds a second run.

    A run folder without an analysis is analysed first; an existing analysis is used unchanged.

    Args:
        config: of the command.

    Returns:
        The file: `<run>/page.html`, `<run>/page-<other run>.html`, or `config.output`.

    Raises:
        ConfigError: an output that cannot be written, the same run twice, or two runs of
            different tasks or languages.
        DataError: there is no text to show.
        RunError: the run does not exist.
    """
    folders = _folders(config)
    out = _output(config, folders)
    path = None if config.sentences is None else Path(config.sentences)
    if path is not None and not (path.is_file() or is_stream(path)):
        raise DataError(f"sentences={path} not found")
    for folder in folders:
        if not (folder.path / FOLDER / SETTINGS).is_file():
            which = [str(folder.path)]
            analyze_folders(
                AnalyzeConfig(runs=which, checkpoint=config.checkpoint, device=config.device)
            )
    runs = [load(folder.path, config.checkpoint, config.device) for folder in folders]
    _check_comparable(runs)
    items = items_of(runs[0], config.n_sentences, path)
    contents = [
        {**run_content(run), "readings": reading_contents(run, items.chosen)} for run in runs
    ]
    record = page_record(contents, _pictures(folders), items)
    write_text(out, script_json(record) if out.suffix == ".json" else page_text(record))
    size = out.stat().st_size / 1e6
    print(f"{len(items.chosen)} {items.unit} of {items.origin}, {size:.1f} MB")
    print(f"written to {out}", flush=True)
    return out


def _folders(config: PageConfig) -> list[RunFolder]:
    folders = [RunFolder.existing(config.run)]
    if config.other is not None:
        folders.append(RunFolder.existing(config.other, "other"))
        if folders[0].path.resolve() == folders[1].path.resolve():
            raise ConfigError(f"other={config.other} must be another run than run={config.run}")
    return folders


def _check_comparable(runs: Sequence[TrainedRun]) -> None:
    kinds = [f"{run.task.name} {' → '.join(run.task.languages)}".strip() for run in runs]
    if len(set(kinds)) > 1:
        raise ConfigError(
            f"other={runs[1].folder.path} must be of the same task and languages as run "
            f"({kinds[0]}), got {kinds[1]}"
        )


def _output(config: PageConfig, folders: Sequence[RunFolder]) -> Path:
    """Return the path of the page, or of its record."""
    if config.output is None:
        folders[0].check_writable("set output=FILE.html, or ")
        others = "".join(f"-{folder.path.resolve().name}" for folder in folders[1:])
        return folders[0].path / f"page{others}.html"
    path = Path(config.output)
    if path.is_dir() or path.suffix not in (".html", ".htm", ".json"):
        raise ConfigError(
            f"output={path} must be an html or json file, such as {path / 'page.html'}"
        )
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"output={path} cannot be written: folder {path.parent} not found")
    return path


def _pictures(folders: Sequence[RunFolder]) -> list[tuple[str, bytes]]:
    """Return title and svg of every figure that `headwise figures` draws of these runs."""
    figures = list(figures_of([TaskRecord(folder.path) for folder in folders]).values())
    if len(folders) > 1:  # the training figures of each run first
        figures = [
            f for folder in folders for f in training_figures(TaskRecord(folder.path)).values()
        ] + figures
    pictures = []
    for figure in figures:
        with failure_as_warning(figure.get_suptitle()):
            pictures.append((figure.get_suptitle(), figure_bytes(figure, "svg")))
    return pictures

"""The folder of one run: it explains itself, and is all that the other commands read."""

from __future__ import annotations

import fcntl
import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headwise.config.schema import Config, DecodeConfig, read_back
from headwise.errors import RunError, nearest
from headwise.file_names import check_file_name
from headwise.files import read_json, replacing, write_json, write_text
from headwise.runs.environment import environment
from headwise.runs.fingerprint import slug
from headwise.runs.results import Results

Floats = npt.NDArray[np.float64]
MAX_YAML_DEPTH = 50
# What stands in a run's folder as <name>.json beside the scores of evaluations.
OWN_FILES = ("data", "environment", "error", "pruned", "results")


class RunFolder:
    """Paths and small files of one run.

    Attributes:
        path: the folder.
        metrics: the record of scalars, one json object a line.
        heads: the record per head.
        checkpoints: folder of the checkpoints.
        last: the last checkpoint, from which training resumes.
        figures: folder of the figures.
        sums: folder of the statistics of test items, `<split>.<unit>.npy`.
        results: the file of the final figures.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.heads = path / "heads.jsonl"
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.pt"
        self.figures = path / "figures"
        self.sums = path / "sums"
        self.results = path / "results.json"

    @classmethod
    def place(
        cls, outputs: Path, experiment: str, overrides: list[str], run_fingerprint: str
    ) -> RunFolder:
        """The folder of these settings: one that already has their fingerprint, or a new name.

        Raises:
            ConfigError: `experiment_name` is no name of one folder.
        """
        check_file_name("experiment_name", experiment)
        parent = outputs / experiment
        known = sorted(parent.glob(f"*-{run_fingerprint}"))
        return cls(known[0] if known else parent / f"{slug(overrides)}-{run_fingerprint}")

    @classmethod
    def existing(cls, path: str | Path, key: str = "run") -> RunFolder:
        """A folder that holds a run.

        Args:
            path: what the user gave.
            key: the option it was given as.

        Raises:
            RunError: it does not, with the nearest one that does.
        """
        folder = Path(path)
        if (folder / "config.yaml").is_file():
            return cls(folder)
        # the run above or below of what was given, else one of a like name
        above = [up for up in folder.parents if (up / "config.yaml").is_file()]
        certain = [*above, *sorted(_runs_below(folder), key=_is_unfinished)]
        beside = [
            str(run) for up in (folder.parent, folder.parent.parent) for run in _runs_below(up)
        ]
        close = str(certain[0]) if certain else nearest(str(folder), beside)
        hint = f" Did you mean {key}={close}?" if close else ""
        raise RunError(f"{key}={folder} holds no run (no config.yaml there).{hint}")

    def make(self) -> None:
        """Create the folder; figures get theirs at the end of a run."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            (self.path / ".lock").touch()
        except OSError as error:
            raise RunError(
                f"cannot write the run folder {self.path}: {error.strerror}. Set paths.outputs to "
                "a folder that can be written"
            ) from error

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """The block, with the folder for this process alone.

        Raises:
            RunError: another process has it.
        """
        with open(self.path / ".lock", "a+") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunError(
                    f"another process is training in {self.path}; wait for it or stop it"
                ) from error
            yield

    def remove_error(self) -> None:
        """Remove error.json, and the folder if it held nothing else."""
        error = self.path / "error.json"
        if error.is_file():
            error.unlink()
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def read_results(self) -> Results | None:
        """Content of results.json; None before the run's end."""
        return Results.read(self.results)

    def read_last(self) -> dict[str, Any]:
        """What stands beside the last checkpoint: update and costs; empty before the first."""
        path = self.checkpoints / "last.json"
        saved = read_json(path, may_lack=True)
        numbers = [saved.get(key) for key in ("update", "train_seconds")]
        if saved and not all(isinstance(number, int | float) for number in numbers):
            raise RunError(f"{path} is broken: no update or train_seconds. Copy it anew")
        return saved

    def results_at(self, update: int) -> Results | None:
        """Content of results.json if the run was finished at this update, else None."""
        results = self.read_results()
        return results if results is not None and results.updates == update else None

    def read_config(self) -> dict[str, Any]:
        """The resolved configuration.

        Raises:
            RunError: it is broken, or holds `${…}`, which could read the reader's environment.
        """
        content = read_yaml(self.path / "config.yaml")
        if not isinstance(content, dict) or "${" in str(content):
            raise RunError(f"{self.path / 'config.yaml'} is no resolved configuration of a run")
        return {str(key): value for key, value in content.items()}

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a small json file all or not at all."""
        write_json(self.path / name, content)

    def write_sums(self, name: str | Path, items: Floats) -> None:
        """Write the statistics (items, statistics) of a split all or not at all."""
        path = self.sums / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as handle:
            np.save(handle, items)

    def read_sums(self, name: str) -> Floats | None:
        """What `write_sums` wrote; None where there is no such file.

        Raises:
            RunError: the file is broken.
        """
        path = self.sums / name
        try:
            items: Floats = np.load(path)
        except FileNotFoundError:
            return None
        except (ValueError, EOFError, OSError) as error:
            raise RunError(f"{path} is broken: {error}") from error
        return items

    def describe(self, container: Mapping[str, Any], overrides: list[str]) -> None:
        """Write what the run is: config.yaml, overrides.yaml, environment.json."""
        write_text(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(container))))
        write_text(self.path / "overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(overrides)))
        self.write_json("environment.json", environment())


def read_yaml(path: Path) -> Any:
    """Content of a small yaml of a run as plain types.

    Raises:
        RunError: it is no yaml, or has aliases or deep nesting, as a stranger's may have.
    """
    depth = 0
    try:
        for event in yaml.parse(path.read_text(encoding="utf-8")):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > MAX_YAML_DEPTH:
                raise RunError(f"{path} is broken: no run is saved with aliases or deep nesting")
        return OmegaConf.to_container(OmegaConf.load(path))
    except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{path} is broken: {reason}. Copy it anew") from error


def read_config(folder: RunFolder) -> Config:
    """The typed configuration of a run, without its commands for metrics of the user's.

    A run got from a stranger must not be able to start anything: commands come from the command
    line of who calls.

    Raises:
        RunError: it is broken, or was written by a version with other keys.
    """
    saved = folder.read_config()
    try:
        for group in ("model", "data", "decode"):
            if not isinstance(saved.get(group, {}), dict):
                raise OmegaConfBaseException(f"{group} is no mapping")
        content = read_back(saved)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"{folder.path / 'config.yaml'} is broken, or of another version of headwise: {reason}"
        ) from error
    if isinstance(content.decode, DecodeConfig):
        content.decode.external = {}
    return content


def find_folders(given: Sequence[str], may_lack: bool = False) -> list[Path]:
    """Folders of runs in, or up to two levels below, the folders and globs that were given.

    Args:
        may_lack: a folder that is not there yet is no mistake.

    Raises:
        RunError: nothing is there, with the nearest that is.
    """
    found: dict[Path, Path] = {}
    for text in given:
        places = [Path(p) for p in sorted(glob.glob(str(Path(text).expanduser()), recursive=True))]
        if not places and not may_lack:
            above = Path(text).parent
            beside = [str(p) for p in above.glob("*") if p.is_dir()] if above.is_dir() else []
            close = nearest(text, beside)
            hint = f" Did you mean runs={close}?" if close else ""
            raise RunError(f"runs={text}: there is no such folder.{hint}")
        for place in places:
            runs = [place] if (place / "config.yaml").is_file() else []
            for run in runs + _runs_below(place):
                if not run.name.startswith("."):  # one being written
                    found.setdefault(run.resolve(), run)
    return list(found.values())


def _is_unfinished(run: Path) -> bool:
    return not (run / "results.json").is_file()


def _runs_below(folder: Path) -> list[Path]:
    found = (*folder.glob("*/config.yaml"), *folder.glob("*/*/config.yaml"))
    return sorted(path.parent for path in found)

"""The folder of one run: it explains itself, and is all that the other commands read."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from omegaconf import OmegaConf

from headwise.data.names import check_file_name
from headwise.errors import RunError, nearest
from headwise.files import read_json, write_text
from headwise.runs.results import Results

# Keys that change where or how fast a run goes, or how much is told, but not what it computes.
NOT_IN_FINGERPRINT = (
    "paths",
    "tracker",
    "experiment_name",
    "dry_run",
    "decode.external",
    "data.dir",
    "data.folder",
    "data.files",
    "data.origins",
    "data.test",
    "data.licence",
    "data.notes",
    "tokenizer.folder",  # its content is in the fingerprint, as the text is
    # suggestions; what follows them is in the fingerprint itself
    "data.vocab_size",
    "data.max_updates",
    "data.warmup_updates",
    "model.lr",
    "trainer.max_updates",
    "trainer.device",
    "trainer.threads",
    "trainer.n_workers",
    "trainer.log_every",
    "trainer.progress",
)
MAX_SLUG_BYTES = 100
PACKAGES = ("headwise", "torch", "hydra-core", "sentencepiece", "sacrebleu", "numpy")


def comparable(container: Mapping[str, Any]) -> dict[str, Any]:
    """Flat dotted keys of everything the fingerprint sees.

    How often a run is saved counts only where the saved weights are averaged at its end.
    """
    flat: dict[str, Any] = {}
    left_out = list(NOT_IN_FINGERPRINT)
    if not container.get("trainer", {}).get("average"):
        left_out.append("trainer.save_every")

    def walk(prefix: str, value: Any) -> None:
        if any(prefix == key or prefix.startswith(f"{key}.") for key in left_out):
            return
        if isinstance(value, Mapping) and value:
            for name, below in value.items():
                walk(f"{prefix}.{name}" if prefix else str(name), below)
        else:
            flat[prefix] = value

    walk("", container)
    return flat


def fingerprint(container: Mapping[str, Any], text: Sequence[str] = ()) -> str:
    """Eight hexadecimal digits of what decides a run's result.

    Args:
        container: the resolved configuration.
        text: hashes of the training and validation text, and of a tokenizer that was given. Where
            the text lies does not count, so a corpus may move; what it says does, so two folders
            of text are two runs.
    """
    decisive = {**comparable(container), "text": list(text)}
    canonical = json.dumps(decisive, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def slug(overrides: Iterable[str]) -> str:
    """A folder name of the overrides: readable, short, without `=`, `,`, `+`, `/` and the like."""
    left_out = "|".join(re.escape(key) for key in (*NOT_IN_FINGERPRINT, "experiment", "hydra"))
    kept = [o for o in overrides if not re.match(rf"[+~]*({left_out})[.=/@]", o)]
    words = [re.sub(r"[^\w.-]+", "-", override).strip("-.") for override in sorted(kept)]
    name = "_".join(word for word in words if word)
    # file systems count bytes, 255 at most, and the fingerprint comes behind
    short = name.encode()[:MAX_SLUG_BYTES].decode(errors="ignore").rstrip("-._")
    return short or "run"


# What stands in a run's folder as <name>.json beside the scores of evaluations.
OWN_FILES = ("data", "environment", "error", "pruned", "results")


class RunFolder:
    """Paths and small files of one run.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

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

    @property
    def metrics(self) -> Path:
        """The record of scalars, one json object a line."""
        return self.path / "metrics.jsonl"

    @property
    def heads(self) -> Path:
        """The record per head."""
        return self.path / "heads.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def figures(self) -> Path:
        """Folder of the figures."""
        return self.path / "figures"

    @property
    def hypotheses(self) -> Path:
        """Folder of the translations."""
        return self.path / "hypotheses"

    @property
    def results(self) -> Path:
        """The file of the final figures."""
        return self.path / "results.json"

    def make(self) -> None:
        """Create the folder and those below it."""
        try:
            for folder in (self.checkpoints, self.figures, self.hypotheses):
                folder.mkdir(parents=True, exist_ok=True)
            (self.path / ".lock").touch()
        except OSError as error:
            raise RunError(
                f"cannot write the run folder {self.path}: {error.strerror}. Set paths.outputs to "
                "a folder that can be written"
            ) from error

    def lock(self) -> None:
        """Claim the folder for this process until it ends.

        Raises:
            RunError: another process has it.
        """
        handle = open(self.path / ".lock", "a+")  # noqa: SIM115 - held until the process ends
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            raise RunError(
                f"another process is training in {self.path}; wait for it or stop it"
            ) from error
        self._lock = handle

    def unlock(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def forget_failure(self) -> None:
        """Remove error.json, and the folder if it held nothing else."""
        error = self.path / "error.json"
        if error.is_file():
            error.unlink()
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def is_finished(self) -> bool:
        """Whether the run's results are complete."""
        return self.read_results() is not None

    def read_results(self) -> Results | None:
        """Content of results.json; None before the run's end."""
        return Results.read(self.results)

    def read_last(self) -> dict[str, Any]:
        """What stands beside the last checkpoint: update and costs; empty before the first."""
        return read_json(self.checkpoints / "last.json", may_lack=True)

    def results_at(self, update: int) -> Results | None:
        """Content of results.json if the run was finished at this update, else None."""
        results = self.read_results()
        return results if results is not None and results.updates == update else None

    def read_config(self) -> dict[str, Any]:
        """The resolved configuration."""
        content = OmegaConf.to_container(OmegaConf.load(self.path / "config.yaml"))
        if not isinstance(content, dict):
            raise RunError(f"{self.path / 'config.yaml'} is no configuration of a run")
        return {str(key): value for key, value in content.items()}

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a small json file all or not at all."""
        write_text(self.path / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def describe(self, container: Mapping[str, Any], overrides: list[str]) -> None:
        """Write what the run is: config.yaml, overrides.yaml, environment.json."""
        write_text(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(container))))
        write_text(self.path / "overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(overrides)))
        self.write_json("environment.json", environment())


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


def versions() -> dict[str, str]:
    """Versions of what decides a run's numbers."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # a source tree that was never installed has no version
    return found


def git_commit() -> dict[str, Any] | None:
    """Commit of the source tree and whether it was changed; None outside of a git checkout.

    A checkout that does not keep this file, such as one with an environment in it, is another's.
    """
    here = Path(__file__)

    def ask(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here.parent), *arguments],
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if not commit or ask("ls-files", "--error-unmatch", here.name) is None:
        return None
    return {"commit": commit, "changed": bool(ask("status", "--porcelain"))}


def environment() -> dict[str, Any]:
    """Command, versions and machine of this process."""
    import torch

    return {
        "command": sys.argv,
        "versions": versions(),
        "git": git_commit(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
    }

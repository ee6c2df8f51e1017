"""Weights & Biases as a mirror of the run folder.

It never prompts, never blocks longer than its time-outs, and never stops the training. Without a
network or an API key, data is saved offline in the run folder; `wandb sync` uploads them later.

A resumed run continues under the id in its folder. Offline, each process writes a folder of its
own, which a kill leaves incomplete: that of a resumed run starts with the records of the run, and
replaces the earlier ones.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headwise.config.schema import WandbConfig
from headwise.errors import ConfigError, refuse
from headwise.files import write_text
from headwise.track.base import HeadNumbers, HeadValues, Tracker, alphas_by_name, head_metrics

MODES = ("online", "offline", "disabled")
FINISH_TIMEOUT_SECONDS = 60.0  # `wandb sync` uploads the rest
HISTOGRAM_BINS = 64
# key of `tracker` -> W&B's setting
SETTINGS = {"project": "project", "entity": "entity", "group": "run_group", "tags": "run_tags"}

log = logging.getLogger(__name__)


def wandb_settings(config: WandbConfig, defaults: Mapping[str, Any]) -> Any:
    """W&B's settings: the config's values, else those of WANDB_ variables, else `defaults`.

    Raises:
        ConfigError: names the key or variable, and W&B's reason to refuse it.
    """
    # W&B reports errors over the network; with Python 3.14 OpenTelemetry then warns at the end
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    settings = wandb.Settings()
    for name, value in os.environ.items():
        if name == "WANDB_MODE":  # see `choose_mode`
            continue
        with _refused(f"{name} (environment)"):
            settings.update_from_env_vars({name: value})
    for name in defaults.keys() - settings.model_fields_set:
        setattr(settings, name, defaults[name])
    for key, name in SETTINGS.items():
        if value := getattr(config, key):
            with _refused(f"tracker.{key}"):
                setattr(settings, name, value)
    return settings


@contextmanager
def _refused(name: str) -> Iterator[None]:
    import wandb.errors

    try:
        yield
    except (ValueError, wandb.errors.Error) as error:
        parts = error.errors() if hasattr(error, "errors") else [{"msg": str(error)}]
        reason = "; ".join(part["msg"].removeprefix("Value error, ") for part in parts)
        raise ConfigError(f"{name} is refused by W&B: {reason}") from error


def choose_mode(mode: str | None) -> str | None:
    """Return online, offline or disabled: `mode`, else WANDB_MODE; None if neither is set."""
    if mode is not None:
        return mode
    variable = os.environ.get("WANDB_MODE", "").strip().lower()
    variable = {"dryrun": "offline", "run": "online"}.get(variable, variable)  # wandb's older names
    if variable and variable not in MODES:
        raise refuse("WANDB_MODE (environment)", variable, MODES)
    return variable or None


@dataclass(eq=False)
class WandbTracker(WandbConfig, Tracker):
    """Mirrors a run in W&B; the x axis is `update`. The settings are those of `WandbConfig`.

    With `mode` None, and no WANDB_MODE, a run is online if wandb has an API key. An online run that
    cannot start (no network, an invalid key) falls back to offline.

    Attributes:
        is_active: False before the start, in the mode disabled and after W&B raised an error.

    Raises:
        ConfigError: names the key and its allowed values.
    """

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise refuse("mode", self.mode, MODES)
        self.is_active = False
        self._run: Any = None

    def check(self) -> None:
        """See `Tracker.check`; names the key or variable, with W&B's reason to refuse it."""
        if choose_mode(self.mode) != "disabled":
            with suppress(ImportError):
                wandb_settings(self, {})

    def start(self, run_dir: Path, group: str | None, config: Mapping[str, Any]) -> None:
        """See `Tracker.start`; the setting `group` precedes the argument."""
        mode = choose_mode(self.mode)
        if mode == "disabled":
            return
        try:
            import wandb
        except ImportError as error:
            log.warning("W&B is disabled: %s; `pip install wandb`, or set tracker=none", error)
            return
        self._wandb: Any = wandb
        self._run_dir = run_dir
        self._container = dict(config)
        self._errors = _wandb_errors()
        self.is_active = True
        self._head_numbers: HeadNumbers | None = config.get("model", {}).get("heads")
        self._defaults = {
            "project": "headwise",
            "run_name": run_dir.name,
            "run_group": group,
            "root_dir": str(run_dir),
            "silent": True,
            "console": "off",
            "finish_timeout": FINISH_TIMEOUT_SECONDS,
            "reinit": "create_new",  # does not end other W&B runs of the process
            "disable_git": True,  # the run folder has environment.json
            "disable_code": True,
            "x_disable_stats": True,
            "x_save_requirements": False,
        }
        self._run = self._start(mode)

    def rewind(self, update: int) -> bool:
        """See `Tracker.rewind`: all is logged again, unless an online run continues.

        Earlier offline folders that were not uploaded are removed.
        """
        if self._run is None or self._run.resumed:
            return False
        folder = Path(self._run.dir).parent
        for earlier in folder.parent.glob(f"offline-run-*-{run_id(self._run_dir)}*"):
            if earlier != folder and not any(earlier.glob("*.synced")):
                log.info("W&B: removing %s; updates are logged again, samples not", earlier)
                shutil.rmtree(earlier, ignore_errors=True)
        return True

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self._send(lambda run: run.log({"update": update, **metrics}))

    def log_heads(self, update: int, heads: Mapping[str, HeadValues]) -> None:
        """See `Tracker.log_heads`; α also as a histogram per site, `alpha/<site>/histogram`."""
        if not self.is_active:
            return
        row: dict[str, Any] = {"update": update, **head_metrics(heads, self._head_numbers)}
        for name, alphas in alphas_by_name(heads).items():
            counts = np.histogram(alphas, bins=HISTOGRAM_BINS, range=(1.0, max(2.0, *alphas)))
            row[name] = self._wandb.Histogram(np_histogram=counts)
        self._send(lambda run: run.log(row))

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._send(lambda run: run.log({name: self._wandb.Table(list(columns), list(rows))}))

    def log_image(self, name: str, path: Path, update: int | None = None) -> None:
        at = {} if update is None else {"update": update}
        self._send(lambda run: run.log({**at, name: self._wandb.Image(str(path))}))

    def log_audio(self, name: str, path: Path, update: int) -> None:
        self._send(lambda run: run.log({"update": update, name: self._wandb.Audio(str(path))}))

    def summary(self, values: Mapping[str, Any]) -> None:
        self._send(lambda run: run.summary.update(dict(values)))

    def finish(self, status: str) -> None:
        self.summary({"status": status})
        run, self._run = self._run, None
        try:
            if run is not None:
                run.finish(exit_code=0 if status == "finished" else 1)
        except self._errors as error:
            self._disable(error)

    def _start(self, mode: str | None) -> Any:
        """Return the wandb run, or None if it cannot start."""
        # ValueError: an invalid setting in W&B's own files
        start_errors: tuple[type[Exception], ...] = (*self._errors, ValueError)
        try:
            run = self._init(mode or "online")
        except start_errors as error:
            if mode == "offline":
                self._disable(error)
                return None
            if mode == "online" or not isinstance(error, self._wandb.errors.UsageError):
                log.warning("W&B is not reachable (%s); this run is logged offline", _line(error))
                if self._wandb.run is None:  # it would end that run of the caller
                    self._wandb.teardown()  # the id is in use until then
            return self._start("offline")
        offline = f"offline; `wandb sync {Path(run.dir).parent}` uploads it"
        log.info("W&B: %s", offline if mode == "offline" else run.url)
        return run

    def _init(self, mode: str) -> Any:
        resume = {"run_id": run_id(self._run_dir), "resume": None if mode == "offline" else "allow"}
        with _no_terminal():
            settings = wandb_settings(self, {**self._defaults, **resume})
            settings.init_timeout = float(self.init_timeout)
            run = self._wandb.init(mode=mode, settings=settings, config=self._container)
        run.define_metric("update")
        run.define_metric("*", step_metric="update")
        return run

    def _send(self, send: Callable[[Any], None]) -> None:
        if self._run is None or not self.is_active:
            return
        try:
            send(self._run)
        except self._errors as error:
            self._disable(error)

    def _disable(self, error: Exception) -> None:
        if self.is_active:
            log.warning("W&B logging stopped (%s); the run continues", _line(error))
        self.is_active = False


def run_id(run_dir: Path) -> str:
    """Return the W&B id of a run, saved in its folder: fingerprint and time of the first call."""
    path = run_dir / "wandb-id.txt"
    if not path.is_file():
        write_text(path, f"{run_dir.name.rpartition('-')[2]}-{time.time_ns()}\n")
    return path.read_text(encoding="utf-8").strip()


def _wandb_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of wandb for a failed service, network or disk."""
    import wandb.errors
    from wandb.sdk import mailbox

    # OSError: a dead service (ConnectionResetError), full disks and time-outs.
    closed = (mailbox.MailboxClosedError, mailbox.HandleAbandonedError)
    refused = getattr(mailbox.mailbox_handle, "ServerResponseError", OSError)  # an id in use
    return (wandb.errors.Error, OSError, refused, *closed)


def _line(error: Exception) -> str:
    return ": ".join([type(error).__name__, *filter(None, [" ".join(str(error).split())])])


@contextmanager
def _no_terminal() -> Iterator[None]:
    """Replace standard input by a non-terminal, so that wandb raises instead of prompting."""
    stdin = sys.stdin
    with open(os.devnull) as devnull:
        sys.stdin = devnull
        try:
            yield
        finally:
            sys.stdin = stdin

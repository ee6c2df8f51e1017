"""The commands: train, prepare, evaluate, translate, predict, sample, prune, analyze, table,
figures, page, compare, runs.

Hydra composes the configuration; errors that a user can fix are printed as one message without a
traceback.
"""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from headwise.config.arguments import accepted_before_jobs, checked_arguments
from headwise.config.commands import SearchSelection
from headwise.config.explain import explain_composition
from headwise.config.keys import check_settings
from headwise.config.register import KINDS, config_dir, register, typed
from headwise.errors import ConfigError, HeadwiseError, Interrupted, Pruned, meant
from headwise.files import BROKEN_PIPE, DISK_FULL, NOT_WRITABLE, discard, guard_streams, output_to
from headwise.runs.environment import complete_environment

if TYPE_CHECKING:
    from headwise.commands.sweep import Sweep
    from headwise.config.schema import Config

COMMANDS = (  # each a module of `headwise.commands` with a function of that name
    "train", "prepare", "evaluate", "translate", "predict", "sample", "prune", "analyze", "table",
    "figures", "page", "compare", "runs",
)  # fmt: skip
STARTED = time.perf_counter()  # of the process, nearly
CONFIGS = {"prepare": "train"}  # commands that use the config of another


class CarriedError(BaseException):
    """Passes an error through Hydra, which prints each `Exception` itself."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class JobFailedError(HeadwiseError):
    """A job of a sweep failed; the error itself is already printed."""


def main(command: str | None = None) -> None:
    """Entry point of `headwise COMMAND key=value …` and of the scripts of single commands."""
    guard_streams()
    if code := Call(command or _named_command()).run():
        sys.exit(code)


def _named_command() -> str:
    """Remove and return the first argument; exits if it is not a command."""
    argument = sys.argv[1] if len(sys.argv) > 1 else ""
    if argument in COMMANDS:
        return sys.argv.pop(1)
    if argument == "--version":
        from headwise import __version__

        print(f"headwise {__version__}")
        sys.exit(0)
    if argument in ("-h", "--help", ""):
        print(f"usage: headwise {{{','.join(COMMANDS)}}} key=value …\n")
        print("headwise train --help lists the config groups of training.")
        sys.exit(0 if argument else 2)
    hint = meant(argument, COMMANDS)
    print(f"headwise: {argument!r} is not one of {', '.join(COMMANDS)}.{hint}", file=sys.stderr)
    sys.exit(2)


def command_function(command: str) -> Callable[..., Any]:
    """Return the function of a command; it is imported when called: `--help` needs no torch."""
    function: Callable[..., Any] = getattr(import_module(f"headwise.commands.{command}"), command)
    return function


class Call:
    """One call of a command: composes its config, runs its jobs and reports their errors.

    It is the task function of Hydra. Launchers pickle it for jobs in other processes, and read
    `sweep`.

    Attributes:
        command: its name.
        config_name: of its config in conf/.
        sweep: of a training with `-m`, from before its first job; else None.
        is_composed: whether the config was composed; until then errors are of the command line.
    """

    def __init__(self, command: str) -> None:
        self.command = command
        self.config_name = CONFIGS.get(command, command)
        self.sweep: Sweep | None = None
        self.is_composed = False

    def run(self) -> int:
        """Compose the config, run the jobs and report; return the exit code.

        0 done, 1 failed, 2 wrong configuration, 128 + n after signal n.
        """
        try:
            complete_environment()
            arguments = checked_arguments(sys.argv[1:], self.config_name)
        except ConfigError as error:
            return report_error(error)
        from headwise.commands.sweep import SweepStart

        is_training = self.command == "train"
        if is_training and "WORLD_SIZE" in os.environ:
            # before torch: it warns of settings that `Ranks` needs
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        sys.argv[1:] = accepted_before_jobs(arguments) if is_training else arguments
        register()
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
        with ExitStack() as locks:
            SweepStart.function = partial(self._begin, arguments, locks) if is_training else None
            code = self._run_jobs()
            if self.sweep is not None:
                self.sweep.summary()
                code = code or int(self.sweep.has_failed())
        return code

    def _run_jobs(self) -> int:
        """Let Hydra call this object, once a job; return the exit code."""
        application = hydra.main(
            version_base="1.3", config_path=str(config_dir()), config_name=self.config_name
        )(self)
        try:
            application()
            sys.stdout.flush()
        except Interrupted as stop:
            print(f"headwise: {stop}", file=sys.stderr)
            return stop.exit_code
        except KeyboardInterrupt:
            saved = "files that were complete are intact; run the same command again"
            print(f"headwise: interrupted; {saved}", file=sys.stderr)
            return 130
        except CarriedError as carried:
            return report_error(carried.error, self.config_name)
        except Exception as error:  # noqa: BLE001 - printed, with a traceback for defects
            return report_error(error, self.config_name, self.is_composed)
        return 0

    def _begin(self, arguments: list[str], locks: ExitStack, config: Any) -> None:
        """Start the sweep of a composed config, before its first job."""
        from headwise.commands.sweep import Sweep
        from headwise.runs.folder import RunFolder  # imports numpy

        sys.argv[1:], task = arguments, config.hydra.overrides.task
        task[:] = [one if one in arguments else one.removeprefix("++") for one in task]
        try:
            sweep = Sweep.composed(config)
            # several processes may share a search
            if not (config.dry_run or config.hydra.sweeper._target_.endswith(".OptunaSweeper")):
                sweep.folder.mkdir(parents=True, exist_ok=True)
                locks.enter_context(RunFolder(sweep.folder).claimed())
            sweep.begin()
        except Exception as error:
            raise CarriedError(error) from error
        self.sweep = sweep

    def __call__(self, config: DictConfig) -> float | None:
        """Run a job with its composed config; return the objective of a search."""
        self.is_composed = True
        try:
            check_settings(config, self.config_name)
            settings: Any = typed(config, KINDS[self.config_name])
            if self.command != "train":
                command_function(self.command)(settings)
            elif self.sweep is None:
                overrides = list(HydraConfig.get().overrides.task)
                command_function("train")(settings, overrides, started=STARTED)
        except Exception as error:
            if self.sweep is not None:
                raise  # the other jobs still run
            raise CarriedError(error) from error
        return None if self.sweep is None else self._train_job(settings, self.sweep)

    def _train_job(self, config: Config, sweep: Sweep) -> float | None:
        """Run one job of a sweep; an error is printed and recorded, and raised as JobFailedError.

        Returns the objective of a search.
        """
        from headwise.commands.sweep import restored_process
        from headwise.commands.train import train

        hydra = HydraConfig.get()
        number, overrides = hydra.job.num, list(hydra.overrides.task)
        has_log = not hydra.launcher._target_.endswith(".BasicLauncher")
        trial, value, failed = None, None, False
        sweep.remove(number)
        with restored_process(), output_to(sweep.log(number) if has_log else None):
            try:
                if hydra.sweeper._target_.endswith(".OptunaSweeper"):
                    from headwise.commands.search import RunningTrial, open_study

                    trial = RunningTrial(open_study(sweep.folder, hydra.sweeper), number)
                run = train(config, overrides, sweep.name, trial, swept=sweep.swept)
                sweep.record(number, overrides, run, None)
                value = None if trial is None else trial.value(config, run)
            except Interrupted as error:
                sweep.record(number, overrides, None, error)
                raise
            except Exception as error:  # noqa: BLE001 - printed, recorded, raised as JobFailedError
                sweep.record(number, overrides, None, error)
                report_error(error)
                failed = not isinstance(error, Pruned)
        if failed:  # raised here, so that no traceback holds a reference to the job's model
            raise JobFailedError(f"failed: {' '.join(overrides)}")
        return value


def report_error(error: Exception, config_name: str = "train", composed: bool = True) -> int:
    """Print an error, with a traceback for defects; return the exit code.

    Args:
        config_name: the config whose keys are suggested.
        composed: whether the config was composed; else the error is about the command line.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, JobFailedError):
        return 1
    if isinstance(error, BrokenPipeError):
        # the output was closed; Python must not flush it again at exit
        discard(sys.stdout.fileno())
        return BROKEN_PIPE
    is_of_hydra = isinstance(error, (HydraException, OmegaConfBaseException))
    if is_of_hydra or not (composed or isinstance(error, HeadwiseError)):
        print(f"headwise: {explain_composition(error, config_name)}", file=sys.stderr)
        return 2
    if isinstance(error, HeadwiseError):
        print(f"headwise: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    if _is_out_of_memory(error):
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        advice = " Lower max_tokens." if hasattr(KINDS[config_name], "max_tokens") else ""
        if config_name == "train":
            keys = "trainer.max_tokens (trainer.accumulate makes up for it), decode.max_tokens"
            advice = f" Lower {keys}, or the model's size."
        elif issubclass(KINDS[config_name], SearchSelection):
            advice = " Lower max_tokens, or decode.beam of a search."
        print(f"headwise: out of memory ({reason}).{advice}", file=sys.stderr)
        return 1
    if isinstance(error, OSError) and error.errno in {*DISK_FULL, *NOT_WRITABLE}:
        where = error.filename or "output"
        keys = "paths.outputs=, paths.cache=" if config_name == "train" else "output="
        print(
            f"headwise: {where}: {error.strerror}. The folders for output are set by {keys} and "
            "the environment variable HEADWISE_CACHE",
            file=sys.stderr,
        )
        return 1
    of_name = (errno.ENAMETOOLONG, errno.EEXIST, errno.ENOENT)
    if isinstance(error, OSError) and error.errno in of_name and error.filename:
        print(f"headwise: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    traceback.print_exception(error)
    return 1


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)

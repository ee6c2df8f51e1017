"""The commands: train, prepare, evaluate, translate, predict, sample, prune, analyze, table,
figures, page, compare, runs.

Hydra composes the configuration; errors that a user can fix are printed as one message without a
traceback.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.config.arguments import accepted_before_jobs, checked_arguments
from headwise.config.commands import SearchSelection
from headwise.config.explain import explain_composition
from headwise.config.folders import config_dir
from headwise.config.keys import check_settings
from headwise.config.register import KINDS
from headwise.errors import ConfigError, HeadwiseError, Interrupted, Pruned, meant
from headwise.files import BROKEN_PIPE, DISK_FULL, NOT_WRITABLE, discard, guard_streams, output_to
from headwise.runs.environment import complete_environment

if TYPE_CHECKING:
    from headwise.commands.sweep import Sweep
    from headwise.config.schema import Config

Job = Callable[[Any, "Sweep | None"], Any]  # a config, and its sweep -> the objective of a search
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
    command = command or _named_command()
    if command == "train":
        _train()
    else:
        launch(CONFIGS.get(command, command), command_function(command))


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


def command_function(command: str) -> Job:
    """Return the function of a command; it is imported when called: `--help` needs no torch."""

    def job(config: Any, sweep: Sweep | None) -> None:
        getattr(import_module(f"headwise.commands.{command}"), command)(config)

    return job


def _train() -> None:
    """Launch a training, or a sweep with `-m`."""
    if "WORLD_SIZE" in os.environ:  # before torch: it warns of settings that `Ranks` needs
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    def job(config: Config, sweep: Sweep | None) -> float | None:
        from hydra.core.hydra_config import HydraConfig

        from headwise.commands.train import train

        overrides = list(HydraConfig.get().overrides.task)
        if sweep is not None:
            return _train_job(config, overrides, sweep)
        train(config, overrides, started=STARTED)
        return None

    launch("train", job, is_training=True)


def _train_job(config: Config, overrides: list[str], sweep: Sweep) -> float | None:
    """Run one job of a sweep; an error is printed and recorded, and raised as JobFailedError.

    Returns the objective of a search.
    """
    import torch
    from hydra.core.hydra_config import HydraConfig

    from headwise.commands.isolation import restored_process
    from headwise.commands.train import train

    hydra = HydraConfig.get()
    number, has_log = hydra.job.num, not hydra.launcher._target_.endswith(".BasicLauncher")
    trial, value = None, None
    sweep.remove(number)
    failed = False
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
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if failed:  # raised here, so that no traceback holds a reference to the job's model
        raise JobFailedError(f"failed: {' '.join(overrides)}")
    return value


def launch(config_name: str, job: Job, is_training: bool = False) -> None:
    """Compose `config_name`, run `job`, and exit with a code if it fails.

    Exit codes: 0 done, 1 failed, 2 wrong configuration, 128 + n after signal n.

    Args:
        is_training: jobs of a multirun are a sweep; the composed `hydra.mode` decides.
    """
    try:
        complete_environment()
        arguments = checked_arguments(sys.argv[1:], config_name)
    except ConfigError as error:
        sys.exit(report_error(error))
    import hydra

    from headwise.commands.sweep import Sweep, SweepStart
    from headwise.config.register import register, typed

    sys.argv[1:] = accepted_before_jobs(arguments) if is_training else arguments
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    composed = False
    sweep: Sweep | None = None
    lock = ExitStack()

    def begin(config: Any) -> None:
        from headwise.runs.folder import RunFolder  # imports numpy

        nonlocal sweep
        sys.argv[1:], task = arguments, config.hydra.overrides.task
        task[:] = [one if one in arguments else one.removeprefix("++") for one in task]
        try:
            started = Sweep.composed(config)
            # several processes may share a search
            if not (config.dry_run or config.hydra.sweeper._target_.endswith(".OptunaSweeper")):
                started.folder.mkdir(parents=True, exist_ok=True)
                lock.enter_context(RunFolder(started.folder).claimed())
            started.begin()
        except Exception as error:
            raise CarriedError(error) from error
        sweep = checked.sweep = started  # type: ignore[attr-defined]  # for launchers

    def checked(config: Any) -> Any:
        nonlocal composed
        composed = True
        try:
            check_settings(config, config_name)
            return job(typed(config, KINDS[config_name]), sweep)
        except Exception as error:
            if sweep is not None:
                raise  # the other jobs still run
            raise CarriedError(error) from error

    checked.sweep = None  # type: ignore[attr-defined]
    SweepStart.function = begin if is_training else None
    application = hydra.main(
        version_base="1.3", config_path=str(config_dir()), config_name=config_name
    )(checked)
    code = 0
    try:
        application()
        sys.stdout.flush()
    except Interrupted as stop:
        print(f"headwise: {stop}", file=sys.stderr)
        code = stop.exit_code
    except KeyboardInterrupt:
        saved = "files that were complete are intact; run the same command again"
        print(f"headwise: interrupted; {saved}", file=sys.stderr)
        code = 130
    except CarriedError as carried:
        code = report_error(carried.error, config_name)
    except Exception as error:  # noqa: BLE001 - printed, with a traceback for defects
        code = report_error(error, config_name, composed)
    if sweep is not None:
        sweep.summary()
        code = code or int(sweep.has_failed())
    lock.close()
    if code:
        sys.exit(code)


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

"""The commands: train, prepare, evaluate, translate, prune, analyze, report.

Hydra composes the configuration; errors are shown by us, one clear message and no traceback for
what a user can mend.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headwise.config_dir import config_dir, group_choices
from headwise.config_keys import explain_composition, refuse_misshapen, refuse_unknown
from headwise.errors import ConfigError, HeadwiseError, nearest
from headwise.files import FORBIDDEN, FULL, discard

if TYPE_CHECKING:
    from headwise.sweep import Sweep

Job = Callable[[Any], None]
BROKEN_PIPE = 128 + 13  # as a shell reports SIGPIPE
SAVED = "what was saved is intact, give the same command to go on"
INTERRUPTED = {
    "evaluate": "the scores that were shown are kept",
    "translate": "a file named by output= is as it was before",
}
HYDRA_OPTIONS = {
    "--help",
    "--hydra-help",
    "--version",
    "--cfg",
    "--resolve",
    "--package",
    "--multirun",
    "--shell-completion",
    "--config-path",
    "--config-name",
    "--config-dir",
    "--experimental-rerun",
    "--info",
}


class Leave(BaseException):
    """A run that saved and stopped on request; no `Exception`, so that it ends a sweep as well."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Carried(BaseException):
    """An error on its way out of Hydra, which would tell of an `Exception` in words of its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class PointFailedError(HeadwiseError):
    """A point of a sweep failed; its own error has been shown."""


def main() -> None:
    """`headwise COMMAND key=value …`."""
    commands = {
        "train": train,
        "prepare": prepare,
        "evaluate": evaluate,
        "translate": translate,
        "prune": prune,
        "analyze": analyze,
        "report": report,
    }
    given = sys.argv[1] if len(sys.argv) > 1 else ""
    if given == "--version":
        from headwise import __version__

        print(f"headwise {__version__}")
    elif given in commands:
        commands[sys.argv.pop(1)]()
    elif given in ("-h", "--help", ""):
        print(f"usage: headwise {{{','.join(commands)}}} key=value …\n")
        print("headwise train --help lists the config groups of training.")
        sys.exit(0 if given else 2)
    else:
        close = nearest(given, commands)
        hint = f" Did you mean {close}?" if close else ""
        print(f"headwise: {given!r} is none of {', '.join(commands)}.{hint}", file=sys.stderr)
        sys.exit(2)


def train() -> None:
    """`python train.py key=value …`; `-m` for several points."""
    from headwise.sweep import Sweep

    sweep = Sweep.of(sys.argv[1:])
    if sweep is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.exit("headwise: torchrun and -m do not go together; give each point its torchrun")

    def job(config: Any) -> None:
        from hydra.core.hydra_config import HydraConfig

        overrides = list(HydraConfig.get().overrides.task)
        if sweep is None:
            _train_one(config, overrides)
        else:
            _train_point(config, overrides, sweep)

    launch("train", job, sweep)


def _train_one(config: Any, overrides: list[str]) -> None:
    from headwise.train.interrupt import Interrupted
    from headwise.train.run import train as train_run

    try:
        train_run(config, overrides)
    except Interrupted as error:
        raise Leave(str(error), error.exit_code) from error


def _train_point(config: Any, overrides: list[str], sweep: Sweep) -> None:
    """One point of a sweep: what fails is told, kept and left behind."""
    from headwise.train.interrupt import Interrupted
    from headwise.train.run import train as train_run

    failed = False
    try:
        sweep.record(overrides, train_run(config, overrides, sweep.name), None)
    except Interrupted as error:
        sweep.record(overrides, None, error, is_interrupted=True)
        raise Leave(str(error), error.exit_code) from error
    except Exception as error:  # noqa: BLE001 - told, kept, and raised as PointFailedError
        sweep.record(overrides, None, error)
        tell(error)
        failed = True
    _release_memory()
    if failed:  # raised here, where no traceback keeps the point's model alive
        raise PointFailedError(f"failed: {' '.join(overrides)}")


def _release_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def prepare() -> None:
    """`python scripts/prepare.py data=…`: a corpus alone, ready for training."""

    def job(config: Any) -> None:
        from headwise.data.prepare import prepare_and_tell
        from headwise.train.settings import typed

        prepare_and_tell(typed(config))

    launch("train", job)


def evaluate() -> None:
    """`python scripts/evaluate.py run=FOLDER data.test=[…]`."""

    def job(config: Any) -> None:
        from headwise.train.inference import evaluate_run

        evaluate_run(config)

    launch("evaluate", job)


def translate() -> None:
    """`python scripts/translate.py run=FOLDER`: from a file, stdin, or line by line."""

    def job(config: Any) -> None:
        from headwise.train.inference import translate_run

        translate_run(config)

    launch("translate", job)


def prune() -> None:
    """`python scripts/prune.py run=FOLDER`: which heads matter, and a run without the others."""

    def job(config: Any) -> None:
        from headwise.train.pruning import prune_run

        prune_run(config)

    launch("prune", job)


def analyze() -> None:
    """`python scripts/analyze.py run=FOLDER`: what each head became, as tables."""

    def job(config: Any) -> None:
        from headwise.commands.analyze import analyze_runs

        analyze_runs(config)

    launch("analyze", job)


def report() -> None:
    """`python scripts/report.py paper=NAME runs=[…]`, or `run=FOLDER page=true`."""

    def job(config: Any) -> None:
        from headwise.commands.report import report_runs

        report_runs(config)

    launch("report", job)


def launch(config_name: str, job: Job, sweep: Sweep | None = None) -> None:
    """Compose `config_name`, run `job`, and end the process as its outcome asks.

    Exit codes: 0 done, 1 failed, 2 wrong configuration, 128 + n after signal n.
    """
    _refuse_foreign_options(sys.argv[1:], config_name)
    sys.argv[1:] = map(_quoted, sys.argv[1:])
    if sweep is not None:
        sweep.begin()
    import hydra

    from headwise.schema import register

    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors come to us instead of Hydra's report
    composed = False

    def checked(config: Any) -> None:
        nonlocal composed
        composed = True
        try:
            refuse_unknown(config, config_name)
            refuse_misshapen(config, config_name)
            job(config)
        except Exception as error:
            if sweep is not None:
                raise  # the other points go on
            raise Carried(error) from error

    application = hydra.main(
        version_base="1.3", config_path=str(config_dir()), config_name=config_name
    )(checked)
    code = 0
    try:
        application()
        sys.stdout.flush()
    except Leave as left:
        print(f"headwise: {left}", file=sys.stderr)
        code = left.exit_code
    except KeyboardInterrupt:
        print(f"headwise: interrupted; {INTERRUPTED.get(config_name, SAVED)}", file=sys.stderr)
        code = 130
    except Carried as carried:
        code = tell(carried.error, config_name)
    except Exception as error:  # noqa: BLE001 - told, with its traceback where it is a defect
        code = tell(error, config_name, composed)
    if sweep is not None:
        sweep.summary()
        code = code or int(sweep.has_failed())
    if code:
        sys.exit(code)


def _quoted(argument: str) -> str:
    """`key=value` as Hydra reads it: it takes letters beyond ASCII, = and the like in quotes only.

    What has quotes, brackets or commas says more than a name, and stays as it is.
    """
    key, equals, value = argument.partition("=")
    is_plain = re.fullmatch(r"[\w/+.$%*@?|: \t-]*", value, re.ASCII)
    if not equals or key.startswith("-") or is_plain or re.search(r"""[][{}()"',\\]""", value):
        return argument
    return f'{key}="{value}"'


def _refuse_foreign_options(arguments: Sequence[str], config_name: str) -> None:
    """What is no key=value, and options of other programs: Hydra would answer in its own words."""
    from headwise.sweep import MULTIRUN

    # Hydra's --run says what is done anyway; where `run` is a key of ours, that is what is meant
    known = HYDRA_OPTIONS | ({"--run"} if config_name == "train" else set())
    for before, argument in pairwise(["", *arguments]):
        has_value = before.startswith("-") and before not in MULTIRUN
        if "=" not in argument and not argument.startswith(("-", "~")) and not has_value:
            print(f"headwise: {_not_a_setting(before, argument)}", file=sys.stderr)
            sys.exit(2)
        name, _, value = argument.partition("=")
        if name.startswith("--") and name not in known:
            key = name.removeprefix("--").replace("-", "_")
            print(
                f"headwise: {argument} is not known; settings are written key=value: "
                f"{key}={value or '…'}",
                file=sys.stderr,
            )
            sys.exit(2)


def _not_a_setting(before: str, argument: str) -> str:
    told = f"{argument!r} is not key=value"
    if "/" not in argument and (choices := group_choices(argument)):
        return f"{told}: choose {argument}={'|'.join(choices)}"
    if "=" in before:
        return f"{told}. If it belongs to {before!r}, quote the whole; a key takes one value"
    return told


def tell(error: Exception, config_name: str = "train", composed: bool = True) -> int:
    """Print what went wrong and what to do, with a traceback for defects; returns the exit code.

    Args:
        config_name: whose keys to suggest.
        composed: the config had been composed; else the error is about the command line.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, PointFailedError):
        return 1
    if isinstance(error, BrokenPipeError):
        # who reads our output has enough; Python must not try to flush it once more at exit
        discard(sys.stdout.fileno())
        return BROKEN_PIPE
    if not composed or isinstance(error, (HydraException, OmegaConfBaseException)):
        print(f"headwise: {explain_composition(error, config_name)}", file=sys.stderr)
        return 2
    if isinstance(error, HeadwiseError):
        print(f"headwise: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    if _is_out_of_memory(error):
        lines = str(error).splitlines()
        print(
            f"headwise: out of memory ({lines[0] if lines else type(error).__name__}). Lower "
            "trainer.max_tokens (trainer.accumulate makes up for it), decode.max_tokens, or the "
            "model's size.",
            file=sys.stderr,
        )
        return 1
    if isinstance(error, OSError) and error.errno in {*FULL, *FORBIDDEN}:
        where = error.filename or "output"
        print(
            f"headwise: {where}: {error.strerror}. Where things are written is said by output=, "
            "paths.outputs=, paths.cache= and the environment variable HEADWISE_CACHE",
            file=sys.stderr,
        )
        return 1
    traceback.print_exception(error)
    return 1


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)

"""The commands: train, prepare, evaluate, translate.

Hydra composes the configuration; errors are shown by us, one clear message and no traceback for
what a user can mend.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from headwise.config_dir import config_dir, group_choices, group_node
from headwise.errors import HeadwiseError, nearest

Job = Callable[[Any], None]
COMMANDS = ("train", "prepare", "evaluate", "translate")

log = logging.getLogger(__name__)


def main() -> None:
    """`headwise COMMAND key=value …`."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        given = sys.argv[1] if len(sys.argv) > 1 else ""
        if given in ("-h", "--help", ""):
            print(f"usage: headwise {{{','.join(COMMANDS)}}} key=value …\n")
            print("headwise train --help lists the config groups of training.")
            sys.exit(0 if given else 2)
        close = nearest(given, COMMANDS)
        hint = f" Did you mean {close}?" if close else ""
        sys.exit(f"headwise: {given!r} is not one of {', '.join(COMMANDS)}.{hint}")
    command = sys.argv.pop(1)
    {"train": train, "prepare": prepare, "evaluate": evaluate, "translate": translate}[command]()


def train() -> None:
    """`python train.py key=value …`; `-m` for several points."""
    from headwise.sweep import Sweep

    sweep = Sweep.of(sys.argv[1:])
    if sweep is not None:
        sweep.begin()

    def job(config: Any) -> None:
        from hydra.core.hydra_config import HydraConfig

        from headwise.train.run import train as train_run
        from headwise.train.run import write_error

        overrides = list(HydraConfig.get().overrides.task)
        try:
            outcome = train_run(config, overrides, sweep.name if sweep else None)
        except Exception as error:
            write_error(config, overrides, error)
            if sweep is not None:
                sweep.record(overrides, None, error)
                explain(error)
            raise
        if sweep is not None:
            sweep.record(overrides, outcome, None)

    launch("train", job, sweep.summary if sweep else None)


def prepare() -> None:
    """`python scripts/prepare.py data=…`: a corpus alone, ready for training."""

    def job(config: Any) -> None:
        from headwise.data.prepare import prepare_and_tell
        from headwise.train.run import typed

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


def launch(config_name: str, job: Job, afterwards: Callable[[], None] | None = None) -> None:
    """Compose `config_name`, run `job`, and end the process as its outcome asks.

    Exit codes: 0 done, 1 failed, 2 wrong configuration, 128 + n after signal n.
    """
    import hydra

    from headwise.schema import register

    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors come to us instead of Hydra's report
    application = hydra.main(
        version_base="1.3", config_path=str(config_dir()), config_name=config_name
    )(job)
    code = 0
    try:
        application()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except Exception as error:
        code = explain(error)
        if code == 1 and not is_expected(error):
            raise
    finally:
        if afterwards is not None:
            afterwards()
    if code:
        sys.exit(code)


def is_expected(error: BaseException) -> bool:
    """Whether the error is a message to the user rather than a defect."""
    return isinstance(error, HeadwiseError) or _is_out_of_memory(error)


def explain(error: Exception) -> int:
    """Print what went wrong and what to do; returns the exit code."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from headwise.errors import ConfigError
    from headwise.train.interrupt import Interrupted

    if isinstance(error, Interrupted):
        print(f"headwise: {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        print(f"headwise: {_config_message(error)}", file=sys.stderr)
        return 2
    if _is_out_of_memory(error):
        print(
            f"headwise: out of memory ({str(error).splitlines()[0]}). Lower trainer.max_tokens "
            "(trainer.accumulate makes up for it), decode.max_tokens, or the model's size.",
            file=sys.stderr,
        )
        return 1
    if isinstance(error, HeadwiseError):
        print(f"headwise: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 1


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def _config_message(error: Exception) -> str:
    """Hydra's own message, with the nearest key or choice."""
    import re

    cause = error.__cause__ or error
    text = str(error).strip()
    detail = str(cause).strip()
    if detail and detail not in text:
        text = f"{text}\n{detail}"
    text = re.sub(r"\n\s*(full_key|object_type|reference_type).*", "", text)
    text = re.sub(r"\nTo append to your config use .*", "", text)
    text = re.sub(r"\nConfig search path:[\s\S]*", "", text)
    match = re.search(r"Could not (?:override|append) '?([\w@./]+)'?|Key '([\w.]+)'", str(error))
    missing = re.search(r"Could not find '([\w]+)/([\w./-]+)'", str(error))
    hint = None
    if missing:
        hint = nearest(missing.group(2), group_choices(missing.group(1)))
        hint = f"{missing.group(1)}={hint}" if hint else None
    elif match:
        hint = nearest(match.group(1) or match.group(2), known_keys())
    return f"{text}\nDid you mean {hint}?" if hint else text


def known_keys() -> list[str]:
    """Every dotted key of the training config, and the groups."""
    from dataclasses import fields, is_dataclass
    from typing import get_type_hints

    from headwise.schema import Config

    keys: list[str] = []

    def walk(prefix: str, kind: Any) -> None:
        for field, hint in zip(fields(kind), get_type_hints(kind).values(), strict=True):
            name = f"{prefix}{field.name}"
            keys.append(name)
            if is_dataclass(hint):
                walk(f"{name}.", hint)

    walk("", Config)
    for group in ("attention", "pattern", "loss", "optimizer", "scheduler"):
        for choice in group_choices(group):
            keys += [f"{group}.{key}" for key in group_node(group, choice) if key[0] != "_"]
    return keys

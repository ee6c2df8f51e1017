"""What headwise changes in other packages, why, and the version that ends the need.

Hydra 1.3 and OmegaConf 2.3 have no options for these.
"""

from __future__ import annotations

import argparse
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ValidationError
from omegaconf.nodes import StringNode

from headwise.config.schema import UNCHOSEN
from headwise.errors import ConfigError

# Plugins whose configs conf/hydra/ replaces.
REPLACED = {"submitit_launcher", "optuna_sweeper"}


def install() -> None:
    """Make all changes; called once, by `register`."""
    _accept_lazy_help()
    _hide_groups()
    _share_stored_configs()
    _prefer_yaml()
    _check_jobs()
    _refuse_numbers_as_text()


def _accept_lazy_help() -> None:
    """Let Hydra add a help text that is made when shown, which Python 3.14 refuses.

    Needless with Hydra 1.4.
    """
    check: Any = getattr(argparse.ArgumentParser, "_check_help", None)
    if check is not None:
        argparse.ArgumentParser._check_help = (  # type: ignore[attr-defined]
            lambda self, action: isinstance(action.help, str) and check(self, action)
        )


def _hide_groups() -> None:
    """Leave groups that no user chooses out of `--help`.

    Still needed with Hydra 1.4, which lists every folder of conf/.
    """
    groups = Hydra.list_all_config_groups
    Hydra.list_all_config_groups = (  # type: ignore[method-assign]
        lambda *parts: [group for group in groups(*parts) if group not in UNCHOSEN]
    )


def _share_stored_configs() -> None:
    """Spare a copy of all stored configs at every composition, and for `--help` once a group.

    Still needed with Hydra 1.4, whose `CachingConfigRepository` copies its sources.
    """
    ConfigStore.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]


def _prefer_yaml() -> None:
    """Remove the configs of replaced plugins, now and whenever Hydra imports these again.

    Hydra otherwise takes them for schemas of the yaml files with the same names. Needless with
    Hydra 1.4, where a yaml names its schema.
    """
    original = ConfigStore.store

    def store(self: ConfigStore, name: str, *args: Any, **options: Any) -> None:
        if options.get("provider") not in REPLACED:
            original(self, name, *args, **options)

    ConfigStore.store = store  # type: ignore[method-assign]
    for group in ("launcher", "sweeper"):
        stored = ConfigStore.instance().repo.get("hydra", {}).get(group, {})
        for name in [name for name, node in stored.items() if node.provider in REPLACED]:
            del stored[name]


def _check_jobs() -> None:
    """Name the job in errors of its composition, and refuse one with another launcher or sweeper.

    A sweep has these from its first composition, without swept choices. Needless with Hydra 1.4,
    which refuses such a job itself.
    """
    compose = ConfigLoaderImpl.load_sweep_config

    def load(self: Any, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        job = f"The job was: {' '.join(sweep_overrides)}"
        try:
            config = compose(self, master_config, sweep_overrides)
        except HydraException as error:
            error.add_note(job)
            raise
        for key in ("hydra.launcher", "hydra.sweeper._target_", "hydra.sweeper.params"):
            used, own = (str(OmegaConf.select(one, key)) for one in (master_config, config))
            if used != own:  # references are not resolved
                advice = "is not used; start a sweep for each choice, or set it on the command line"
                raise ConfigError(f"{key} in the yaml of a swept choice {advice}. {job}")
        return config

    ConfigLoaderImpl.load_sweep_config = load  # type: ignore[method-assign]


def _refuse_numbers_as_text() -> None:
    """Make OmegaConf refuse unquoted numbers and truth values in text, which it would rewrite.

    1e3 would become 1000.0. Hydra's own keys and references to a key are converted. Still needed
    with OmegaConf 2.4.
    """
    convert = StringNode._validate_and_convert_impl

    def strict_text(node: StringNode, value: Any) -> str:
        if isinstance(value, bool | int | float):
            is_reference = "_val" in vars(node) and node._is_interpolation()
            if not (is_reference or str(node._get_full_key(None)).startswith("hydra.")):
                problem = "$FULL_KEY must be text, got $VALUE ($VALUE_TYPE): put it in quotes"
                raise ValidationError(problem)
        return convert(node, value)

    StringNode._validate_and_convert_impl = strict_text  # type: ignore[method-assign,assignment]

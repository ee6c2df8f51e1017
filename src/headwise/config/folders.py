"""The folder of the Hydra configs, and the choices of a group."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError

from headwise.config.register import register
from headwise.errors import refuse


def config_dir() -> Path:
    """The folder `conf/` of the installed package, or of the checkout."""
    packaged = Path(__file__).parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "conf"


def composed(*overrides: str) -> DictConfig:
    """The config that `python train.py` composes from `overrides`."""
    from hydra import compose, initialize_config_dir

    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return compose("train", list(overrides))


def group_choices(group: str) -> list[str]:
    """Names that `group=` accepts."""
    folder = config_dir() / group
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def group_node(group: str, name: str) -> Any:
    """The content of one yaml of a group, without its defaults list.

    Values that the data suggest are the defaults; references to keys of other groups are kept.
    """
    if name not in group_choices(group):
        raise refuse(group, name, group_choices(group))
    node = OmegaConf.load(config_dir() / group / f"{name}.yaml")
    with suppress(InterpolationKeyError):
        OmegaConf.resolve(node)
    content: Any = OmegaConf.to_container(node)
    content.pop("defaults", None)
    return content

"""The schemas of the commands and of data, as Hydra knows them, and the folder of its yamls."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError

from headwise.config.commands import (
    AnalyzeConfig,
    CompareConfig,
    EvaluateConfig,
    FiguresConfig,
    PageConfig,
    PredictConfig,
    PruneConfig,
    RunsConfig,
    SampleConfig,
    TableConfig,
    TranslateConfig,
)
from headwise.config.data import (
    BuiltinTextConfig,
    DataConfig,
    ImageDataConfig,
    LabelledDataConfig,
    MusicDataConfig,
    NoDataConfig,
    SequenceConfig,
    TextDataConfig,
)
from headwise.config.fields import expand_paths, in_home, with_bounds
from headwise.config.instantiate import settings_class
from headwise.config.schema import Config, DecodeConfig, WandbConfig, WindowsConfig
from headwise.errors import refuse

KINDS: dict[str, type] = {  # command -> dataclass
    "train": Config,
    "evaluate": EvaluateConfig,
    "translate": TranslateConfig,
    "predict": PredictConfig,
    "sample": SampleConfig,
    "prune": PruneConfig,
    "analyze": AnalyzeConfig,
    "table": TableConfig,
    "figures": FiguresConfig,
    "page": PageConfig,
    "compare": CompareConfig,
    "runs": RunsConfig,
}


# Dataclasses of open groups, which a yaml selects by /schema/NAME@_here_ in its defaults list.
# A NAME with dots is the path of a class of data in a package of HEADWISE_PLUGINS.
SCHEMAS: dict[str, type] = {
    "parallel": DataConfig,
    "text": TextDataConfig,
    "builtin_text": BuiltinTextConfig,
    "images": ImageDataConfig,
    "music": MusicDataConfig,
    "labelled": LabelledDataConfig,
    "no_data": NoDataConfig,
    "sequence": SequenceConfig,
    "search": DecodeConfig,
    "windows": WindowsConfig,
    "wandb": WandbConfig,
}


C = TypeVar("C")


class _Schemas(dict[str, Any]):
    """The group `schema` of Hydra: file name -> node; those of paths of classes when needed."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or str(name).count(".") > 1

    def __missing__(self, name: str) -> Any:
        from hydra.core.config_store import ConfigNode

        target = name.removesuffix(".yaml")
        node = OmegaConf.structured(settings_class(target, "data"))
        node._target_ = target
        return self.setdefault(name, ConfigNode(name, node, "schema", None, None))


def typed(node: DictConfig, kind: type[C] = Config) -> C:  # type: ignore[assignment]
    """A composed config as the dataclass of its command; `~` in paths is expanded."""
    return expand_paths(cast(C, OmegaConf.to_object(node)))


def _all_keys(*, _root_: DictConfig) -> str:
    """The keys of a command with their bounds, as yaml, for a help text; there `$$` is `$`."""
    content = OmegaConf.masked_copy(_root_, [str(key) for key in _root_ if key != "hydra"])
    text = OmegaConf.to_yaml(content)
    return with_bounds(text, KINDS[str(_root_.hydra.job.config_name)]).replace("$", "$$")


@cache
def register() -> None:
    """Register the dataclasses with Hydra as `COMMAND_schema` and `schema/NAME`.

    Also the resolvers `${in_home:PATH}` and, for help texts, `${all_keys:}`, and what Hydra and
    OmegaConf need (`config/patches.py`).
    """
    from hydra.core.config_store import ConfigStore

    from headwise.config import patches

    patches.install()
    OmegaConf.register_new_resolver("in_home", in_home, replace=True)
    OmegaConf.register_new_resolver("all_keys", _all_keys, replace=True)
    for command, kind in KINDS.items():
        ConfigStore.instance().store(f"{command}_schema", kind)
    for name, kind in SCHEMAS.items():
        ConfigStore.instance().store(name, kind, group="schema")
    repo = ConfigStore.instance().repo
    repo["schema"] = _Schemas(repo["schema"])


# -- the folder of the configs --------------------------------------------------------------------


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

"""The settings in the folder of a run: classes by name, and keys of earlier versions.

Modules move, so saved settings name the classes of headwise alone. A key that is missing, because
a later version added it, has the default that its class states. A renamed key or class is in
`RENAMED`, a removed key in `REMOVED`. Any other key is an error.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, cast

from omegaconf import MISSING, DictConfig, OmegaConf

from headwise.config.instantiate import settings_class, target_class, type_hints
from headwise.config.register import SCHEMAS, config_dir, typed
from headwise.config.schema import Config
from headwise.errors import ConfigError, meant, unknown

# `CLASS.KEY` of an earlier version -> today's key, `CLASS` -> today's class. The class of a key is
# the dataclass of its group or of the settings of the class that the group's `_target_` names, or
# that class, by today's name.
RENAMED: dict[str, str] = {
    "ArchiveSource": "Archive",
    "ArchiveTables": "Archive",
    "BuiltinTextConfig": "BuiltinText",
    "DataConfig": "ParallelCorpus",
    "HubSource": "Hub",
    "ImageDataConfig": "ImageCorpus",
    "LabelledDataConfig": "LabelledText",
    "MusicDataConfig": "MusicCorpus",
    "TextDataConfig": "TextCorpus",
}
# `CLASS.KEY` of an earlier version -> the values that can be read -> keys beside it that have their
# effect; None: no value has an effect on results. A removed class has no value.
REMOVED: dict[str, Mapping[Any, Mapping[str, Any]] | None] = {
    "DecodeConfig.external": None,
    "DecodeConfig.method": {"beam": {}, "greedy": {"beam": 1}},
    "MaskedLM.whole_words": {False: {}},
    "SiLU": {},
    "TrainerConfig.gradient_sum": None,
}
TARGET = "_target_"
UNSTATED = (TARGET, "instead")  # keys of any class
NONE_STATED = inspect.Parameter.empty
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@cache
def saved_classes() -> dict[str, str]:
    """Name -> path of the classes of headwise that settings may name."""
    texts = (path.read_text(encoding="utf-8") for path in config_dir().rglob("*.yaml"))
    paths = {path for text in texts for path in re.findall(rf"{TARGET}: (headwise\.\S+)", text)}
    paths |= {kind._target_ for kind in SCHEMAS.values()}  # type: ignore[attr-defined]
    return {path.rpartition(".")[2]: path for path in sorted(paths)}


@cache
def _dataclasses() -> dict[str, type]:
    """Name of a class that settings name -> the dataclass of its settings, if it has one."""
    return {kind._target_.rpartition(".")[2]: kind for kind in SCHEMAS.values()}  # type: ignore


def class_name(target: Any) -> Any:
    """The name of a class of headwise, whatever its module was; other targets as they are."""
    package, _, name = str(target).rpartition(".")
    name = RENAMED.get(name, name)
    is_ours = f"{package}.".startswith((".", "headwise."))
    return name if is_ours and name in saved_classes() else target


def named(settings: Any) -> Any:
    """Settings with the classes of headwise by their names."""
    return _with_targets(settings, class_name)


def saved_settings(config: Config) -> dict[str, Any]:
    """The settings as in the folder of a run: plain types, and classes by their names."""
    settings: dict[str, Any] = named(asdict(config))
    return settings


def located(settings: Any) -> Any:
    """Settings with the paths of the classes that `named` names."""
    return _with_targets(settings, lambda target: saved_classes().get(target, target))


def _with_targets(settings: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(settings, Mapping):
        return {
            key: change(value) if key == TARGET else _with_targets(value, change)
            for key, value in settings.items()
        }
    if isinstance(settings, list):
        return [_with_targets(item, change) for item in settings]
    return settings


def current(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved settings with the keys of this version and the names of classes.

    Raises:
        ConfigError: a key that is not known, a required one that is missing, or a removed one
            whose value changed results.
    """
    return _current(named(saved), Config, "")


def current_search(saved: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Saved settings below `decode`, of the dataclass `kind`, with the keys of this version.

    Raises:
        ConfigError: see `current`.
    """
    return _current(saved, kind, "decode.")


def _current(saved: Any, kind: type, prefix: str) -> dict[str, Any]:
    """The settings of a dataclass, or the arguments of another class."""
    if not isinstance(saved, Mapping):
        raise ConfigError(f"{prefix.rstrip('.')} is not a mapping")
    defaults, takes_any = _defaults(kind)
    settings = {
        RENAMED.get(f"{kind.__name__}.{key}", str(key)): value
        for key, value in saved.items()
        if f"{kind.__name__}.{key}" not in REMOVED
    }
    for key, value in saved.items():
        if (name := f"{kind.__name__}.{key}") in REMOVED:
            settings |= _without(name, f"{prefix}{key}", value)
    for key in settings.keys() - {*defaults, *UNSTATED}:
        if not takes_any:
            raise unknown(prefix, key, list(defaults))
    complete: dict[str, Any] = {}
    hints = type_hints(kind)
    for key, value in {**defaults, **settings}.items():
        if value is NONE_STATED:  # the code that builds the class has it
            continue
        if is_dataclass(hint := hints.get(key)):
            complete[key] = _current(value, cast(type, hint), f"{prefix}{key}.")
        elif value == MISSING:
            raise ConfigError(f"{prefix}{key} is missing")
        else:
            complete[key] = _node(value, f"{prefix}{key}")
    return complete


def _without(name: str, key: str, value: Any) -> Mapping[str, Any]:
    """The keys that take the place of a removed one, or the error for a value with an effect."""
    readable = REMOVED[name]
    if readable is None:
        return {}
    if value not in list(readable):  # which a list may be compared with
        raise ConfigError(f"{key}={value} is of an earlier version; it was removed")
    return readable[value]


def _node(value: Any, key: str) -> Any:
    """A value that may be a node with a `_target_`, or contain such nodes; a copy."""
    if not isinstance(value, Mapping):
        return copy.deepcopy(value)
    target = value.get(TARGET)
    if target in REMOVED:
        _without(target, f"{key}.{TARGET}", target)
    if target in saved_classes():
        kind = _dataclasses().get(target) or target_class(located({TARGET: target}), key)
        return _current(value, kind, f"{key}.")
    if isinstance(target, str) and "." not in target:
        hint = meant(target, saved_classes())
        raise ConfigError(f"{key}.{TARGET}: there is no class {target}.{hint}")
    return {name: _node(item, f"{key}.{name}") for name, item in value.items()}


@cache
def _defaults(kind: type) -> tuple[dict[str, Any], bool]:
    """Argument of a class -> stated default, or NONE_STATED; whether it takes any argument."""
    parameters = inspect.signature(kind).parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    stated: dict[str, Any] = {p.name: p.default for p in parameters if p.kind not in VARIABLE}
    if is_dataclass(kind):
        made = {f.name: f.default_factory() for f in fields(kind) if callable(f.default_factory)}
        groups: dict[str, Any] = {k: {} for k, v in type_hints(kind).items() if is_dataclass(v)}
        stated |= made | groups
    lists = {name: list(value) for name, value in stated.items() if isinstance(value, tuple)}
    return stated | lists, inspect.Parameter.VAR_KEYWORD in kinds


def read_back(settings: Mapping[str, Any]) -> Config:
    """The settings of `current` as the dataclass of training.

    Raises:
        ConfigError, OmegaConfBaseException: a value of a wrong type.
    """
    content = located(settings)
    merged = cast(DictConfig, OmegaConf.merge(OmegaConf.structured(Config), content))
    for group in ("data", "decode", "tracker"):
        if not isinstance(settings[group], Mapping):
            raise ConfigError(f"{group} is not a mapping")
        target = settings[group].get(TARGET)
        kind = _dataclasses().get(target)
        if kind is None and group == "data" and target:
            kind = settings_class(target, group)
        if kind is not None:
            merged[group] = OmegaConf.merge(OmegaConf.structured(kind), merged[group])
    return typed(merged)

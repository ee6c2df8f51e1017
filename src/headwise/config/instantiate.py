"""The only caller of Hydra's `instantiate`.

A yaml node names its class with `_target_`. Only classes under `headwise.`, `torch.optim.` and
the packages listed in `HEADWISE_PLUGINS` (comma-separated) are instantiated: an untrusted run
folder must not be able to call anything else. Keys and types are checked here for all
variants, against the constructor's signature.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from headwise.config.schema import SITE_GROUPS
from headwise.errors import ConfigError, UntrustedError, meant, unknown

ALLOWED_PREFIXES = ("headwise.", "torch.optim.")
_SIMPLE = (bool, int, float, str)
UNIONS = (typing.Union, types.UnionType)
LISTS = (list, tuple, Sequence)
MAPPINGS = (dict, Mapping)
WORDS = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false",
    type(None): "null",
}  # fmt: skip


def as_container(node: Any) -> Any:
    """A node, or the dataclass of one, as plain dicts and lists, with interpolations resolved."""
    if is_dataclass(node) and not isinstance(node, type):
        return asdict(node)
    if isinstance(node, (DictConfig, ListConfig)):
        return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    return node


def target_class(node: Any, key: str) -> Any:
    """The class that `node._target_` names.

    Raises:
        ConfigError: no `_target_`, or a class outside the trusted packages.
    """
    container = as_container(node)
    target = container.get("_target_") if isinstance(container, Mapping) else None
    if not isinstance(target, str):
        groups = [name for name, sites in SITE_GROUPS.items() if key.startswith(f"{sites}.")]
        hint = "".join(f"; did you mean {name}@{key}={container}?" for name in groups)
        raise ConfigError(f"{key} must be a mapping with a _target_, got {container!r}{hint}")
    plugins = os.environ.get("HEADWISE_PLUGINS", "").replace(",", " ").split()
    trusted = (*ALLOWED_PREFIXES, *(f"{name}." for name in plugins))
    if not target.startswith(trusted):
        now = f" (currently {','.join(plugins)})" if plugins else ""
        raise UntrustedError(
            f"{key}._target_ must be in headwise or torch.optim, got {target!r}. "
            f"List your packages in HEADWISE_PLUGINS=package1,package2{now}."
        )
    obj = _locate(target, key)
    # imports of a trusted module are also its attributes: headwise.cli.os.system
    if not inspect.isclass(obj) or not f"{obj.__module__}.".startswith(trusted):
        raise ConfigError(f"{key}._target_ must name a class of a trusted package, got {target!r}")
    return obj


def settings_class(target: str, key: str) -> type:
    """The dataclass of the settings of a class of data: the type of its attribute `config`.

    Raises:
        ConfigError: the class cannot be used, see `target_class`, or names no dataclass.
    """
    kind = target_class({"_target_": target}, key)
    settings = typing.get_type_hints(kind).get("config")
    if not (isinstance(settings, type) and is_dataclass(settings)):
        raise ConfigError(f"{key}: {target} must have an attribute config of a dataclass's type")
    return settings


def _locate(target: str, key: str) -> Any:
    """The attribute of a module at a dotted path."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError):  # those before it were imported
            module, _, name = str(error.name).rpartition(".")
        parent = sys.modules.get(module)
        names = [info.name for info in pkgutil.iter_modules(getattr(parent, "__path__", ()))]
        known = [*names, *(name for name in dir(parent) if name[0] != "_")]
        hint = meant(name, known, f"{module}.{{}}")
        what = f"{key}._target_ = {target!r} cannot be imported"
        raise ConfigError(f"{what}: {error}.{hint}") from error


def instantiate(node: Any, key: str, kind: type = object, /, **runtime: Any) -> Any:
    """Instantiate the class of a config node.

    Args:
        node: mapping with `_target_` and arguments of the constructor.
        key: config path of the node, for error messages.
        kind: required base class.
        runtime: further arguments (parameters of an optimizer, the site of a head).

    Raises:
        ConfigError: wrong class, unknown or missing argument, wrong type, or a value that the
            constructor rejects.
    """
    from hydra.utils import instantiate as hydra_instantiate

    container = as_container(node)
    target = target_class(container, key)
    if not issubclass(target, kind):
        raise ConfigError(f"{key}._target_ must be a {kind.__name__}, got {target.__name__}")
    settings = {k: v for k, v in container.items() if not k.startswith("_")}
    _check_arguments(target, settings, set(runtime), key)
    # not recursive: a nested _target_ would be called without these checks
    hydra_keys = {"_convert_": "all", "_partial_": True, "_recursive_": False}
    try:
        make = hydra_instantiate({"_target_": container["_target_"], **hydra_keys, **settings})
        return make(**runtime)
    except ConfigError as error:
        raise ConfigError(f"{key}.{error}") from error
    except (TypeError, ValueError) as error:
        if container["_target_"].startswith("headwise."):
            raise  # a bug: headwise constructors raise ConfigError
        values = ", ".join(f"{key}.{name}={value}" for name, value in settings.items())
        raise ConfigError(f"{container['_target_']}({values}): {error}") from error


def _check_arguments(target: Any, settings: dict[str, Any], runtime: set[str], key: str) -> None:
    parameters = inspect.signature(target).parameters
    allowed = [name for name in parameters if name not in {*runtime, "params", "_target_"}]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    extra = sorted(name for name in runtime if name not in parameters and not takes_any)
    if extra:
        raise ConfigError(
            f"{key}._target_={target.__module__}.{target.__qualname__} cannot be used for "
            f"{key}: it has no argument {', '.join(extra)}"
        )
    for name, value in settings.items():
        if name in runtime:
            raise ConfigError(f"{key}.{name} is set internally and cannot be configured")
        if name not in parameters and not takes_any:
            raise unknown(f"{key}.", name, allowed)
        hint_type = type_hints(target).get(name)
        if hint_type is not None and not fits(value, hint_type):
            raise ConfigError(f"{key}.{name} must be {in_words(hint_type)}, got {value!r}")
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and name not in settings and name not in runtime and name != "params":
            raise ConfigError(f"{key}.{name} is missing")


@cache
def type_hints(target: Any) -> dict[str, Any]:
    """Argument of a constructor -> its type; empty if the types cannot be resolved."""
    constructor = target.__init__ if inspect.isclass(target) else target
    try:
        return typing.get_type_hints(constructor)
    except NameError:  # imported under TYPE_CHECKING: types cannot be checked
        return {}


def in_words(hint: Any) -> str:
    """A type in words; empty for a class that yaml cannot express."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind in UNIONS:
        return " or ".join(filter(None, map(in_words, inner)))
    if kind in LISTS:
        items = ", ".join(in_words(item) for item in inner if item is not Ellipsis)
        return f"a list of {items}" if items else "a list"
    if kind in MAPPINGS:
        return " to ".join(filter(None, ("a mapping", in_words(inner[1]))))
    return WORDS.get(hint, "")


def fits(value: Any, hint: Any) -> bool:
    """Whether `value` matches `hint`; classes accept all but simple values, other hints all."""
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        return any(fits(value, option) for option in arguments)
    if origin in MAPPINGS:
        return isinstance(value, dict) and all(fits(v, arguments[1]) for v in value.values())
    if origin in LISTS:
        if not isinstance(value, list):
            return False
        if origin is not tuple or arguments[-1] is Ellipsis:
            return all(fits(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if hint is type(None):
        return value is None
    if hint in _SIMPLE:
        return isinstance(value, hint)
    # a class that yaml cannot express, such as Tensor
    return not (inspect.isclass(hint) and isinstance(value, _SIMPLE))

"""The config keys of each command, and checks of unknown keys and wrong values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast, get_args, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headwise.config.fields import check_bound, check_bounds
from headwise.config.instantiate import fits, in_words
from headwise.config.register import KINDS, SCHEMAS, config_dir, group_choices, group_node
from headwise.config.schema import SITE_GROUPS, SITES, Config
from headwise.errors import ConfigError, require, unknown

S = TypeVar("S")

# Schema -> its group; the others are of `data`.
GROUP_OF = {"search": "decode", "windows": "decode", "wandb": "tracker"}
# Groups whose keys are checked by constructors.
OPEN_GROUPS = [name for name, hint in get_type_hints(Config).items() if hint is Any]


def check_settings(config: DictConfig, config_name: str) -> None:
    """Reject what OmegaConf does not check.

    These are keys that `+key=value` added to those of the dataclasses, nested lists, interpolated
    values for lists, and numbers outside of the bounds of their field.

    Raises:
        ConfigError: with the key, and the allowed keys and the nearest of them, type or numbers.
    """
    for prefix, kind, node in _typed_nodes(config, KINDS[config_name]):
        hint_of = get_type_hints(kind)
        items = {field.name: field for field in fields(kind)}
        hints = {name: hint_of[name] for name in items}
        for key in map(str, node):
            if key not in hints:
                raise unknown(prefix, key, [name for name in hints if name[0] != "_"])
        for name, hint in hints.items():
            if is_dataclass(hint) or OmegaConf.is_missing(node, name):
                continue
            value = node.get(name)
            if isinstance(value, (DictConfig, ListConfig)):
                value = OmegaConf.to_container(value, resolve=True)
            require(fits(value, hint), f"{prefix}{name}", in_words(hint), value)
            check_bound(items[name], f"{prefix}{name}", value)


def with_changes(settings: S, group: str, changes: Mapping[str, Any]) -> S:
    """A dataclass of an open group with changed values; None leaves a value unchanged.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type or outside of its bounds.
    """
    names = [field.name for field in fields(settings) if field.name[0] != "_"]  # type: ignore
    merged = OmegaConf.structured(settings)
    for key, value in changes.items():
        if value is None:
            continue
        if key not in names:
            raise unknown(f"{group}.", key, names)
        try:
            merged[key] = value
        except OmegaConfBaseException as error:
            raise ConfigError(f"{group}.{key}: {str(error).splitlines()[0]}") from error
    changed = cast(S, OmegaConf.to_object(merged))
    check_bounds(changed, f"{group}.")
    return changed


def _typed_nodes(
    node: DictConfig, kind: Any, prefix: str = ""
) -> Iterator[tuple[str, Any, DictConfig]]:
    """Yield (key prefix, dataclass, node) of a node and of its nested dataclasses."""
    yield prefix, kind, node
    for name, hint in get_type_hints(kind).items():
        value_node = None if OmegaConf.is_missing(node, name) else node.get(name)
        inner = OmegaConf.get_type(value_node) if hint is Any else hint  # Any: an open group
        if isinstance(value_node, DictConfig) and is_dataclass(inner):
            yield from _typed_nodes(value_node, inner, f"{prefix}{name}.")


def _hints_of(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each dotted key of a dataclass, and of those in it, with its type."""
    for name, hint in get_type_hints(kind).items():
        yield f"{prefix}{name}", hint
        if is_dataclass(hint):
            yield from _hints_of(hint, f"{prefix}{name}.")


def _hints(config_name: str) -> Iterator[tuple[str, Any]]:
    """Yield each key of the config of a command with its type, also those of data and decode."""
    yield from _hints_of(KINDS[config_name])
    names = [field.name for field in fields(KINDS[config_name])]
    for name, kind in SCHEMAS.items():
        group = GROUP_OF.get(name, "data")
        if config_name == "train" or (group == "decode" and group in names):
            yield from _hints_of(kind, f"{group}.")


def text_keys(config_name: str) -> set[str]:
    """The keys of a command whose values are text or lists of text."""
    return {key for key, hint in _hints(config_name) if {hint, *get_args(hint)} & {str, list[str]}}


def choices_with(group: str, name: str) -> list[str]:
    """The choices of a group that have a key, in their yaml or in its dataclass."""
    kinds = [f"/schema/{n}@" for n, kind in SCHEMAS.items() if name in get_type_hints(kind)]
    has_key = re.compile("|".join([f"^{re.escape(name)}:", *kinds]), re.MULTILINE)
    paths = {choice: config_dir() / group / f"{choice}.yaml" for choice in group_choices(group)}
    return [c for c, path in paths.items() if has_key.search(path.read_text(encoding="utf-8"))]


def known_keys(config_name: str) -> list[str]:
    """All dotted keys of the config of a command; for training, also those of each choice."""
    keys = [key for key, _ in _hints(config_name)]
    if config_name != "train":
        return keys
    for group in OPEN_GROUPS:
        for choice in group_choices(group):
            keys += [f"{group}.{key}" for key in group_node(group, choice) if key[0] != "_"]
    for group, sites in SITE_GROUPS.items():
        keys += [f"{group}@{sites}.{site}" for site in SITES]
    return [*keys, "experiment"]

"""Which keys a command knows, and what to answer to one that it does not."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headwise.config_dir import config_dir, group_choices, group_node
from headwise.errors import nearest, refuse, require, unknown
from headwise.instantiate import fits
from headwise.schema import (
    SITE_GROUPS,
    SITES,
    AnalyzeConfig,
    Config,
    DecodeConfig,
    EvaluateConfig,
    PruneConfig,
    ReportConfig,
    TranslateConfig,
)

KINDS: dict[str, type] = {
    "train": Config,
    "evaluate": EvaluateConfig,
    "translate": TranslateConfig,
    "prune": PruneConfig,
    "analyze": AnalyzeConfig,
    "report": ReportConfig,
}
OPEN_GROUPS = (  # checked by constructors
    "attention",
    "pattern",
    "scaling",
    "gates",
    "repulsion",
    "loss",
    "optimizer",
    "scheduler",
)


def refuse_unknown(config: DictConfig, config_name: str) -> None:
    """Refuse keys that `+key=value` has put beside those of the dataclasses.

    Raises:
        ConfigError: the key, its neighbours and the nearest of them.
    """
    for prefix, kind, node in _typed_nodes(config, KINDS[config_name]):
        names = [field.name for field in fields(kind)]
        for key in map(str, node):
            if key not in names:
                raise unknown(prefix, key, names)


def _typed_nodes(node: Any, kind: Any, prefix: str = "") -> Iterator[tuple[str, Any, DictConfig]]:
    yield prefix, kind, node
    for name, hint in get_type_hints(kind).items():
        if is_dataclass(hint) and isinstance(node.get(name), DictConfig):
            yield from _typed_nodes(node[name], hint, f"{prefix}{name}.")


def refuse_misshapen(config: DictConfig, config_name: str) -> None:
    """Refuse what OmegaConf lets pass: lists of lists, values interpolated in place of lists.

    Raises:
        ConfigError: the key, and what it must be.
    """
    for prefix, kind, node in _typed_nodes(config, KINDS[config_name]):
        for name, hint in get_type_hints(kind).items():
            if is_dataclass(hint) or OmegaConf.is_missing(node, name):
                continue
            value = node.get(name)
            if isinstance(value, (DictConfig, ListConfig)):
                value = OmegaConf.to_container(value, resolve=True)
            require(_fits(value, hint), f"{prefix}{name}", _in_words(hint), value)


def _fits(value: Any, hint: Any) -> bool:
    """As `fits`, and mappings by what they hold."""
    if get_origin(hint) is not dict:
        return fits(value, hint)
    return isinstance(value, dict) and all(_fits(one, get_args(hint)[1]) for one in value.values())


def _in_words(hint: Any) -> str:
    kind, inner = get_origin(hint), get_args(hint)
    if kind is UnionType:
        return " or ".join(map(_in_words, inner))
    if kind is list:
        return "a list" if inner[0] is Any else f"a list, each of it {_in_words(inner[0])}"
    if kind is dict:
        return "a mapping" if inner[1] is Any else f"a mapping, each of it {_in_words(inner[1])}"
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    return words.get(hint, "null")


def known_keys(config_name: str) -> list[str]:
    """Every dotted key of a command's config; for training, those of each choice too."""
    keys: list[str] = []

    def walk(prefix: str, kind: Any) -> None:
        hints = get_type_hints(kind)
        for field in fields(kind):
            name, hint = f"{prefix}{field.name}", hints[field.name]
            keys.append(name)
            if is_dataclass(hint):
                walk(f"{name}.", hint)

    walk("", KINDS[config_name])
    if config_name != "train":
        return [*keys, *(f"decode.{field.name}" for field in fields(DecodeConfig))]
    for group in OPEN_GROUPS:
        for choice in group_choices(group):
            keys += [f"{group}.{key}" for key in group_node(group, choice) if key[0] != "_"]
    for group, sites in SITE_GROUPS.items():
        keys += [f"{group}@{sites}.{site}" for site in SITES]
    return [*keys, "experiment"]


def explain_composition(error: Exception, config_name: str) -> str:
    """What Hydra or OmegaConf refused, in one message with the nearest key or choice."""
    text = str(error).strip()
    detail = str(error.__cause__ or "").strip()
    if detail and detail not in text:
        text = f"{text}\n{detail}"
    text = re.sub(r"\n\s*(full_key|object_type|reference_type).*", "", text)
    text = re.sub(r"\nTo append to your .* use .*", "", text)
    text = re.sub(r"\nConfig search path:[\s\S]*", "", text)
    text = re.sub(r"\nSee https://hydra.cc\S*.*", "", text)
    text = re.sub(r"Key '(\w+)' (is not in struct|not in '\w+')", r"There is no key '\1'.", text)
    text = text.replace("\\'", "'")
    if not isinstance(error, (HydraException, OmegaConfBaseException)):
        text = f"{text}\nThe command line was: {' '.join(sys.argv[1:])}"
    if "Config group override must be a string or a list" in text:
        for argument in sys.argv[1:]:
            group, _, value = argument.partition("=")
            if group in _groups() and value not in group_choices(group):
                return str(refuse(group, value, group_choices(group)))
    missing = re.search(r"missing mandatory value: (\S+)", text, re.IGNORECASE)
    if missing:
        # the message has the last part of the key only
        key = getattr(error, "full_key", None) or missing.group(1)
        return f"{key} is missing: give {key}=…"
    scalar = re.search(r"Error merging override (\S+?)=(.*)\nInvalid value.*ListConfig", text)
    if scalar:
        return f"{scalar[1]} is a list: give {scalar[1]}=[{scalar[2]}]"
    hint = None if "Did you mean" in text else _hint(error, config_name)
    return f"{text}\nDid you mean {hint}?" if hint else text


def _hint(error: Exception, config_name: str) -> str | None:
    absent = re.search(r"Could not find '([\w/]+)/([\w.-]+)'", str(error))
    if absent:
        group, choice = absent.groups()
        elsewhere = [g for g in _groups() if g != group and choice in group_choices(g)]
        if elsewhere:
            return f"{elsewhere[0]}={choice}"
        close = nearest(choice, group_choices(group))
        return f"{group}={close}" if close else None
    key = re.search(r"Could not (?:override|append) '?([\w@./]+)'?|Key '([\w.]+)'", str(error))
    if key is None:
        return None
    typed = key.group(1) or key.group(2)
    known = known_keys(config_name)
    if typed not in known:
        return nearest(typed, known)
    group, _, name = typed.partition(".")
    able = [c for c in group_choices(group) if name in group_node(group, c)]
    return f"to choose {group}={'|'.join(able)}, to which {typed} belongs" if able else None


def _groups() -> list[str]:
    return sorted(path.name for path in config_dir().iterdir() if path.is_dir())

"""Messages for errors of Hydra and OmegaConf."""

from __future__ import annotations

import inspect
import re
import sys
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from headwise.config.instantiate import target_class
from headwise.config.keys import choices_with, known_keys
from headwise.config.register import config_dir, group_choices
from headwise.config.schema import UNCHOSEN
from headwise.errors import ConfigError, nearest, refuse, unset

NOISE = re.compile(  # lines that help no user of headwise
    r"\n\s*(?:full_key|object_type|reference_type|To append to your .* use|See https://hydra.cc).*"
    r"|\nConfig search path:[\s\S]*"
)


def explain_composition(error: Exception, config_name: str) -> str:
    """The message for an error of Hydra or OmegaConf, with the nearest key or choice."""
    text = "\n".join([str(error).strip(), *getattr(error, "__notes__", ())])
    detail = str(error.__cause__ or "").strip()
    if detail and detail not in text:
        text = f"{text}\n{detail}"
    text = NOISE.sub("", text)
    text = re.sub(r"Key '(\w+)' (is not in struct|not in '\w+')", r"There is no key '\1'.", text)
    text = text.replace("\\'", "'").replace("override ++", "override ")  # `accepted_before_jobs`
    plugin = re.search(r"Unknown plugin class : 'hydra_plugins\.headwise\.(\w+)", text)
    if plugin:
        return f"this launcher or sweeper is an extra: pip install 'headwise[{plugin[1]}]'"
    if isinstance(error.__cause__ or error, GrammarParseError):
        text = "${ begins a reference to another key and must end with }: rename the path with ${"
    if not isinstance(error, (HydraException, OmegaConfBaseException)):
        text = f"{text}\nThe command line was: {' '.join(sys.argv[1:])}"
    if "Config group override must be a string or a list" in text:
        for argument in sys.argv[1:]:
            group, _, value = argument.partition("=")
            if group in _groups() and value not in group_choices(group):
                return str(refuse(group, value, group_choices(group)))
    missing = re.search(r"missing mandatory value: (\S+)", text, re.IGNORECASE)
    if missing:
        # the message of OmegaConf has the last part of the key only
        key = getattr(error, "full_key", None) or missing.group(1)
        return str(unset(key))
    if re.search("is not Optional|Incompatible value 'None'", text):
        where = getattr(error.__cause__ or error, "full_key", None) or text.partition(":")[0]
        return f"{where}: null is not text; put it in quotes if it is: '\"null\"'"
    scalar = re.search(r"Error merging override (\S+?)=(.*)\nInvalid value.*ListConfig", text)
    if scalar:
        return f"{scalar[1]} must be a list: set {scalar[1]}=[{scalar[2]}]"
    hint = None if "Did you mean" in text else _hint(error, config_name)
    return f"{text}\nDid you mean {hint}?" if hint else text


def _hint(error: Exception, config_name: str) -> str | None:
    not_found = re.search(r"Could not find '([\w/]+)/([\w.-]+)'", str(error))
    if not_found:
        group, choice = not_found.groups()
        if nested := group_choices(f"{group}/{choice}"):
            return f"{group}={choice}/{'|'.join(nested)}"
        other_groups = [g for g in _groups() if g != group and choice in group_choices(g)]
        if other_groups:
            return f"{other_groups[0]}={choice}"
        close = nearest(choice, group_choices(group))
        return f"{group}={close}" if close else None
    key = re.search(r"Could not (?:override|append) '?([\w@./]+)'?|Key '([\w.]+)'", str(error))
    if key is None:
        return None
    typed_key = key.group(1) or key.group(2)
    known = [*known_keys(config_name), *_arguments(error)]
    close = typed_key if typed_key in known else nearest(typed_key, known)
    group, _, name = (close or "").partition(".")
    there: Any = getattr(error.__cause__ or error, "parent_node", None) or {}
    is_of_others = name not in there and typed_key.rpartition(".")[0] == group
    if is_of_others and (choices := choices_with(group, name)):
        return f"{group}={'|'.join(choices)}, which has {close}"
    return None if close == typed_key else close


def _arguments(error: Exception) -> list[str]:
    """The keys of the group that lacks one, if its class is not of headwise."""
    node: Any = getattr(error.__cause__ or error, "parent_node", None)
    target = str(getattr(node, "_target_", "headwise."))
    if target.startswith("headwise."):  # `known_keys` has its keys
        return []
    group = str(node._get_full_key(None))
    if is_dataclass(OmegaConf.get_type(node)):  # settings of data
        return [f"{group}.{name}" for name in node]
    with suppress(ConfigError):  # the class cannot be imported
        given = inspect.signature(target_class({"_target_": target}, group)).parameters.values()
        names = [p.name for p in given if p.default is not p.empty or p.name in node]
        return [f"{'' if name in node else '+'}{group}.{name}" for name in names]
    return []


def _groups() -> list[str]:
    names = (path.name for path in config_dir().iterdir() if path.is_dir())
    return sorted(name for name in names if name not in UNCHOSEN)

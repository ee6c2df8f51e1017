"""How tables, figures and pages name a run's choices and its corpus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from headwise.config.folders import config_dir
from headwise.config.schema import Config
from headwise.tasks.task import task_of

# Groups that are named beside attention, with the choice that goes without saying.
BESIDE = {
    "pattern": "none",
    "scaling": "none",
    "positions": "sinusoidal",
    "norm": "pre",
    "activation": "relu",
    "init": "glorot",
    "repulsion": "none",
    "gates": "none",
}
# As in the tables of papers; Ro-En alone, since not every folder of it holds WMT's training text.
CORPORA = {
    "builtin": "built-in corpus",
    "iwslt17": "IWSLT17",
    "kftt": "KFTT",
    "multi30k": "Multi30k",
    "tatoeba_ja_en": "Tatoeba",
    "wmt14_en_de": "WMT14",
    "wmt16_ro_en": "",
}


def attention_name(config: Config) -> str:
    """The choice of `attention=`, and where a site has one of its own that one."""

    def word(node: Mapping[str, Any]) -> str:
        return class_word(node["_target_"])

    own = {
        site: word(node)
        for site, node in vars(config.sites).items()
        if node is not None and word(node) != word(config.attention)
    }
    named = ", ".join(f"{site} {name}" for site, name in own.items())
    return word(config.attention) + (f" ({named})" if named else "")


def choice_name(config: Config) -> str:
    """The attention of a run and what goes with it, as their yaml files are named."""
    beside = {group: class_word(getattr(config, group)["_target_"]) for group in BESIDE}
    others = [f"{group} {word}" for group, word in beside.items() if word != BESIDE[group]]
    return ", ".join([attention_name(config), *others])


def corpus_name(config: Config) -> str:
    """The corpus and its languages, as `Multi30k De→En`."""
    name = config.data.name
    languages = "→".join(code.capitalize() for code in task_of(config).languages(config))
    return f"{CORPORA.get(name, name)} {languages}".strip()


def class_word(target: Any) -> str:
    """The word on the command line that chooses a class; for a class without a yaml, its name."""
    return _words().get(str(target), str(target).rpartition(".")[2])


@cache
def _words() -> dict[str, str]:
    """Class -> name of its yaml, the first where several set it up differently."""
    found: dict[str, str] = {}
    for path in sorted(config_dir().glob("*/*.yaml")):
        named = re.search(r"^_target_: (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        if named:
            found.setdefault(named[1], path.stem)
    return found

"""Names of the choices and the corpus of a run in tables, figures and pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from headwise.config.register import config_dir
from headwise.config.saved import class_name
from headwise.config.schema import Config
from headwise.tasks.task import task_of

# Groups that are named after the attention -> the choice that is not named.
OTHER_GROUPS = {
    "pattern": "none",
    "scaling": "none",
    "positions": "sinusoidal",
    "norm": "pre",
    "activation": "relu",
    "init": "glorot",
    "repulsion": "none",
    "gates": "none",
}
# As in papers; only Ro→En for WMT16, since some folders of it have other training text.
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
    """Return the choice of `attention=`, and those of sites with another one."""

    def word(node: Mapping[str, Any]) -> str:
        return class_word(node["_target_"])

    others = {
        site: word(node)
        for site, node in vars(config.sites).items()
        if node is not None and word(node) != word(config.attention)
    }
    named = ", ".join(f"{site} {name}" for site, name in others.items())
    return word(config.attention) + (f" ({named})" if named else "")


def choice_name(config: Config) -> str:
    """Return the names of the yaml files of the attention and of the other groups of a run."""
    return ", ".join(choice_parts(config))


def choice_parts(config: Config) -> list[str]:
    """Return the parts of `choice_name`: the attention, then the other groups."""
    words = {group: class_word(getattr(config, group)["_target_"]) for group in OTHER_GROUPS}
    others = [f"{group} {word}" for group, word in words.items() if word != OTHER_GROUPS[group]]
    return [attention_name(config), *others]


def corpus_name(config: Config) -> str:
    """Return the corpus and its languages, such as `Multi30k De→En`."""
    name = config.data.name
    languages = "→".join(code.capitalize() for code in task_of(config).languages)
    return f"{CORPORA.get(name, name)} {languages}".strip()


def class_word(target: Any) -> str:
    """Return the name of the yaml of a class, or the class name if it has no yaml."""
    name = class_name(target)
    return _words().get(name, str(name).rpartition(".")[2])


@cache
def _words() -> dict[str, str]:
    """Return name of a class -> that of its yaml, the first if there are several."""
    names: dict[str, str] = {}
    for path in sorted(config_dir().glob("*/*.yaml")):
        named = re.search(r"^_target_: (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        if named:
            names.setdefault(class_name(named[1]), path.stem)
    return names

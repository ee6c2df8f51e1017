"""How tables, figures and pages name a run's choices and its corpus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.schema import SITES, Config

BESIDE = ("pattern", "scaling", "repulsion", "gates")  # groups that change an attention
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
        return class_word(node["_target_"], "attention")

    own = {
        site: word(node)
        for site in SITES
        if (node := getattr(config.sites, site)) is not None
        and word(node) != word(config.attention)
    }
    named = ", ".join(f"{site} {name}" for site, name in own.items())
    return word(config.attention) + (f" ({named})" if named else "")


def choice_name(config: Config) -> str:
    """The attention of a run and what goes with it, as their yaml files are named."""
    beside = {group: class_word(getattr(config, group)["_target_"], group) for group in BESIDE}
    others = [f"{group} {word}" for group, word in beside.items() if not word.startswith("No")]
    return ", ".join([attention_name(config), *others])


def corpus_name(config: Config) -> str:
    """The corpus and the languages, as `Multi30k De→En`."""
    data = config.data
    languages = f"{data.source.capitalize()}→{data.target.capitalize()}"
    return f"{CORPORA.get(data.name, data.name)} {languages}".strip()


def class_word(target: Any, group: str) -> str:
    """The module of a class, which its yaml is named after; else the class."""
    *_, module, name = ["", *str(target).split(".")]
    return module if module not in ("", group, "none", "optim", "schedule") else name

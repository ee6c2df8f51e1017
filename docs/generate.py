"""Write the generated tables of the guide, between their markers in the pages.

    python docs/generate.py

Settings: every key of a training. Defaults are those of `python train.py`; numbers are the
bounds and meanings the comments of `headwise.config.schema`, and `headwise.runs.fingerprint`
decides which keys are part of a run's fingerprint. Keys of open groups (attention, loss and the
like) are in the yamls of their choices. Variants: formulas from the first lines of
`conf/attention/`, and capabilities from the classes.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from headwise.attention.build import AttentionFactory, unsupported_sites
from headwise.attention.cache import KeyValueCache
from headwise.attention.place import Place
from headwise.attention.protocol import Attention
from headwise.attention.scores import ScoreAttention
from headwise.config import schema
from headwise.config.data import (
    CleaningConfig,
    DataConfig,
    LabelledDataConfig,
    SequenceConfig,
    TextDataConfig,
)
from headwise.config.fields import bounds_in_words
from headwise.config.folders import composed, config_dir, group_choices, group_node
from headwise.config.schema import SITE_KINDS, SITE_NAMES
from headwise.markdown import markdown_table
from headwise.runs.fingerprint import NOT_IN_FINGERPRINT, comparable

GROUPS = {  # key of a group -> its class
    "": schema.Config,
    "trainer": schema.TrainerConfig,
    "model": schema.ModelConfig,
    "tokenizer": schema.TokenizerConfig,
    "decode": schema.DecodeConfig,
    "data": DataConfig,
    "data.cleaning": CleaningConfig,
    "tracker": schema.WandbConfig,
    "paths": schema.PathsConfig,
}
OTHER_DATA: dict[str, dict[str, type]] = {  # choice of data -> its groups with other keys
    "data=text": {"data": TextDataConfig, "decode": schema.WindowsConfig},
    "data=labelled": {"data": LabelledDataConfig},
    "data=copy": {"data": SequenceConfig},
}
# Set by the yamls of `data`, not by users.
CORPUS_KEYS = ("tasks", "files", "origins", "licence", "notes")
N_HEADS, HEAD_DIM = 8, 4  # arbitrary: the capabilities do not depend on them
HEADER = (
    "`attention=`",
    *(f"{SITE_NAMES[s]}{' (causal)' * (kind == 'causal')}" for s, kind in SITE_KINDS.items()),
    "decoding cache",
    "fused, or no scores",
    "weights",
    "patterns, scalings",
    "rotary, ALiBi",
    "max positions",
)


def keys_of(kind: type, values: DictConfig) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, value, numbers and meaning of each key of a group, without its subgroups."""
    source = "".join(map(inspect.getsource, kind.__mro__[:-1]))
    plain = OmegaConf.to_container(values, resolve=False)
    assert isinstance(plain, dict)
    for field in dataclasses.fields(kind):
        name = field.name
        is_group = isinstance(plain[name], dict) and plain[name]
        if not is_group and name not in CORPUS_KEYS and name[0] != "_":
            comment = re.search(rf"^    {name}: [^#\n]*  # (.*)$", source, re.MULTILINE)
            meaning = comment[1] if comment else ""
            yield name, _yaml(plain[name]), bounds_in_words(field), meaning


def _yaml(value: Any) -> str:
    return str(OmegaConf.to_yaml({"key": value}, resolve=False))[len("key: ") :].strip()


def settings_tables() -> str:
    """Return the tables, one per group of keys."""
    parts = [_open_groups(composed())]
    parts += [_table(composed(), group, kind, "") for group, kind in GROUPS.items()]
    for data, kinds in OTHER_DATA.items():
        config = composed(data)
        parts += [_table(config, group, kind, f" with `{data}`") for group, kind in kinds.items()]
    return "\n\n".join(parts)


def _open_groups(config: DictConfig) -> str:
    """A sentence on the keys that have no table."""
    names = [str(n) for n in config if OmegaConf.is_dict(config[n]) and n not in GROUPS]
    out = [key for key in NOT_IN_FINGERPRINT if key.split(".")[0] in names]
    listed, without = (", ".join(f"`{key}`" for key in keys) for keys in (names, out))
    return f"All keys of {listed} are in the fingerprint, except {without}."


def _table(config: DictConfig, group: str, kind: type, condition: str) -> str:
    """The table of one group of keys."""
    values = OmegaConf.select(config, group) if group else config
    prefix = f"{group}." if group else ""
    keys = comparable(cast(dict[str, Any], OmegaConf.to_container(config, resolve=False)))
    rows = [
        (
            f"`{prefix}{name}`",
            f"`{v}`",
            numbers,
            "in" if f"{prefix}{name}" in keys else "out",
            words,
        )
        for name, v, numbers, words in keys_of(kind, values)
    ]
    about = (inspect.getdoc(kind) or "").split("\n\n")[0]
    title = f"`{group}`{condition}" if group else "A run"
    table = markdown_table(("key", "default", "numbers", "fingerprint", ""), rows, numeric=False)
    return f"### {title}\n\n{' '.join(about.split())}\n\n{table}"


def attentions_by_site(name: str) -> dict[str, Attention]:
    """Return the variant's attention at each site that supports it."""
    node = group_node("attention", name)
    softmax = group_node("attention", "softmax")
    unsupported = unsupported_sites(node, "attention")
    return {
        site: AttentionFactory({"attention": softmax}, {"attention": {site: node}})(
            Place(site, 1, N_HEADS, HEAD_DIM)
        )
        for site in SITE_KINDS
        if site not in unsupported
    }


def capability_row(name: str) -> tuple[str, ...]:
    """Return one row of the table."""
    attentions = attentions_by_site(name)
    instead = group_node("attention", name).get("instead", {})
    by_site = [
        "yes" if s in attentions else f"no ({instead.get(s, 'rejected')})" for s in SITE_KINDS
    ]
    by_scores = [a for a in attentions.values() if isinstance(a, ScoreAttention)]
    has_no_scores = not by_scores
    limits = {a.max_keys for a in attentions.values()} - {None}
    return (
        name,
        *by_site,
        _cache(attentions),
        "yes" if has_no_scores else _fused(by_scores),
        ", ".join(dict.fromkeys(a.forms_weights for a in attentions.values())),
        "no" if has_no_scores else "yes",
        _positions(attentions) if has_no_scores else "yes",
        ", ".join(f"{n} (max_length)" for n in sorted(n for n in limits if n is not None)) or "any",
    )


def _fused(attentions: list[ScoreAttention]) -> str:
    return "yes" if all(a.normaliser.is_fused for a in attentions) else "no"


def _positions(attentions: dict[str, Attention]) -> str:
    return "rotary" if any(a.rotates for a in attentions.values()) else "no"


def _cache(attentions: dict[str, Attention]) -> str:
    growing = [a for site, a in attentions.items() if SITE_KINDS[site] == "causal"]
    if not growing:
        return "cross only"
    cache = growing[0].make_cache(static=False)
    return "keys, values" if isinstance(cache, KeyValueCache) else "constant state"


def formula_row(name: str) -> tuple[str, ...]:
    """Return name, formula and source, from the comment in the first line of the yaml."""
    text = (config_dir() / "attention" / f"{name}.yaml").read_text(encoding="utf-8")
    match = re.match(r"# (.+?)(?: \(([^()]+)\))?\n", text)
    formula, source = match.groups(default="") if match else ("", "")
    return f"`{name}`", formula, source


def formulas() -> str:
    """Return the variants of `conf/attention/` and their formulas as a markdown table."""
    rows = map(formula_row, group_choices("attention"))
    return markdown_table(("choice", "weights", "source"), rows, numeric=False)


def capabilities() -> str:
    """Return the capabilities of the variants as a markdown table."""
    return markdown_table(HEADER, map(capability_row, group_choices("attention")), numeric=False)


PAGES: dict[str, dict[str, Callable[[], str]]] = {  # tables by the name of their markers
    "settings.md": {"settings": settings_tables},
    "variants.md": {"formulas": formulas, "capabilities": capabilities},
}


def with_part(text: str, name: str, content: str) -> str:
    """Return `text` with `content` between its markers `<!-- name -->` and `<!-- /name -->`."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = text.partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        raise SystemExit(f"no {begin} … {end} in the file")
    return f"{before}{begin}\n{content}\n{end}{after}"


def main() -> None:
    """Update all pages."""
    for name, tables in PAGES.items():
        page = Path(__file__).with_name(name)
        text = page.read_text(encoding="utf-8")
        for marker, content in tables.items():
            text = with_part(text, marker, content())
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

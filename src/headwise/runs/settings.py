"""Tables of every key of a training, its default and its meaning.

    python -m headwise.runs.settings [--write docs/settings.md]

Defaults are those of `python train.py`; meanings are the comments of `headwise.config.schema`, and
`headwise.runs.fingerprint` decides which keys are part of a run's fingerprint. With `--write`, the
lines between the two markers of the file are replaced. Keys of open groups (attention, loss and the
like) are in the yamls of their choices.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from headwise.config import schema
from headwise.config.data import (
    CleaningConfig,
    DataConfig,
    LabelledDataConfig,
    SequenceConfig,
    TextDataConfig,
)
from headwise.config.folders import composed
from headwise.markdown import markdown_table, print_or_write
from headwise.runs.fingerprint import NOT_IN_FINGERPRINT, comparable

NAME = "settings"  # of the two markers in the page
GROUPS = {  # key of a group -> its class
    "": schema.Config,
    "trainer": schema.TrainerConfig,
    "model": schema.ModelConfig,
    "tokenizer": schema.TokenizerConfig,
    "decode": schema.DecodeConfig,
    "data": DataConfig,
    "data.cleaning": CleaningConfig,
    "tracker": schema.TrackerConfig,
    "paths": schema.PathsConfig,
}
OTHER_DATA: dict[str, dict[str, type]] = {  # choice of data -> its groups with other keys
    "data=text": {"data": TextDataConfig, "decode": schema.WindowsConfig},
    "data=labelled": {"data": LabelledDataConfig},
    "data=copy": {"data": SequenceConfig},
}
# Set by the yamls of `data`, not by users.
CORPUS_KEYS = ("tasks", "files", "origins", "licence", "notes")


def settings(kind: type, values: DictConfig) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and meaning of each key of a group, without its subgroups."""
    source = "".join(map(inspect.getsource, kind.__mro__[:-1]))
    plain = OmegaConf.to_container(values, resolve=False)
    assert isinstance(plain, dict)
    for name in (field.name for field in dataclasses.fields(kind)):
        is_group = isinstance(plain[name], dict) and plain[name]
        if not is_group and name not in CORPUS_KEYS and name[0] != "_":
            comment = re.search(rf"^    {name}: [^#\n]*  # (.*)$", source, re.MULTILINE)
            yield name, _yaml(plain[name]), comment[1] if comment else ""


def _yaml(value: Any) -> str:
    return str(OmegaConf.to_yaml({"key": value}, resolve=False))[len("key: ") :].strip()


def tables() -> str:
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
        (f"`{prefix}{name}`", f"`{value}`", "in" if f"{prefix}{name}" in keys else "out", words)
        for name, value, words in settings(kind, values)
    ]
    about = (inspect.getdoc(kind) or "").split("\n\n")[0]
    title = f"`{group}`{condition}" if group else "A run"
    table = markdown_table(("key", "default", "fingerprint", ""), rows, numeric=False)
    return f"### {title}\n\n{' '.join(about.split())}\n\n{table}"


if __name__ == "__main__":
    print_or_write("every key of a training", {NAME: tables})

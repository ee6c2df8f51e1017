"""Every key of a training, what it is without being set, and what it means.

    python -m headwise.report.settings [--write docs/settings.md]

Values are those that `python train.py` composes, words are the comments of `headwise.schema`. With
`--write`, the lines between the two markers of the file are replaced. Open groups (attention, loss
and the like) have their keys in the yamls of their choices.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from headwise import schema
from headwise.config_dir import config_dir
from headwise.markdown import markdown_table, renewed

NAME = "settings"  # of the two markers in the page
GROUPS = {  # key of a group -> its class
    "": schema.Config,
    "trainer": schema.TrainerConfig,
    "model": schema.ModelConfig,
    "tokenizer": schema.TokenizerConfig,
    "decode": schema.DecodeConfig,
    "data": schema.DataConfig,
    "data.cleaning": schema.CleaningConfig,
    "tracker": schema.TrackerConfig,
    "paths": schema.PathsConfig,
}
OF_A_CORPUS = ("files", "origins", "licence", "notes")  # what a yaml of `data` tells, not a user


def settings(kind: type, values: DictConfig) -> Iterator[tuple[str, str, str]]:
    """Name, value and meaning of each key of a group that is no group itself."""
    source = inspect.getsource(kind)
    plain = OmegaConf.to_container(values, resolve=False)
    assert isinstance(plain, dict)
    for field in dataclasses.fields(kind):
        is_group = field.type == "Any" or field.name in GROUPS or str(field.type).endswith("Config")
        if field.name in OF_A_CORPUS or (is_group and field.name != "heads"):
            continue
        comment = re.search(rf"^    {field.name}: [^#\n]*  # (.*)$", source, re.MULTILINE)
        yield field.name, _yaml(plain[field.name]), comment[1] if comment else ""


def _yaml(value: Any) -> str:
    return str(OmegaConf.to_yaml({"key": value}, resolve=False))[len("key: ") :].strip()


def tables() -> str:
    """A table a group of keys."""
    schema.register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        config = compose("train")
    parts = []
    for group, kind in GROUPS.items():
        values = OmegaConf.select(config, group) if group else config
        prefix = f"{group}." if group else ""
        rows = [
            (f"`{prefix}{name}`", f"`{value}`", words)
            for name, value, words in settings(kind, values)
        ]
        about = (inspect.getdoc(kind) or "").split("\n\n")[0]
        title = f"`{group}`" if group else "A run"
        table = markdown_table(("key", "unless set", ""), rows, of_numbers=False)
        parts.append(f"### {title}\n\n{' '.join(about.split())}\n\n{table}")
    return "\n\n".join(parts)


def main() -> None:
    """Print the tables, or renew them in a file."""
    parser = argparse.ArgumentParser(description="every key of a training")
    parser.add_argument("--write", type=Path, metavar="FILE", help="renew the tables in this file")
    path: Path | None = parser.parse_args().write
    if path is None:
        print(tables())
        return
    text = path.read_text(encoding="utf-8")
    path.write_text(renewed(text, NAME, tables()), encoding="utf-8")


if __name__ == "__main__":
    main()

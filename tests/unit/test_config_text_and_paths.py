"""Paths in settings: `~` and `-`, in every key of every command."""

import pytest
from omegaconf import OmegaConf

from headwise.config.register import KINDS, typed

PATHS = {
    "train": ["paths.outputs", "paths.cache", "init_from", "tokenizer.folder", "data.dir"],
    "evaluate": ["run", "output", "data.dir", "data.source_file", "data.reference_file"],
    "translate": ["run", "input", "output", "reference"],
    "predict": ["run", "input", "output"],
    "sample": ["run", "prompt_file", "output"],
    "prune": ["run", "output", "data.dir"],
    "analyze": ["run", "output", "data.dir", "runs"],
    "table": ["output", "runs"],
    "figures": ["run", "output", "runs"],
    "page": ["run", "other", "sentences", "output"],
    "compare": ["run", "other", "output"],
    "runs": ["runs"],
}


def typed_with(make, command, value, keys):
    """Values of `keys`, which are all set to `value`."""
    quoted = {key: f'["{value}"]' if key == "runs" else f'"{value}"' for key in keys}
    node = make([f"{key}={text}" for key, text in quoted.items()], command)
    config = OmegaConf.structured(typed(node, KINDS[command]))
    return {key: OmegaConf.select(config, key) for key in keys}


@pytest.mark.parametrize("command", PATHS)
def test_home_is_expanded_in_every_path(command, make, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    chosen = typed_with(make, command, "~/a b", PATHS[command])
    expected = {key: ["/home/me/a b"] if key == "runs" else "/home/me/a b" for key in chosen}
    assert chosen == expected


def test_home_is_expanded_in_files_of_data_and_in_other_settings_not(make, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    files = 'data.files={train: ["~/a", b], valid: "~/c"}'
    config = typed(make(["data=text", files, 'data.notes="~/x"', 'data.file="~/d"']))
    assert config.data.files == {"train": ["/home/me/a", "b"], "valid": "/home/me/c"}
    assert (config.data.file, config.data.notes) == ("/home/me/d", "~/x")


@pytest.mark.parametrize("command", ["translate", "predict", "sample"])
def test_dash_is_a_standard_stream_where_a_file_is_read_or_written(command, make):
    streams = {key: "/dev/stdout" if key == "output" else "/dev/stdin" for key in PATHS[command]}
    assert typed_with(make, command, "-", PATHS[command]) == streams | {"run": "-"}

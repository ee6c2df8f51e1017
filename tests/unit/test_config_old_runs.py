"""Run folders of versions that had fewer groups."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from command_line import composer
from headwise.config_dir import group_node
from headwise.train.loading import LATER_GROUPS, read_config
from headwise.train.run_folder import RunFolder


def test_groups_that_came_later_are_none(tmp_path: Path) -> None:
    with composer() as compose:
        content = OmegaConf.to_container(compose(["attention=softmax"]), resolve=True)
    assert isinstance(content, dict)
    for group in LATER_GROUPS:
        del content[group]
    del content["model"]["register_tokens"]
    OmegaConf.save(OmegaConf.create(content), tmp_path / "config.yaml")
    config = read_config(RunFolder(tmp_path))
    for group in LATER_GROUPS:
        assert getattr(config, group) == group_node(group, "none")
    assert config.model.register_tokens == 0

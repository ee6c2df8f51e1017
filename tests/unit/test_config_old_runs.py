"""Run folders of versions that had fewer groups."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from command_line import composer
from headwise.config_dir import group_node
from headwise.instantiate import as_container
from headwise.precision import resolve_precision
from headwise.train.distributed import choose_device
from headwise.train.loading import LATER_GROUPS, is_same_search, read_config
from headwise.train.run_folder import LATER_KEYS, RunFolder, fingerprint
from headwise.train.settings import settle, typed


def test_a_run_of_before_a_setting_is_the_run_that_has_its_first_value() -> None:
    with composer() as compose:
        content = as_container(compose(["attention=softmax"]))
    for name, first in LATER_KEYS.items():
        group, key = name.split(".")
        older = {**content, group: {k: v for k, v in content[group].items() if k != key}}
        assert content[group][key] == first
        assert fingerprint(older) == fingerprint(content)
        other = {**content, group: {**content[group], key: "other"}}
        assert fingerprint(other) != fingerprint(content)
        assert is_same_search(older["decode"], content["decode"])
        assert not is_same_search(older["decode"], other["decode"])


def test_what_is_auto_is_settled_before_a_run_has_a_name() -> None:
    with composer() as compose:
        node = compose(["attention=softmax", "trainer.precision=auto", "decode.precision=auto"])
    config = typed(node)
    container = settle(config, node)
    expected = resolve_precision("auto", choose_device("auto"))
    for group, part in (("trainer", config.trainer), ("decode", config.decode)):
        assert container[group]["precision"] == part.precision == expected


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

"""Targets of config nodes, and the errors of invalid nodes."""

import sys

import pytest
import torch
from omegaconf import OmegaConf

from headwise.attention.place import Place
from headwise.config.instantiate import instantiate, target_class
from headwise.errors import ConfigError

ADAM = {"_target_": "torch.optim.Adam", "lr": 0.1, "betas": [0.9, 0.98]}
ALPHA = {"_target_": "headwise.attention.alpha_entmax.AlphaEntmax"}
PLACE = Place("cross", 1, 2, 4)


def error_message(node, key="optimizer", **runtime):
    with pytest.raises(ConfigError) as caught:
        instantiate(node, key, **runtime)
    return str(caught.value)


def test_node_becomes_an_object_with_plain_arguments():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = instantiate(OmegaConf.create(ADAM), "optimizer", params=[weight])
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.defaults["betas"] == (0.9, 0.98)
    node = {"_target_": "headwise.config.schema.SitesConfig", "cross": [{"a": [1]}]}
    cross = instantiate(OmegaConf.create(node), "sites").cross
    assert (type(cross), type(cross[0]), type(cross[0]["a"])) == (list, dict, list)


def test_target_inside_an_argument_is_not_called(tmp_path):
    victim = tmp_path / "victim"
    nested = {"_target_": "pathlib.Path.touch", "_args_": [str(victim)]}
    node = {**ALPHA, "alpha_init": nested}
    error_message(node, "attention", place=PLACE)
    # also where the constructor accepts any value
    node = {"_target_": "headwise.config.schema.SitesConfig", "cross": nested}
    assert instantiate(node, "sites").cross == nested
    assert not victim.exists()


def test_target_of_another_kind_is_refused():
    message = error_message({"_target_": "torch.optim.Adam"}, "attention", place=PLACE)
    assert "attention._target_=torch.optim.adam.Adam" in message
    assert "place" in message


@pytest.mark.parametrize("node", [None, 3, {"lr": 1.0}, {"_target_": 3}])
def test_node_without_a_target_is_refused(node):
    assert "optimizer must be a mapping with a _target_" in error_message(node)


def test_user_packages_are_trusted_by_name(tmp_path, monkeypatch):
    (tmp_path / "toy_plugin.py").write_text("from os import _Environ\nclass Thing: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="HEADWISE_PLUGINS"):
        target_class({"_target_": "toy_plugin.Thing"}, "attention")
    monkeypatch.setenv("HEADWISE_PLUGINS", "toy_plugins")
    with pytest.raises(ConfigError, match=r"\(currently toy_plugins\)"):
        target_class({"_target_": "toy_plugin.Thing"}, "attention")
    monkeypatch.setenv("HEADWISE_PLUGINS", "other, toy_plugin,")
    assert target_class({"_target_": "toy_plugin.Thing"}, "attention").__name__ == "Thing"
    with pytest.raises(ConfigError, match="class of a trusted package"):
        target_class({"_target_": "toy_plugin._Environ"}, "attention")
    sys.modules.pop("toy_plugin")

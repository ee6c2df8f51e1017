"""Saved settings: names of classes, defaults of missing keys, renamed and unknown keys."""

import copy
from dataclasses import is_dataclass
from inspect import signature
from typing import Any, get_type_hints

import pytest
from hydra.utils import get_class

from headwise.config import saved
from headwise.config.folders import group_choices, group_node
from headwise.config.keys import OPEN_GROUPS
from headwise.config.register import SCHEMAS, typed
from headwise.config.saved import current, located, named, read_back, saved_classes
from headwise.config.schema import Config
from headwise.errors import ConfigError
from headwise.runs.fingerprint import comparable
from headwise.tasks.check import resolve
from headwise.tasks.task import task_of

Settings = dict[str, Any]


@pytest.fixture(scope="module")
def settings_of(make):
    """Map overrides to the settings that a run folder has."""
    return lambda *overrides: resolve(task_of(typed(make(overrides))))


def test_names_of_classes_are_unique():
    nodes = [group_node(group, name) for group in OPEN_GROUPS for name in group_choices(group)]
    paths = {node["_target_"] for node in nodes if "_target_" in node}
    paths |= {f"{kind.__module__}.{kind.__qualname__}" for kind in SCHEMAS.values()}
    names = sorted(path.rpartition(".")[2] for path in paths)
    assert names == sorted(set(names))


@pytest.mark.parametrize(
    "overrides",
    [
        ("attention=mixed", "data=builtin", "attention@sites.cross=softmax"),
        ("attention=linformer", "data=text", "optimizer=adamw"),
        ("data=mnist", "task=classification", "repulsion=svgd", "activation=gelu"),
    ],
)
def test_saved_settings_are_read_back(make, overrides):
    config = typed(make(overrides))
    settings = resolve(task_of(config))
    assert "headwise." not in str(settings)
    assert settings["optimizer"]["_target_"].startswith("torch.optim.")
    assert read_back(current(settings)) == config
    assert located(settings) == located(named(located(settings)))


def test_defaults_are_not_shared(settings_of):
    old = settings_of("attention=softmax")
    del old["data"]["test"]
    current(old)["data"]["test"].append("other")
    assert current(old)["data"]["test"] == []


def test_modules_may_move(settings_of):
    settings = settings_of("attention=alpha_entmax")
    moved = copy.deepcopy(settings)
    moved["attention"]["_target_"] = "headwise.old.place.AlphaEntmax"
    moved["data"]["_target_"] = "headwise.old.DataConfig"
    assert comparable(current(moved)) == comparable(current(settings))
    assert read_back(current(moved)) == read_back(current(settings))


@pytest.mark.parametrize(
    "key", ["seed", "trainer.patience", "decode.beam", "data.cleaning", "attention.alpha_min",
            "data.cleaning.max_ratio", "repulsion.sites", "model"]
)  # fmt: skip
def test_missing_keys_have_their_defaults(settings_of, key):
    settings = settings_of("attention=alpha_entmax", "repulsion=svgd", "data=builtin")
    old = copy.deepcopy(settings)
    *groups, last = key.split(".")
    node = old
    for group in groups:
        node = node[group]
    del node[last]
    if key == "model":  # has keys without defaults
        with pytest.raises(ConfigError, match=r"model\.name is missing"):
            current(old)
    else:
        assert current(old) == current(settings)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("an_old_key", "an_old_key is not known"),
        ("trainer.patienc", r"trainer.patienc is not known.* Did you mean trainer.patience\?"),
        ("decode.beams", "decode.beams is not known"),
        ("attention.alpha_start", "attention.alpha_start is not known"),
        ("sites.cross.alpha_start", "sites.cross.alpha_start is not known"),
    ],
)
def test_unknown_keys_are_rejected(settings_of, key, message):
    settings = settings_of("attention=alpha_entmax", "attention@sites.cross=alpha_entmax")
    *groups, last = key.split(".")
    node = settings
    for group in groups:
        node = node[group]
    node[last] = 1
    with pytest.raises(ConfigError, match=message):
        current(settings)


def test_unknown_classes_are_rejected(settings_of):
    settings = settings_of("attention=softmax")
    settings["attention"]["_target_"] = "Softmaxx"
    with pytest.raises(ConfigError, match=r"no class Softmaxx\. Did you mean Softmax\?"):
        current(settings)


def test_renamed_keys_and_classes_are_read(settings_of, monkeypatch):
    settings = settings_of("attention=alpha_entmax", "attention@sites.cross=alpha_entmax")
    table = {
        "TrainerConfig.waits": "patience",
        "AlphaEntmax.start": "alpha_init",
        "Config.training": "trainer",
        "Adaptive": "AlphaEntmax",
    }
    monkeypatch.setattr(saved, "RENAMED", table)
    old = copy.deepcopy(settings)
    old["training"] = old.pop("trainer")
    old["training"]["waits"] = old["training"].pop("patience")
    for node in (old["attention"], old["sites"]["cross"]):
        node |= {"_target_": "Adaptive", "start": node.pop("alpha_init")}
    assert current(old) == current(settings)


def test_removed_keys_are_left_out_or_rejected(settings_of, monkeypatch):
    settings = settings_of("attention=alpha_entmax")
    old = copy.deepcopy(settings)
    for value, readable in (("slow", {"slow": {}}), (["x"], None)):
        monkeypatch.setattr(saved, "REMOVED", {"AlphaEntmax.solver": readable})
        old["attention"]["solver"] = value
        assert current(old) == current(settings)
    for value in ("fast", ["slow"]):
        monkeypatch.setattr(saved, "REMOVED", {"AlphaEntmax.solver": {"slow": {}}})
        old["attention"]["solver"] = value
        with pytest.raises(ConfigError, match=r"attention\.solver=.* removed"):
            current(old)


def test_removed_classes_are_rejected(settings_of):
    settings = settings_of()
    settings["activation"] = {"_target_": "SiLU"}
    with pytest.raises(ConfigError, match=r"^activation\._target_=SiLU .* removed$"):
        current(settings)


@pytest.mark.parametrize(("method", "beam"), [("beam", 5), ("greedy", 1)])
def test_greedy_search_is_read_as_a_beam_of_one(settings_of, method, beam):
    settings = settings_of()
    settings["decode"] |= {"method": method, "beam": 5}
    assert current(settings) == current(settings_of(f"decode.beam={beam}"))


def test_tracker_of_an_earlier_version_is_read(settings_of):
    tracker = {"kind": "wandb", "project": None, "tags": ["demo"], "init_timeout": 20}
    assert read_back(current({**settings_of(), "tracker": tracker})).tracker == tracker


def test_removed_keys_are_absent():
    kinds = [*SCHEMAS.values(), *get_type_hints(Config).values(), Config]
    kinds = {kind.__name__: kind for kind in kinds if is_dataclass(kind)}
    for old in saved.REMOVED:
        name, _, key = old.partition(".")
        if key:
            kind = kinds.get(name) or get_class(saved_classes()[name])
            assert key not in signature(kind).parameters
        else:
            assert name not in saved_classes()


def test_renames_lead_to_keys_that_exist():
    kinds = {kind.__name__: kind for kind in (*SCHEMAS.values(), Config)}
    for old, new in saved.RENAMED.items():
        name, _, key = old.partition(".")
        assert key or new in saved_classes()
        if key and name in kinds:
            assert new in {*vars(kinds[name]), *kinds[name].__annotations__}

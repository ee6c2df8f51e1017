"""Saved settings of this and earlier versions, read back."""

import copy
from dataclasses import is_dataclass
from inspect import signature
from typing import get_type_hints

import pytest
from hydra.utils import get_class

from headwise.config import saved
from headwise.config.keys import OPEN_GROUPS
from headwise.config.register import SCHEMAS, group_choices, group_node, typed
from headwise.config.saved import current, located, named, read_back, saved_classes, saved_settings
from headwise.config.schema import Config
from headwise.errors import ConfigError
from headwise.runs.folder import comparable
from headwise.tasks.check import resolve
from headwise.tasks.task import task_of


def resolved(config):
    """The settings of a run with this config."""
    resolve(task_of(config))
    return saved_settings(config)


@pytest.fixture(scope="module")
def settings_of(make):
    """Map overrides to the settings that a run folder has."""
    return lambda *overrides: resolved(typed(make(overrides)))


def node_of(settings, key):
    """The node of a dotted key."""
    for group in key.split("."):
        settings = settings[group]
    return settings


def set_key(settings, key, value):
    group, _, last = key.rpartition(".")
    (node_of(settings, group) if group else settings)[last] = value


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
    settings = resolved(config)
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
    group, _, last = key.rpartition(".")
    del (node_of(old, group) if group else old)[last]
    if key == "model":  # has keys without defaults
        with pytest.raises(ConfigError, match=r"model\.name is missing"):
            current(old)
    else:
        assert current(old) == current(settings)


READABLE = [  # task, settings of version 0.1.0 -> those of today
    ("translation", {"decode.method": "beam"}, {}),
    ("translation", {"decode.method": "greedy"}, {"decode.beam": 1}),
    ("translation", {"decode.external": ["x"]}, {}),
    ("translation", {"trainer.gradient_sum": "x"}, {}),
    ("masked_lm", {"task.whole_words": False}, {}),
]


@pytest.mark.parametrize(("task", "old", "new"), READABLE)
def test_removed_keys_without_an_effect_are_left_out(settings_of, task, old, new):
    data = "builtin_text" if task == "masked_lm" else "builtin"
    settings = [settings_of(f"data={data}", f"task={task}") for _ in (old, new)]
    for of_version, changes in zip(settings, (old, new), strict=True):
        for key, value in changes.items():
            set_key(of_version, key, value)
    assert current(settings[0]) == current(settings[1])


REFUSED = [  # key, value -> words of the message
    ("an_old_key", 1, "an_old_key is not known"),
    ("trainer.patienc", 1, r"trainer.patienc is not known.* Did you mean trainer.patience\?"),
    ("decode.beams", 1, "decode.beams is not known"),
    ("attention.alpha_start", 1, "attention.alpha_start is not known"),
    ("sites.cross.alpha_start", 1, "sites.cross.alpha_start is not known"),
    ("attention._target_", "Softmaxx", r"no class Softmaxx\. Did you mean Softmax\?"),
    ("activation", {"_target_": "SiLU"}, r"^activation\._target_=SiLU .* removed$"),
    ("task", {"_target_": "MaskedLM", "whole_words": True}, r"task\.whole_words=.* removed"),
    ("task", {"_target_": "MaskedLM", "whole_words": [False]}, r"task\.whole_words=.* removed"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED)
def test_unknown_and_removed_settings_are_refused(settings_of, key, value, message):
    settings = settings_of("attention=alpha_entmax", "attention@sites.cross=alpha_entmax")
    set_key(settings, key, value)
    with pytest.raises(ConfigError, match=message):
        current(settings)


def test_renamed_keys_and_classes_are_read(settings_of, monkeypatch):
    settings = settings_of("attention=alpha_entmax", "attention@sites.cross=alpha_entmax")
    table = {
        "TrainerConfig.waits": "patience",
        "AlphaEntmax.start": "alpha_init",
        "Config.training": "trainer",
        "Adaptive": "AlphaEntmax",
    }
    for name, renamed in table.items():
        monkeypatch.setitem(saved.RENAMED, name, renamed)
    old = copy.deepcopy(settings)
    old["training"] = old.pop("trainer")
    old["training"]["waits"] = old["training"].pop("patience")
    for node in (old["attention"], old["sites"]["cross"]):
        node |= {"_target_": "Adaptive", "start": node.pop("alpha_init")}
    assert current(old) == current(settings)


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

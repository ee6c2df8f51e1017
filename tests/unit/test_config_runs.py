"""What a run keeps of its config: fingerprint, folder, identity, environment, saved settings."""

import copy
import getpass
import os
import pwd
import runpy
import shutil
import subprocess
from dataclasses import is_dataclass
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import get_type_hints
from unittest.mock import Mock

import pytest
from hydra.utils import get_class

from headwise.config import saved
from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import as_container
from headwise.config.keys import OPEN_GROUPS
from headwise.config.register import SCHEMAS, typed
from headwise.config.saved import current, located, named, read_back, saved_classes
from headwise.config.schema import Config, TokenizerConfig
from headwise.data.tokenizer import TokenizerPair
from headwise.data.tokenizer_training import train_tokenizer
from headwise.errors import ConfigError, RunError
from headwise.files import machine_cache_dir
from headwise.runs import environment
from headwise.runs.environment import complete_environment
from headwise.runs.fingerprint import N_DIGITS, comparable, fingerprint, slug
from headwise.runs.folder import RunFolder
from headwise.tasks.check import resolve
from headwise.tasks.identity import identity
from headwise.tasks.task import task_of


@pytest.fixture(scope="module")
def fingerprint_of(make):
    """Map overrides to a fingerprint."""
    return lambda *overrides: fingerprint(as_container(make(overrides)), {})


def test_fingerprint_ignores_settings_without_effect(fingerprint_of):
    overrides = (
        "paths.outputs=/elsewhere",
        "tracker=none",
        "+tracker.project=other",
        "experiment_name=other",
        "data.dir=/elsewhere",
        "data.test=[valid]",
        "data.tasks=[translation,density]",
        "trainer.device=cuda",
        "trainer.n_workers=3",
        "trainer.log_every=7",
        "trainer.max_updates=99999",
        "decode.max_tokens=512",
        "decode.n_best=2",
        "trainer.compile=true",
        "trainer.head_sentences=7",
        "data.vocab_size=2000",  # the default value
        "seed=1",
        "init_from=/a/run",  # its weights are in the fingerprint
    )
    assert fingerprint_of(*overrides) == fingerprint_of()


@pytest.mark.parametrize(
    "override",
    [
        "attention=softmax",
        "attention@sites.cross=softmax",
        "model.lr=0.5",  # the optimizer follows it
        "data.vocab_size=1000",  # the tokenizer follows it
        "trainer.validate_every=7",
        "decode.beam=10",
        "seed=2",
    ],
)
def test_fingerprint_depends_on_settings_of_the_run(fingerprint_of, override):
    assert fingerprint_of(override) != fingerprint_of()


def test_fingerprint_ignores_suggestions(fingerprint_of):
    text = ("data=text", "data.stride=8", "data.label_smoothing=0.0")
    other = ("data=text", "data.stride=9", "data.label_smoothing=0.2", "loss.label_smoothing=0.0")
    assert fingerprint_of(*text) == fingerprint_of(*other)
    strided = "pattern=strided"
    assert fingerprint_of(*text, strided) != fingerprint_of(*other, strided)


def test_fingerprint_depends_on_max_updates_of_cosine_schedules(fingerprint_of):
    cosine = "scheduler=cosine"
    assert fingerprint_of(cosine, "trainer.max_updates=99") != fingerprint_of(
        cosine, "trainer.max_updates=100"
    )


def test_order_of_overrides_does_not_matter(fingerprint_of):
    overrides = ["attention=softmax", "seed=3", "model.dropout=0.2"]
    assert fingerprint_of(*overrides) == fingerprint_of(*reversed(overrides))
    assert slug(overrides) == slug(reversed(overrides))


IDENTITY, SETTINGS = "0123456789abcdef", {"seed": 3, "trainer": {"max_updates": 4}}


@pytest.fixture
def started(tmp_path):
    """A run of `SETTINGS` that has started."""
    folder = RunFolder.locate(tmp_path, ["seed=3"], IDENTITY, SETTINGS)
    folder.make()
    folder.describe(SETTINGS, ["seed=3"])
    folder.write_json("data.json", {"identity": IDENTITY})
    return folder


def test_copy_beside_a_run_is_not_resumed(started):
    def located(*more, identity=IDENTITY):
        settings = {**SETTINGS, "trainer": {"max_updates": 9}}
        return RunFolder.locate(run.parent, ["seed=3", *more], identity, settings).path

    run = started.path
    assert located("trainer.accumulate=1") == run
    assert located(identity="f" * N_DIGITS) != run
    backup = shutil.copytree(run, run.parent / f"backup-{run.name}")  # before it by name
    assert located() == run
    with pytest.raises(RunError, match="are copies of one run"):
        located("trainer.accumulate=1")
    shutil.rmtree(run)
    assert located() == backup


def test_folder_of_another_run_is_refused_whatever_its_name_says(started):
    started.write_json("data.json", {"identity": "f" * N_DIGITS})  # of another text
    with pytest.raises(RunError, match="but another identity"):
        RunFolder.locate(started.path.parent, ["seed=3"], IDENTITY, SETTINGS)
    started.describe({**SETTINGS, "seed": 4}, [])
    with pytest.raises(RunError, match="but another seed"):
        RunFolder.locate(started.path.parent, ["seed=3"], IDENTITY, SETTINGS)


def test_text_tokenizers_and_varied_costs_are_part_of_the_identity(make, tmp_path):
    def of(text, *swept, folder=None):
        given = ("tokenizer=given", f"tokenizer.folder={folder}") if folder else ()
        config = make(["trainer.max_updates=7", "model.recompute=true", *given])
        corpus = SimpleNamespace(hashes=lambda: [text])
        return identity(typed(config), as_container(config), corpus, swept)

    def of_words(words, folder):
        sizes = TokenizerConfig(kind="char", vocab_size=99)
        tokenizer = train_tokenizer(iter([words] * 9), sizes)
        folder.mkdir(exist_ok=True)
        TokenizerPair(tokenizer, tokenizer, joint=True).save(folder)
        return of("a", folder=folder)["identity"]

    swept = of("a", "trainer.max_updates", "model.recompute", "seed", "paths.outputs", "data.dir")
    assert swept.pop("swept") == {"model.recompute": True, "trainer.max_updates": 7}
    one = of_words("ab cd", tmp_path / "one")
    assert of_words("ab cd", tmp_path / "other") == one, "the content, not the folder"
    another = of_words("ab ce", tmp_path / "one")
    identities = {of("a")["identity"], of("b")["identity"], swept["identity"], one, another}
    assert len(identities) == 5


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "run"),
        (["tracker=none", "paths.outputs=/x", "experiment=demo", "hydra/launcher=x"], "run"),
        (["data.test=[a,b]", "~tracker.tags"], "run"),
        (["sites.cross.chunk_size=8", "+attention.chunk_size=8", "decode.max_tokens=9"], "run"),
        (["seed=1", "attention=softmax"], "attention-softmax_seed-1"),
        (["seed=1", "model=tiny", "seed=2"], "model-tiny_seed-2"),
        (["attention@sites.cross=softmax"], "attention-sites.cross-softmax"),
        (["trainer.device=cpu", "trainer=cpu"], "trainer-cpu"),
        (["optimizer.betas=[0.9,0.98]"], "optimizer.betas-0.9-0.98"),
    ],
)
def test_slug_lists_the_overrides(overrides, expected):
    assert slug(overrides) == expected


@pytest.mark.parametrize("letter", ["x", "ä", "語", "🜚"])
def test_slug_fits_into_a_file_name(letter, tmp_path):
    overrides = [f"+attention.note{i}='{letter * 90},=+/ {letter}'" for i in range(5)]
    name = slug(overrides)
    assert len(f"{name}-01234567".encode()) <= 120
    assert not set(name) & set("=,+/' @\\\0\n")
    (tmp_path / name).mkdir()


def test_folder_without_a_run_is_named(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RunError, match=f"init_from={folder} holds no run"):
            RunFolder.existing(folder, "init_from")


def test_fingerprint_depends_on_save_every_only_with_averaging():
    def of(average, save_every):
        return fingerprint({"trainer": {"average": average, "save_every": save_every}}, {})

    assert of(0, 100) == of(0, 200)
    assert of(5, 100) != of(5, 200)


@pytest.fixture
def nameless(monkeypatch):
    """A user without an entry in the database of users, as in many containers."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError("uid not found")))
    return monkeypatch


def test_user_without_a_name_gets_one(nameless):
    nameless.setenv("HOME", "/home/x")
    complete_environment()
    assert getpass.getuser() == f"uid{os.getuid()}"


def test_user_without_a_home_is_rejected(nameless):
    nameless.setenv("HOME", "")
    with pytest.raises(ConfigError, match="set HOME=FOLDER"):
        complete_environment()


def test_figures_need_no_backend_of_a_notebook(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    complete_environment()
    assert os.environ["MPLBACKEND"] == "agg"


@pytest.mark.parametrize("name", ["HEADWISE_CACHE", "HEADWISE_DATA", "HEADWISE_NATIVE"])
def test_empty_variables_are_unset(monkeypatch, name):
    monkeypatch.setenv(name, "")
    assert machine_cache_dir() != Path()
    complete_environment()
    assert name not in os.environ


@pytest.fixture
def checkout(tmp_path):
    """Runs git in a repository that has one commit of one file."""

    def git(*arguments):
        identity = ("-c", "user.name=n", "-c", "user.email=e@f", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    shutil.copy(environment.__file__, tmp_path / "mine.py")
    git("add", "mine.py")
    git("commit", "-qm", "mine")
    return git


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commit_is_that_of_the_checkout_with_the_file(checkout, tmp_path):
    def commit_of(module):
        return runpy.run_path(str(module))["git_commit"]()

    (tmp_path / ".venv").mkdir()
    installed = shutil.copy(environment.__file__, tmp_path / ".venv")
    assert commit_of(installed) is None  # a virtual environment inside a user's repository
    expected = {"commit": checkout("rev-parse", "HEAD"), "changed": True}
    assert commit_of(tmp_path / "mine.py") == expected


# -- saved settings -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def settings_of(make):
    """Map overrides to the settings that a run folder has."""
    return lambda *overrides: resolve(task_of(typed(make(overrides))))


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

"""Configs: every yaml of every group builds its object; targets of nodes; paths in settings."""

import math
import runpy
import shutil
import sys
from contextlib import suppress
from itertools import zip_longest

import pytest
import torch
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from command_line import SMALL, read_json, small_overrides, write_corpus, write_text_corpus
from headwise.attention.place import Place
from headwise.commands.train import train
from headwise.config import register
from headwise.config.arguments import checked_arguments
from headwise.config.commands import AnalyzeConfig, AnalyzeDataConfig
from headwise.config.fields import bounded, check_bounds, with_bounds
from headwise.config.instantiate import instantiate, target_class
from headwise.config.register import KINDS, config_dir, group_choices, typed
from headwise.config.saved import saved_settings
from headwise.config.schema import DecodeConfig, WindowsConfig
from headwise.data.tokenizer import check_tokenizer_config
from headwise.decode.hypothesis import check_decode_config
from headwise.errors import ConfigError
from headwise.model.build import build_model, check_model, parts_of
from headwise.model.transformer import encoder_decoder_sites
from headwise.precision import resolve_precision
from headwise.tasks.check import checked_task, resolve
from headwise.tasks.task import task_of
from headwise.track.base import Tracker
from headwise.train.distributed import choose_device
from headwise.train.optim import build_optimizer
from published_images import random_images, write_pictures

GROUPS = sorted(
    path.name
    for path in config_dir().iterdir()
    if path.is_dir() and path.name not in ("experiment", "study", "shared")
)
EXPERIMENTS = sorted(
    str(path.relative_to(config_dir() / "experiment").with_suffix(""))
    for path in (config_dir() / "experiment").rglob("*.yaml")
)
# The small run of experiments on density data, whatever its kind.
DENSITY = (
    *(
        o
        for o in SMALL
        if o.partition(".")[0] in ("model", "trainer=debug", "trainer", "tracker=none")
    ),
    *("data=text", "tokenizer=byte", "data.file=null", "data.split=[]", "data.window=16"),
    *("data.stride=4", "decode.min_context=0", "positions=attention_dims", "positions.width=4"),
    *("model.layers=1", "model.qk_width=null", "trainer.max_tokens=32", "trainer.accumulate=1"),
    "scheduler.warmup_updates=1",
)
# The same for labelled text.
LABELLED = (
    *(o for o in SMALL if o.partition(".")[0] in ("model", "trainer=debug", "trainer")),
    *("data.max_length=16", "tokenizer=byte", "model.layers=1", "tracker=none"),
    "scheduler.warmup_updates=1",
)
SMALL_MODEL = ("model.d_model=16", "model.n_heads=2", "model.d_ff=16")


def every(group):
    return pytest.mark.parametrize("choice", group_choices(group))


# The n-th choice of every group at once, since composing takes longer than checking.
CHOICES = [
    [choice for choice in choices if choice is not None]
    for choices in zip_longest(
        *([f"{group}={choice}" for choice in group_choices(group)] for group in GROUPS)
    )
]


@pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: choices[0])
def test_every_choice_composes(make, choices):
    languages = ["data.source=de", "data.target=en"] if "data=files" in choices else []
    folder = ["tokenizer.folder=RUN"] if "tokenizer=given" in choices else []
    config = make([*choices, *languages, *folder])
    OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    built = typed(config)
    check_bounds(built)
    check_tokenizer_config(built.tokenizer)
    instantiate(built.tracker, "tracker", Tracker).check()
    if isinstance(built.decode, DecodeConfig):  # windows are tested with their data
        check_decode_config(built.decode)


@pytest.mark.parametrize(
    ("group", "choice"),
    [(g, c) for g in ("norm", "activation", "init") for c in group_choices(g)],
)
def test_every_choice_is_in_the_model(make, group, choice):
    config = typed(make([f"{group}={choice}", "model.share_embeddings=none", *SMALL_MODEL]))
    modules = [*build_model(config, 12, 12, joint=True).modules(), parts_of(config).init]
    kinds = {f"{type(module).__module__}.{type(module).__qualname__}" for module in modules}
    assert getattr(config, group)["_target_"] in kinds


@every("model")
def test_every_model_builds(make, choice):
    config = typed(make([f"model={choice}", "attention=softmax"]))
    check_model(config, encoder_decoder_sites(config.model), {})
    with torch.device("meta"):
        model = build_model(config, 100, 100, joint=True)
    assert len(model.encoder.layers) == config.model.encoder_layers


@every("positions")
def test_scaling_and_positions_are_checked_without_values(make, choice):
    for scaling in ("length", "ssmax scaling.heads=without_positions"):
        task = typed(make(f"positions={choice} scaling={scaling}".split()))
        with suppress(ConfigError):  # what does not fit is refused
            checked_task(task)


@every("optimizer")
def test_every_optimizer_builds_without_weight_decay_of_vectors(make, choice):
    config = make([f"optimizer={choice}", "optimizer.weight_decay=0.5"])
    optimizer = build_optimizer(config.optimizer, torch.nn.Linear(2, 2))
    decay = {p.ndim: g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decay == {2: 0.5, 1: 0.0}
    assert optimizer.param_groups[0]["lr"] == config.model.lr


@every("scheduler")
def test_every_scheduler_warms_up_to_its_peak_and_then_falls(make, choice):
    node = make([f"scheduler={choice}", "trainer.max_updates=1000"]).scheduler
    node.warmup_updates = 100
    schedule = instantiate(node, "scheduler")
    rates = [schedule.learning_rate(update, 1e-3) for update in range(1, 1001)]
    peak = 2 * 128**-0.5 * 100**-0.5 if choice == "noam" else 1e-3
    assert (rates[99], rates[49], rates[0]) == pytest.approx((peak, peak / 2, peak / 100))
    assert rates[99:] == sorted(rates[99:], reverse=True)
    assert (rates[-1] < peak) == (choice != "constant")


@pytest.mark.slow
@pytest.mark.parametrize("choice", EXPERIMENTS)
def test_experiments_train(make, choice, tmp_path, monkeypatch):
    # figures take a second per run and do not depend on the experiment
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)
    write_corpus(tmp_path / "text")
    # values of an experiment override groups on the command line, so each key is set
    cadence = [f"trainer.{key}=1" for key in ("log_every", "validate_every", "save_every")]
    few = ["trainer.max_updates=2", "trainer.keep=5", "trainer.average=2"]
    small = small_overrides(tmp_path, *cadence, *few, "data.test=[test_a]")
    paths = (f"data.dir={tmp_path / 'text'}", f"paths.outputs={tmp_path / 'outputs'}")
    labelled = "encoder_small/origin", "encoder_small/spam"
    on_text = "child2019", "demo_masked_lm", "encoder_small"
    if choice.startswith(on_text) and choice not in labelled:
        write_text_corpus(tmp_path / "text")
        small = [*DENSITY, "data.column=null", *cadence, *few, *paths]
    elif choice in labelled:
        for split in ("train", "valid", "test"):
            rows = "label\ttext\nyes\tgood\nno\tbad\n"
            (tmp_path / "text" / f"{split}.tsv").write_text(rows, encoding="utf-8")
        small = [*LABELLED, *cadence, *few, *paths]
    if choice.startswith("length/"):
        few = [*few, "data.n_test=2", "data.test_lengths=[16]", "trainer.max_tokens=200"]
        few.append("scheduler.warmup_updates=1")
    if choice.startswith(("demo_classification", "length/")):
        small = [*cadence, *few, *SMALL_MODEL, f"paths.outputs={tmp_path}", "tracker=none"]
    if choice == "mnist":
        classes = {label: random_images(3, 8, 8, 1) for label in ("0", "1")}
        for split in ("train", "valid", "test"):
            write_pictures(tmp_path / "images" / split, classes)
        data = ("data=image_folder", f"data.dir={tmp_path / 'images'}", "data.shape=[8,8,1]")
        paths = (f"paths.outputs={tmp_path / 'outputs'}", f"paths.cache={tmp_path / 'cache'}")
        sizes = (*SMALL_MODEL, "tracker=none", "scheduler.warmup_updates=1")
        small = [*data, *cadence, *few, *paths, *sizes]
    overrides = [f"experiment={choice}", *small]
    run = train(typed(make(overrides)), overrides)
    assert run.parent.name == choice.split("/")[0]
    assert read_json(run / "results.json")["updates"] == 2


def test_no_experiment_is_a_part_of_others():
    texts = [path.read_text(encoding="utf-8") for path in config_dir().rglob("*.yaml")]
    # without the package that a part is put into
    defaults = [line.strip().partition("@")[0] for text in texts for line in text.splitlines()]
    assert not [line for line in defaults if line.startswith("- /experiment/")]
    parts = {f"- /shared/{path.stem}" for path in (config_dir() / "shared").glob("*.yaml")}
    assert parts <= set(defaults)


def test_one_site_can_be_changed(make):
    config = typed(make(["attention@sites.cross=softmax", *SMALL_MODEL]))
    for site, _, attention in build_model(config, 12, 12, joint=True).attentions():
        expected = "Softmax" if site == "cross" else "AlphaEntmax"
        assert type(attention.normaliser).__name__ == expected


@pytest.mark.parametrize("depends_on", ["head", "query"])
@pytest.mark.parametrize(("share", "n_free"), [("none", 2 * 3 * 2), ("layer", 2 * 3), ("site", 3)])
def test_alpha_is_shared_as_configured(make, share, n_free, depends_on):
    chosen = (f"attention.share={share}", f"attention.depends_on={depends_on}")
    config = typed(make([*chosen, "attention.alpha_init=1.3", *SMALL_MODEL]))
    model = build_model(config, 12, 12, joint=True)
    alpha_parameters = [
        parameter for name, parameter in model.named_parameters() if ".alpha_" in name
    ]
    n_each = 1 if depends_on == "head" else 1 + 8  # a map of queries has a weight per dimension
    assert sum(parameter.numel() for parameter in alpha_parameters) == n_free * n_each
    for _, _, attention in model.attentions() if depends_on == "head" else ():
        torch.testing.assert_close(attention.stats()["alpha"], torch.full((2,), 1.3))


@pytest.mark.parametrize("name", ["evaluate", "translate"])
def test_decode_config_of_a_command_lists_every_key(make, name):
    listed = set(make([], name).decode)
    every_key = set(DecodeConfig.__dataclass_fields__) - {"_target_"}
    every_window_key = set(WindowsConfig.__dataclass_fields__) - {"_target_"}
    assert listed == (every_key | every_window_key if name == "evaluate" else every_key)


def test_own_choice_may_have_the_name_of_a_removed_one():
    arguments = ["activation=silu", "--config-dir", "mine"]
    assert set(checked_arguments(arguments, "train")) == set(arguments)
    with pytest.raises(ConfigError, match="use activation=gelu"):
        checked_arguments(arguments[:1], "train")


def test_packaged_configs_take_precedence(tmp_path):
    package = tmp_path / "src" / "headwise"
    (package / "config").mkdir(parents=True)
    (tmp_path / "conf").mkdir()
    copied = shutil.copy(register.__file__, package / "config" / "register.py")
    of_copy = runpy.run_path(copied)["config_dir"]
    assert of_copy() == tmp_path / "conf"
    (package / "conf").mkdir()
    assert of_copy() == package / "conf"


def test_auto_settings_are_resolved_before_the_run_is_named(make):
    node = make(["attention=softmax", "trainer.precision=auto", "decode.precision=auto"])
    config = typed(node)
    resolve(task_of(config))
    container = saved_settings(config)
    expected = resolve_precision("auto", choose_device("auto"))
    for group, part in (("trainer", config.trainer), ("decode", config.decode)):
        assert container[group]["precision"] == part.precision == expected


# -- targets of nodes -----------------------------------------------------------------------------

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


# -- paths: `~` and `-` ---------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("limits", "words", "inside", "outside"),
    [
        ((1,), "at least 1", (1, math.inf), (0, -math.inf, math.nan)),
        ((0, 1), "in [0, 1]", (0, 1), (-0.1, 1.1, math.nan)),
        ((None, 1, 0), "in (0, 1]", (0.1, 1), (0, 1.1)),
        ((0, None, None, 1), "in [0, 1)", (0, 0.9), (-0.1, 1)),
        ((1, None, None, 2**53), "at least 1 and below 2^53", (1, 2**53 - 1), (0, 2**53)),
        ((0, None, None, math.inf), "at least 0 and finite", (0, 1e300), (-1, math.inf)),
    ],
)
def test_bounds_are_in_words_what_they_accept(limits, words, inside, outside):
    bounds = bounded(1, *limits).metadata["bounds"]
    assert str(bounds) == words
    assert all(value in bounds for value in inside)
    assert not any(value in bounds for value in outside)


def test_bounds_of_nested_keys_are_in_help_and_checked():
    text = with_bounds("'n': 16\nseed: 1\ndata:\n  split: null\n  sentences: 3", AnalyzeConfig)
    assert text.splitlines()[-1] == "  sentences: 3  # null or at least 1"
    assert text.count("#") == 1
    with pytest.raises(ConfigError, match=r"^data\.sentences must be null or at least 1, got 0$"):
        check_bounds(AnalyzeConfig(data=AnalyzeDataConfig(sentences=0)))

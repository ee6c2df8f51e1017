"""Every yaml of every group composes and builds its object."""

from itertools import zip_longest

import pytest
import torch
from omegaconf import OmegaConf

from command_line import SMALL, read_json, small_overrides, write_corpus, write_text_corpus
from headwise.commands.train import train
from headwise.config.arguments import checked_arguments
from headwise.config.folders import config_dir, group_choices
from headwise.config.instantiate import instantiate
from headwise.config.register import typed
from headwise.config.schema import DecodeConfig, WindowsConfig
from headwise.data.tokenizer_training import check_tokenizer_config
from headwise.decode.hypothesis import check_decode_config
from headwise.errors import ConfigError
from headwise.model.build import build_model, check_model, parts_of
from headwise.model.transformer import encoder_decoder_sites
from headwise.precision import resolve_precision
from headwise.tasks.check import resolve
from headwise.tasks.task import task_of
from headwise.track.base import Tracker
from headwise.train.distributed import choose_device
from headwise.train.optim import build_optimizer
from headwise.train.trainer import check_trainer_config
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
    check_tokenizer_config(built.tokenizer)
    check_trainer_config(built.trainer)
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


@every("optimizer")
def test_every_optimizer_builds_without_weight_decay_of_vectors(make, choice):
    config = make([f"optimizer={choice}", "optimizer.weight_decay=0.5"])
    optimizer = build_optimizer(config.optimizer, torch.nn.Linear(2, 2))
    decay = {p.ndim: g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decay == {2: 0.5, 1: 0.0}
    assert optimizer.param_groups[0]["lr"] == config.model.lr


@every("scheduler")
def test_every_scheduler_gives_a_finite_positive_learning_rate(make, choice):
    schedule = instantiate(make([f"scheduler={choice}"]).scheduler, "scheduler")
    learning_rates = [schedule.learning_rate(update, 1e-3) for update in (1, 10, 1000)]
    assert all(0 < learning_rate < 1 for learning_rate in learning_rates)


@pytest.mark.slow
@pytest.mark.parametrize("choice", EXPERIMENTS)
def test_experiments_train(make, choice, tmp_path, monkeypatch):
    # figures take a second per run and do not depend on the experiment
    monkeypatch.setattr("headwise.commands.train.draw", lambda folder, tracker: None)
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


def test_packaged_configs_take_precedence(tmp_path, monkeypatch):
    package = tmp_path / "src" / "headwise"
    package.mkdir(parents=True)
    (tmp_path / "conf").mkdir()
    monkeypatch.setattr("headwise.config.folders.__file__", str(package / "config" / "folders.py"))
    assert config_dir() == tmp_path / "conf"
    (package / "conf").mkdir()
    assert config_dir() == package / "conf"


def test_auto_settings_are_resolved_before_the_run_is_named(make):
    node = make(["attention=softmax", "trainer.precision=auto", "decode.precision=auto"])
    config = typed(node)
    container = resolve(task_of(config))
    expected = resolve_precision("auto", choose_device("auto"))
    for group, part in (("trainer", config.trainer), ("decode", config.decode)):
        assert container[group]["precision"] == part.precision == expected

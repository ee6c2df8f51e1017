"""`headwise train` except training itself: help, dry run, user-defined variants."""

import re
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from omegaconf import OmegaConf

from command_line import (
    assert_rejected,
    break_alignment,
    read_json,
    run_folders,
    small_overrides,
    train_small,
    write_corpus,
)
from headwise.analysis.tables import OTHERS
from headwise.attention.build import unsupported_sites
from headwise.cli import COMMANDS
from headwise.config.register import group_choices, group_node
from headwise.config.schema import SITES
from headwise.errors import RunError
from headwise.runs.record import Record
from headwise.tasks.check import warn_of_warmup
from headwise.tasks.data import warn_of_small_text
from headwise.track.jsonl import read_jsonl
from training_runs import ROOT, run_python

TOY = '''
import torch

from headwise.attention.normaliser import Normaliser


class Uniform(Normaliser):
    """Equal weights on all that may be seen; `scale` does nothing."""

    unsupported = {UNSUPPORTED}

    def __init__(self, place, scale: float = 1.0) -> None:
        super().__init__(place)

    def stats(self):
        return {"evenness": torch.arange(self.place.n_heads) + 0.5}

    def forward(self, scores_BHQK, context):
        mask = context.dense_mask(scores_BHQK)
        allowed = scores_BHQK.new_ones(scores_BHQK.shape)
        if mask is not None:
            allowed = allowed * mask
        return allowed / allowed.sum(-1, keepdim=True).clamp(min=1) + 0 * scores_BHQK
'''


def toy(folder, monkeypatch, module, unsupported="{}"):
    """Write a variant in a user folder: module and yaml; returns the options to use it."""
    (folder / "conf" / "attention").mkdir(parents=True)
    text = TOY.replace("{UNSUPPORTED}", unsupported)
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    node = f"_target_: {module}.Uniform\nscale: 2.0\n"
    (folder / "conf" / "attention" / "uniform.yaml").write_text(node, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("HEADWISE_PLUGINS", module)
    return ["--config-dir", str(folder / "conf")]


def test_user_defined_variant_trains_and_translates(headwise, tmp_path, monkeypatch):
    toy_options = toy(tmp_path, monkeypatch, "toy_uniform")
    write_corpus(tmp_path / "text")
    result = headwise.ok("train", *toy_options, *small_overrides(tmp_path, "attention=uniform"))
    (run,) = run_folders(tmp_path / "outputs")
    repeated = headwise("train", *toy_options, *small_overrides(tmp_path, "attention=uniform"))
    assert "is finished" in repeated.out
    longer = (
        *toy_options,
        *small_overrides(tmp_path, "attention=uniform", "trainer.max_updates=3"),
    )
    (run / "environment.json").write_text("", encoding="utf-8")  # not needed for resuming
    headwise.ok("train", *longer)
    kernels = read_json(run / "environment.json")["kernels"]
    assert {"losses", "dropout", "linear maps"} <= kernels.keys()
    expected = {site: [[0.5, 1.5]] for site in SITES}
    logged = [row for row in read_jsonl(run / "heads.jsonl") if "evenness" in row]
    assert [row["update"] for row in logged] == [0, 1, 2, 3]  # as often as α
    assert all(row["evenness"] == expected for row in logged)
    headwise.ok("analyze", f"run={run}")
    rows = [row for row in OTHERS.read(Record(run)) if row["statistic"] == "evenness"]
    assert [row["value"] for row in rows] == [0.5, 1.5] * len(SITES)
    result = headwise("translate", f"run={run}", f"input={tmp_path}/text/test_b.de")
    assert (result.code, len(result.out.splitlines())) == (0, 4)
    monkeypatch.delenv("HEADWISE_PLUGINS")
    result = headwise("translate", f"run={run}", f"input={tmp_path}/text/test_b.de")
    assert_rejected(result, 2, "HEADWISE_PLUGINS")


def test_arguments_and_limits_of_variant_are_checked(headwise, tmp_path, monkeypatch):
    limits = '{"causal": "it looks ahead"}'
    toy_options = toy(tmp_path, monkeypatch, "toy_limited", limits)
    small = small_overrides(tmp_path)  # its data.dir does not exist
    result = headwise("train", *toy_options, *small, "attention=uniform")
    assert_rejected(result, 2, "toy_limited.Uniform cannot be used at decoder_self: it looks ahead")
    nodes = {name: group_node("attention", name) for name in group_choices("attention")}
    usable = [n for n in nodes if "decoder_self" not in unsupported_sites(nodes[n], "attention")]
    assert f"attention@sites.decoder_self={'|'.join(usable)}\n" in result.err
    cross = "attention@sites.cross=uniform"
    result = headwise("train", *toy_options, *small, cross, "sites.cross.scale=wide")
    assert_rejected(result, 2, "sites.cross.scale must be a number, got 'wide'")
    headwise.ok("train", *toy_options, *small, cross, "dry_run=true")


@pytest.mark.parametrize(
    ("n_rows", "changes", "expected"),
    [
        (9_000, {}, "vocab_size=4000 (now 8000) and trainer.max_updates=5000 (now 10000)"),
        (9_000, {"init_from": "RUN"}, "set at most trainer.max_updates=5000 (now 10000)"),
        (20_000, {}, ""),
    ],
)
def test_settings_of_a_large_text_are_named_for_a_small_one(n_rows, changes, expected, caplog):
    given = {"init_from": None, "trainer": {"max_updates": 10_000}, "tokenizer": {"folder": None}}
    config = OmegaConf.create({**given, **changes})
    warn_of_small_text(config, n_rows, {"source": 500, "target": 8_000})
    assert [expected in message for message in caplog.messages] == [True] * bool(expected)


def test_dry_run_prints_the_cost_and_writes_nothing(headwise, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = headwise.ok("train", *small_overrides(tmp_path, "dry_run=true"))
    for text in ("parameters", "FLOP", "GiB of weights", "which need the data: "):
        assert text in result.out
    assert "scheduler.warmup_updates=1000 is more than trainer.max_updates=2" in result.out
    warn_of_warmup(SimpleNamespace(warmup_updates=None), 1)  # of a user's class
    dry = small_overrides(tmp_path, "dry_run=true", "scheduler.warmup_updates=2")
    assert "warmup" not in headwise("train", *dry).out
    assert_rejected(headwise("train", *dry, "init_from=nowhere"), 1, "init_from=nowhere")
    result = headwise("train", *small_overrides(tmp_path, "dry_run=true", "trainer.device=cuda"))
    assert (result.code, "FLOP" in result.out) == (0, True), "for a GPU of another machine"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_dry_run_measures_a_run_and_changes_nothing(headwise, tmp_path, monkeypatch):
    write_corpus(tmp_path / "text")
    monkeypatch.setattr("headwise.tasks.dry_run.SECONDS", 0.3)
    (tmp_path / "folders").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "folders"))
    before = train_small(tmp_path, f"paths.outputs={tmp_path / 'before'}")
    settings = small_overrides(tmp_path, "trainer.max_updates=1200", "scheduler.warmup_updates=2")
    printed = headwise.ok("train", *settings, "dry_run=true").out
    minutes, gib = re.findall(r"about ([\d.]+) (?:min on this machine|GiB of memory)", printed)
    assert float(minutes) > 0
    assert 0.1 < float(gib) < 100
    assert not (tmp_path / "outputs").exists()
    assert not list((tmp_path / "folders").iterdir())
    monkeypatch.setattr("headwise.tasks.dry_run.peak_memory", lambda device: lambda: None)
    printed = headwise.ok("train", *settings, "dry_run=true").out
    assert "min on this machine" in printed
    assert "memory of this process" not in printed, "where the system does not tell"
    after = train_small(tmp_path)
    weights = [torch.load(run / "checkpoints/last.pt")["model"] for run in (before, after)]
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_dry_run_downloads_nothing(headwise, tmp_path):
    settings = f"paths.cache={tmp_path}", "tracker=none", "dry_run=true"
    printed = headwise.ok("train", "data=tinyshakespeare", "model=tiny", *settings).out
    assert "a dry run downloads nothing" in printed


@pytest.mark.parametrize("dry_run", ["true", "false"])
def test_compiled_training_needs_a_compiler(dry_run, headwise, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-compiler")
    more = ("trainer.compile=true", "trainer.device=cpu", f"dry_run={dry_run}")
    result = headwise("train", *small_overrides(tmp_path, *more))
    assert_rejected(result, 2, "trainer.compile must be false", "no no-compiler: install g++")
    of_gpu = small_overrides(tmp_path, more[0], "trainer.device=cuda", "dry_run=true")
    assert headwise("train", *of_gpu).code == 0, "for a GPU of another machine"


def test_training_uses_prepared_data(headwise, tmp_path):
    write_corpus(tmp_path / "text", n_train=210)
    result = headwise.ok("prepare", *small_overrides(tmp_path))
    assert "test sets: test_a, test_b" in result.out
    assert not (tmp_path / "outputs").exists()
    result = headwise.ok("train", *small_overrides(tmp_path))
    assert "training the bpe tokenizer" not in result.out
    (run,) = run_folders(tmp_path / "outputs")
    assert f"\ntranslate   headwise translate run={run}\n" in result.out, "the results"


def test_help_imports_no_torch_and_writes_nothing(tmp_path):
    result = run_python(["-X", "importtime", ROOT / "train.py", "--help"], tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith("usage: headwise train key=value")
    assert "Hydra" not in result.stdout
    assert "\nshared: " not in result.stdout
    for group in ("attention", "data", "model", "experiment"):
        assert f"{group}: {', '.join(group_choices(group))}" in result.stdout
    assert result.stdout.count("  headwise train ") >= 3
    imported = {line.split("|")[-1].strip() for line in result.stderr.splitlines()}
    assert "hydra" in imported
    assert not imported & {"torch", "datasets", "wandb", "matplotlib"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, headwise):
    result = headwise.ok(command, "--help")
    assert "Hydra" not in result.out
    assert command != "table" or all(name in result.out for name in group_choices("study"))


def test_console_command_prints_version_and_commands(headwise):
    assert headwise("--version").out.startswith("headwise ")
    result = headwise.ok("--help")
    commands = "train,prepare,evaluate,translate,predict,sample,prune,analyze"
    assert f"{{{commands},table,figures,page,compare,runs}}" in result.out


def test_failed_run_has_error_json(headwise, tmp_path, monkeypatch):
    write_corpus(tmp_path / "text")
    with monkeypatch.context() as patch:
        fail = Mock(side_effect=RunError("no figure"))
        patch.setattr("headwise.commands.training_run.choose_weights", fail)
        assert_rejected(headwise("train", *small_overrides(tmp_path)), 1, "no figure")
    (error_file,) = (tmp_path / "outputs").glob("*/*/error.json")
    assert read_json(error_file)["error"] == "RunError"
    headwise.ok("train", *small_overrides(tmp_path))
    assert (error_file.parent / "results.json").exists()
    assert not error_file.exists()


@pytest.mark.parametrize("failure", ["text", "train.en", "vocab_size"])
def test_failed_data_leaves_no_folder(headwise, tmp_path, failure):
    """No text; misaligned files; a vocabulary that the text does not reach."""
    if failure != "text":
        write_corpus(tmp_path / "text")
    if failure == "train.en":
        break_alignment(tmp_path / "text")
    size = 9000 if failure == "vocab_size" else 60
    result = headwise("train", *small_overrides(tmp_path, f"tokenizer.vocab_size={size}"))
    assert failure in result.err
    assert not (tmp_path / "outputs").exists()


def test_run_interrupted_at_its_figures_has_results_and_draws_them(headwise, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    write_corpus(tmp_path / "text")
    with monkeypatch.context() as patch:
        patch.setattr("headwise.commands.training_run.draw", interrupt)
        assert headwise("train", *small_overrides(tmp_path)).code == 130
    (results,) = (tmp_path / "outputs").glob("*/*/results.json")
    assert "this run is finished" not in headwise.ok("train", *small_overrides(tmp_path)).out
    assert (results.parent / "figures").is_dir()
    assert "this run is finished" in headwise.ok("train", *small_overrides(tmp_path)).out

"""`headwise train` beside training itself: help, dry run, variants of one's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from command_line import CommandLine, assert_rejected, run_folders, small_overrides, write_corpus
from headwise.analysis.tables import FOLDER, OTHERS
from headwise.attention.build import unsupported_sites
from headwise.config.folders import group_choices, group_node
from headwise.config.schema import SITES
from headwise.files import read_json
from headwise.tasks.settings import _warn_of_warmup
from headwise.track.jsonl import read_jsonl
from training_runs import ROOT, run_python

TOY = '''
import torch

from headwise.attention.parts import Normaliser


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


def toy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, unsupported: str = "{}"
) -> list[str]:
    """A variant outside of the tree: its module, its yaml; the arguments that find both."""
    (folder / "conf" / "attention").mkdir(parents=True)
    text = TOY.replace("{UNSUPPORTED}", unsupported)
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    node = f"_target_: {module}.Uniform\nscale: 2.0\n"
    (folder / "conf" / "attention" / "uniform.yaml").write_text(node, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("HEADWISE_PLUGINS", module)
    return ["--config-dir", str(folder / "conf")]


def test_a_variant_of_ones_own_trains_and_translates(
    headwise: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = toy(tmp_path, monkeypatch, "toy_uniform")
    write_corpus(tmp_path / "text")
    ended = headwise.ok("train", *found, *small_overrides(tmp_path, "attention=uniform"))
    (run,) = run_folders(tmp_path / "outputs")
    again = headwise("train", *found, *small_overrides(tmp_path, "attention=uniform"))
    assert "is finished" in again.out
    longer = (*found, *small_overrides(tmp_path, "attention=uniform", "trainer.max_updates=3"))
    (run / "environment.json").write_text("", encoding="utf-8")  # a record that nothing needs
    headwise.ok("train", *longer)
    kernels = read_json(run / "environment.json")["kernels"]
    assert {"losses", "dropout", "linear maps"} <= kernels.keys()
    known = {site: [[0.5, 1.5]] for site in SITES}
    records = [row for row in read_jsonl(run / "heads.jsonl") if "evenness" in row]
    assert [row["update"] for row in records] == [0, 1, 2, 3]  # as often as α would be
    assert all(row["evenness"] == known for row in records)
    headwise.ok("analyze", f"run={run}")
    told = [row for row in OTHERS.read(run / FOLDER) if row["statistic"] == "evenness"]
    assert [row["value"] for row in told] == [0.5, 1.5] * len(SITES)
    ended = headwise("translate", f"run={run}", f"input={tmp_path}/text/test_b.de")
    assert (ended.code, len(ended.out.splitlines())) == (0, 4)
    monkeypatch.delenv("HEADWISE_PLUGINS")
    ended = headwise("translate", f"run={run}", f"input={tmp_path}/text/test_b.de")
    assert_rejected(ended, 2, "HEADWISE_PLUGINS")


def test_its_arguments_and_its_limits_are_checked(
    headwise: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = '{"causal": "it looks ahead"}'
    found = toy(tmp_path, monkeypatch, "toy_limited", limit)
    small = small_overrides(tmp_path)  # whose data.dir does not exist
    ended = headwise("train", *found, *small, "attention=uniform")
    assert_rejected(ended, 2, "toy_limited.Uniform cannot be used at decoder_self: it looks ahead")
    nodes = {name: group_node("attention", name) for name in group_choices("attention")}
    able = [n for n in nodes if "decoder_self" not in unsupported_sites(nodes[n], "attention")]
    assert f"attention@sites.decoder_self={'|'.join(able)}\n" in ended.err
    cross = "attention@sites.cross=uniform"
    ended = headwise("train", *found, *small, cross, "sites.cross.scale=wide")
    assert_rejected(ended, 2, "sites.cross.scale must be of type float, got 'wide'")
    headwise.ok("train", *found, *small, cross, "dry_run=true")


def test_a_dry_run_tells_the_cost_and_touches_nothing(
    headwise: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = headwise.ok("train", *small_overrides(tmp_path, "dry_run=true"))
    for wanted in ("parameters", "FLOP", "GiB of weights", "activations"):
        assert wanted in ended.out
    assert "scheduler.warmup_updates=1000 is more than trainer.max_updates=2" in ended.out
    # a schedule of the user's own may have anything under that name
    _warn_of_warmup(SimpleNamespace(warmup_updates=None), 1)
    dry = small_overrides(tmp_path, "dry_run=true", "scheduler.warmup_updates=2")
    assert "warmup" not in headwise("train", *dry).out
    assert_rejected(headwise("train", *dry, "init_from=nowhere"), 1, "init_from=nowhere")
    ended = headwise("train", *small_overrides(tmp_path, "dry_run=true", "trainer.device=cuda"))
    assert (ended.code, "FLOP" in ended.out) == (0, True), "for a GPU that is elsewhere"
    assert list(tmp_path.iterdir()) == []


def test_the_same_command_again_says_that_it_is_done(headwise: CommandLine, tmp_path: Path) -> None:
    write_corpus(tmp_path / "text")
    headwise.ok("train", *small_overrides(tmp_path))
    (run,) = run_folders(tmp_path / "outputs")
    files = [path for path in run.rglob("*") if path.name != ".lock"]
    before = {path: path.stat().st_mtime_ns for path in files}
    # in another order, with a default spelt out
    again = [*reversed(small_overrides(tmp_path)), "seed=1"]
    ended = headwise.ok("train", *again)
    assert f"this run is finished: {run}" in ended.out
    assert {path: path.stat().st_mtime_ns for path in files} == before
    assert run_folders(tmp_path / "outputs") == [run]


def test_prepare_alone_makes_what_training_uses(headwise: CommandLine, tmp_path: Path) -> None:
    write_corpus(tmp_path / "text", n_train=210)
    ended = headwise.ok("prepare", *small_overrides(tmp_path))
    assert "test sets: test_a, test_b" in ended.out
    assert "GiB at the peak" in ended.out
    assert not (tmp_path / "outputs").exists()
    ended = headwise.ok("train", *small_overrides(tmp_path))
    assert "training the bpe tokenizer" not in ended.out


def test_help_is_ours_quick_and_leaves_nothing(tmp_path: Path) -> None:
    ended = run_python(["-X", "importtime", ROOT / "train.py", "--help"], tmp_path)
    assert ended.returncode == 0
    assert ended.stdout.startswith("usage: headwise train key=value")
    assert "Hydra" not in ended.stdout
    for group in ("attention", "data", "model", "experiment"):
        assert f"{group}: {', '.join(group_choices(group))}" in ended.stdout
    assert ended.stdout.count("  headwise train ") >= 3
    imported = {line.split("|")[-1].strip() for line in ended.stderr.splitlines()}
    assert "hydra" in imported
    assert not imported & {"torch", "datasets", "wandb", "matplotlib"}
    assert list(tmp_path.iterdir()) == []


OF_REPORT = ("paper=NAME", "page=true", "figures=true", "launch=true", "correia2019_small")


@pytest.mark.parametrize(
    "command", ["evaluate", "translate", "prepare", "prune", "analyze", "report"]
)
def test_every_command_has_help(command: str, headwise: CommandLine) -> None:
    ended = headwise.ok(command, "--help")
    assert ended.out.count("headwise ") >= 4
    assert "Hydra" not in ended.out
    assert command != "report" or all(text in ended.out for text in OF_REPORT)


def test_the_config_can_be_shown(headwise: CommandLine) -> None:
    ended = headwise.ok("train", "--cfg", "job", "attention=softmax")
    assert "_target_: headwise.attention.softmax.Softmax" in ended.out
    assert "hydra:" not in ended.out


def test_the_console_command_tells_its_own(headwise: CommandLine) -> None:
    assert headwise("--version").out.startswith("headwise ")
    ended = headwise.ok("--help")
    assert "{train,prepare,evaluate,translate,prune,analyze,report}" in ended.out

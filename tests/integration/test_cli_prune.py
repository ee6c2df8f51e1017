"""`headwise prune`: tables of heads, and pruned runs for all other commands."""

import csv
import json
import shutil

import pytest
import torch
import yaml
from omegaconf import OmegaConf

import headwise as package
from command_line import (
    assert_rejected,
    composer,
    read_json,
    small_overrides,
    train_small,
)
from headwise.analysis.pruning import masked, present_heads
from headwise.commands import prune as pruning
from headwise.config.register import typed
from headwise.errors import HeadwiseError, RunError
from headwise.train.checkpoint import load_checkpoint

SITES = ("encoder_self", "decoder_self", "cross")
SENTENCE = "Hund sieht Haus"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_small(tmp_path_factory.mktemp("run"), "model.n_heads=4")


def train_on(trained, heads, *overrides):
    """Train the small run on the same text with `model.heads`."""
    from headwise.commands.train import train

    arguments = small_overrides(trained.parents[2], "model.n_heads=4", *overrides)
    with composer() as make:
        config = make(arguments)
        config.model.heads = heads
        run = train(typed(config), arguments)
    assert run is not None
    return run


def logits(run, heads=None):
    """Logits of a run's model with all heads but `heads` masked."""
    model = package.load(str(run), device="cpu").model
    ids = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0]])
    with torch.no_grad(), masked(model, heads or present_heads(model)):
        output = model(ids, torch.tensor([5, 3]), ids)
    return output


def test_tables_are_written_without_a_run(headwise, run):
    result = headwise("prune", f"run={run}", "table=true", "ablation=true")
    assert (result.code, result.err) == (0, "")
    assert sorted(path.name for path in (run / "pruning").iterdir()) == sorted(
        ["importance.json"]
        + [
            f"{name}.{end}"
            for name in ("curve", "one_removed", "one_left")
            for end in ("csv", "json")
        ]
    )
    importance = read_json(run / "pruning" / "importance.json")
    assert importance["sentences"] == 6
    assert importance["split"] == "valid"
    for site in SITES:
        ((*raw,),), ((*normalised,),) = importance["raw"][site], importance["normalised"][site]
        assert len(raw) == 4
        assert min(raw) > 0
        assert sum(value**2 for value in normalised) == pytest.approx(1)
    with open(run / "pruning" / "curve.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["removed"]) for row in rows] == pytest.approx([i / 10 for i in range(11)])
    n_heads = [sum(int(row[site]) for site in SITES) for row in rows]
    assert n_heads == [12 - round(12 * i / 10) for i in range(11)]
    assert (float(rows[0]["difference"]), float(rows[0]["p_value"])) == (0.0, 1.0)
    for row in rows:
        assert float(row["difference"]) == pytest.approx(
            float(row["bleu"]) - float(rows[0]["bleu"])
        )
    # without removed heads the scores are those of the validation
    recorded = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validated = [line for line in recorded if "valid/nll" in line][-1]
    for name in ("loss", "nll"):
        assert float(rows[0][name]) == pytest.approx(validated[f"valid/{name}"], rel=1e-4)
        assert float(rows[-1][name]) != pytest.approx(validated[f"valid/{name}"], rel=1e-4)
    removed = read_json(run / "pruning" / "one_removed.json")["rows"]
    assert [(row["site"], row["head"]) for row in removed] == [
        (s, h) for s in SITES for h in range(1, 5)
    ]
    assert len(read_json(run / "pruning" / "one_left.json")["rows"]) == 3
    assert not list(run.parent.glob("moved-pruned-*"))


def test_tables_of_one_site_have_their_own_files(headwise, run):
    headwise.ok("prune", f"run={run}", "table=true", "sites=[cross]", "data.sentences=2")
    table = read_json(run / "pruning" / "curve-cross.json")
    assert table["sentences"] == 2
    assert [row["encoder_self"] for row in table["rows"]] == [4] * 11
    assert [row["cross"] for row in table["rows"]] == [4, 4, 3, 3, 2, 2, 2, 1, 1, 0, 0]


def test_best_single_head_has_highest_bleu_then_lowest_loss(headwise, run, monkeypatch):
    equal_bleu = [(0.0, 4.0), (0.0, 2.0), (0.0, 3.0), (0.0, 5.0)]
    different_bleu = [(1.0, 1.0), (3.0, 3.0), (3.0, 2.0), (2.0, 1.0)]
    validations = [
        (0.0, 4.0),  # with all heads
        *equal_bleu * 3,
        *equal_bleu,
        *different_bleu,
        *equal_bleu,
    ]  # with one head removed, with one head left
    scores = iter([{"bleu": bleu, "loss": loss, "nll": loss} for bleu, loss in validations])
    monkeypatch.setattr(pruning.Validation, "values", lambda validations: next(scores))
    headwise.ok("prune", f"run={run}", "ablation=true")
    rows = read_json(run / "pruning" / "one_left.json")["rows"]
    assert [row["head"] for row in rows] == [2, 3, 2]


def test_fraction_of_selected_sites_is_rounded(headwise, run):
    """Each selection of heads has its own folder."""
    for fraction, n_left in ((0.4, 2), (0.3, 3)):
        headwise.ok("prune", f"run={run}", f"fraction={fraction}", "sites=[cross]")
        summaries = [read_json(path) for path in run.parent.glob("moved-pruned-*/pruned.json")]
        (summary,) = (entry for entry in summaries if entry["fraction"] == fraction)
        assert summary["heads"] == {"encoder_self": 4, "decoder_self": 4, "cross": n_left}


def test_pruned_model_with_other_logits_is_not_written(headwise, run, monkeypatch):
    monkeypatch.setattr(pruning, "pruned_state", lambda whole, smaller: smaller.state_dict())
    result = headwise("prune", f"run={run}", "keep={cross:[[1]]}")
    assert result.code == 1
    assert [path.name for path in run.parent.iterdir()] == ["moved"]


def test_pruned_run_works_with_all_commands(headwise, run, tmp_path):
    result = headwise("prune", f"run={run}", "fraction=0.5")
    assert (result.code, result.err) == (0, "")
    (pruned,) = run.parent.glob("moved-pruned-*")
    assert str(pruned) in result.out
    heads = read_json(pruned / "pruned.json")["heads"]
    assert sum(heads.values()) == 6
    # without the least important half according to the table
    table = read_json(run / "pruning" / "importance.json")["normalised"]
    values = sorted((v, s, n) for s in SITES for n, v in enumerate(table[s][0], start=1))
    remaining_heads = {site: [[]] for site in SITES}
    for _, site, number in sorted(values[6:], key=lambda entry: entry[1:]):
        remaining_heads[site][0].append(number)
    loaded = package.load(str(pruned), device="cpu")
    assert present_heads(loaded.model) == remaining_heads == loaded.config.model.heads
    torch.testing.assert_close(logits(pruned), logits(run, remaining_heads), rtol=0, atol=1e-5)
    sizes = [(folder / "checkpoints" / "best.pt").stat().st_size for folder in (run, pruned)]
    assert sizes[1] < sizes[0]
    summary = read_json(pruned / "pruned.json")
    assert summary["parameters"] < summary["parameters_before"]

    text = {path.name for path in (pruned / "hypotheses").iterdir()}
    assert text == {f"{s}.{e}.txt" for s in ("valid", "test_a", "test_b") for e in ("src", "ref")}
    result = headwise.ok("evaluate", f"run={pruned}")
    assert set(read_json(pruned / "results-auto.json")["scores"]) == {"test_a", "test_b"}
    (tmp_path / "text.de").write_text(f"{SENTENCE}\n", encoding="utf-8")
    arguments = (f"input={tmp_path / 'text.de'}", f"output={tmp_path / 'text.en'}")
    headwise.ok("translate", f"run={pruned}", *arguments)
    (line,) = (tmp_path / "text.en").read_text(encoding="utf-8").splitlines()
    assert line == loaded.translate([SENTENCE])[0].text
    # it can be pruned again, with the head numbers of the first model
    further = {**remaining_heads, "cross": [remaining_heads["cross"][0][:1]], "encoder_self": [[]]}
    layers_of_sites = ",".join(f"{site}:{layers}" for site, layers in further.items()).replace(
        " ", ""
    )
    headwise.ok("prune", f"run={pruned}", f"keep={{{layers_of_sites}}}")
    (pruned_again,) = run.parent.glob("moved-pruned-*-pruned-*")
    overrides = yaml.safe_load((pruned_again / "overrides.yaml").read_text())
    assert len([o for o in overrides if o.startswith("model.heads=")]) == 1
    torch.testing.assert_close(logits(pruned_again), logits(run, further), rtol=0, atol=1e-5)
    headwise.ok("evaluate", f"run={pruned_again}", "data.test=[test_b]")


def test_run_without_heads_is_rejected(headwise, run, tmp_path):
    bare, none = tmp_path / "bare", "keep={encoder_self:[[]],decoder_self:[[]],cross:[[]]}"
    headwise.ok("prune", f"run={run}", none, f"output={bare}")
    for arguments in (["fraction=0.5"], ["table=true", "sites=[cross]"]):
        assert_rejected(headwise("prune", f"run={bare}", *arguments), 1, "no heads to prune")


def test_pruned_run_can_be_fine_tuned(headwise, trained, run, tmp_path):
    output = tmp_path / "smaller"
    heads = {"encoder_self": [[2, 4]], "decoder_self": [[]], "cross": [[1, 2, 3]]}
    result = headwise(
        "prune", f"run={run}", "keep={encoder_self:[[2,4]],decoder_self:[[]],cross:[[1,2,3]]}",
        f"output={output}",
    )  # fmt: skip
    assert result.code == 0, result
    assert not (run / "pruning").exists(), "nothing was evaluated"
    heads_override = "model.heads={encoder_self:[[2,4]],decoder_self:[[]],cross:[[1,2,3]]}"
    assert heads_override in result.out
    assert heads_override in yaml.safe_load((output / "overrides.yaml").read_text())
    tuned = train_on(trained, heads, f"init_from={output}", "optimizer.lr=1e-12")
    torch.testing.assert_close(logits(tuned), logits(output), rtol=0, atol=1e-5)
    headwise.ok("evaluate", f"run={tuned}", "data.test=[test_b]")
    with pytest.raises(HeadwiseError, match="does not fit") as raised:
        train_on(trained, {"cross": [[1, 2]]}, f"init_from={output}", "seed=7")
    assert heads_override in str(raised.value), "the error names the pruned heads"


def test_closed_gates_are_learned_and_pruned(headwise, trained, run):
    gates = ("gates=hard_concrete", "gates.penalty=1", "gates.lr_factor=10", "gates.log_a=0.2")
    frozen = ("gates.sites=[encoder_self]", "gates.freeze=[decoder]")
    fast = ("scheduler=constant", "scheduler.warmup_updates=1", "optimizer.lr=0.03")
    gated = train_on(trained, None, f"init_from={run}", *gates, *frozen, *fast)
    before = load_checkpoint(run / "checkpoints" / "best.pt")["model"]
    after = load_checkpoint(gated / "checkpoints" / "best.pt")["model"]
    n_closed = int((after["encoder.layers.0.self_attention.gate.log_a"] < 0).sum())
    assert n_closed > 0, "the penalty closed no gate"
    for name, value in before.items():
        is_frozen = name.startswith(
            ("decoder.", "target_embedding.", "output.", "source_embedding.")
        )
        assert torch.equal(after[name], value) == is_frozen or name.endswith("key.bias"), name
    headwise.ok("prune", f"run={gated}", "by=gates")
    (pruned,) = gated.parent.glob(f"{gated.name}-pruned-*")
    config = OmegaConf.load(pruned / "config.yaml")
    assert len(config.model.heads.encoder_self[0]) == 4 - n_closed
    assert config.gates._target_.endswith("NoGates")
    overrides = yaml.safe_load((pruned / "overrides.yaml").read_text())
    assert not [o for o in overrides if o.startswith("gates")]
    with_keep = run.parent / "by-hand"  # heads with closed gates are pruned also with keep=
    headwise.ok("prune", f"run={gated}", "keep={cross:[[1,2]]}", f"output={with_keep}")
    n_heads = {"encoder_self": 4 - n_closed, "decoder_self": 4, "cross": 2}
    assert read_json(with_keep / "pruned.json")["heads"] == n_heads
    torch.testing.assert_close(logits(pruned), logits(gated), rtol=0, atol=1e-5)
    headwise.ok("evaluate", f"run={pruned}", "data.test=[test_b]")
    with pytest.raises(RunError, match="trained with gates"):
        train_on(trained, None, f"init_from={gated}", "seed=9")
    shutil.rmtree(pruned)


def test_prune_overwrites_nothing(headwise, run, tmp_path):
    keep = "keep={cross:[[1]]}"
    headwise.ok("prune", f"run={run}", keep)
    (pruned,) = run.parent.glob("moved-pruned-*")
    before = (pruned / "pruned.json").stat().st_mtime_ns
    assert_rejected(headwise("prune", f"run={run}", keep), 1, "already exists")
    assert (pruned / "pruned.json").stat().st_mtime_ns == before
    (tmp_path / "there").mkdir()
    result = headwise("prune", f"run={run}", keep, f"output={tmp_path / 'there'}")
    assert_rejected(result, 1, "already exists")
    already_pruned = headwise("prune", f"run={pruned}", "keep={cross:[[2]]}")
    assert (
        already_pruned.code,
        "head 2 of layer 1 was already pruned from the run" in already_pruned.err,
    ) == (2, True)
    assert not list(run.parent.glob(".*")), "an unfinished run remains"

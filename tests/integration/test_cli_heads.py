"""`headwise analyze` and `headwise prune`: records of heads, and pruned runs for all commands."""

import json
import shutil

import pandas as pd
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
from golden_files import assert_golden_record
from headwise.analysis.pruning import masked, present_heads
from headwise.analysis.tables import FOLDER, HEADS, TABLES
from headwise.commands import prune as pruning
from headwise.commands.train import train
from headwise.config.register import typed
from headwise.errors import HeadwiseError, RunError
from headwise.page.document import page_record
from headwise.page.run import reading_contents, run_content
from headwise.runs.record import Record
from headwise.tasks.inspection import items
from headwise.train.checkpoint import load_checkpoint, save_checkpoint

SITES = ("encoder_self", "decoder_self", "cross")
SENTENCE = "Hund sieht Haus"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_small(tmp_path_factory.mktemp("run"), "model.n_heads=4")


def train_on(trained, heads, *overrides):
    """Train the small run on the same text with `model.heads`."""
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


# -- records --------------------------------------------------------------------------------------

SCORES = {
    "valid": {"loss": {"score": 2.5}},
    "test_a": {
        "loss": {"score": 3.125}, "bleu": {"score": 12.5, "scope": "beam 2"},
        "comet": {"score": 0.75}, "search": {"exact": 1.0}, "note": {"loss": "left out"},
    },
}  # fmt: skip
CHANGING = ("version", "weights", "record", "text", "origin")  # hashes and paths


@pytest.fixture
def drawn(run):
    """The run with drawn weights, the same on every machine, and a record of its α."""
    path, generator = run / "checkpoints" / "best.pt", torch.Generator().manual_seed(0)
    weights = load_checkpoint(path)["model"]
    for value in weights.values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) - 0.5)
    save_checkpoint(path, {"model": weights})
    alphas = [{site: [[1.5, 1.5 - n / 9, 1.2 + n / 9, 1.4]] for site in SITES} for n in range(3)]
    lines = [json.dumps({"update": 50 * n, "alpha": alpha}) for n, alpha in enumerate(alphas)]
    (run / "heads.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    results = read_json(run / "results.json")
    (run / "results.json").write_text(json.dumps({**results, "scores": SCORES}))
    return run


def lasting(record):
    return {name: value for name, value in record.items() if name not in CHANGING}


def test_record_of_analyze(headwise, drawn):
    result = headwise("analyze", f"run={drawn}")
    assert (result.code, result.err) == (0, "")
    files = {f"{table.name}.csv" for table in TABLES} | {"findings.md", "settings.json"}
    assert {path.name for path in (drawn / FOLDER).iterdir()} == files
    text = (drawn / FOLDER / "findings.md").read_text(encoding="utf-8")
    assert text in result.out
    tables = {table.name: table.read(Record(drawn)) for table in TABLES}
    used = {name: [row for row in rows if row.get("n_queries", 1)] for name, rows in tables.items()}
    settings = [lasting(read_json(drawn / FOLDER / "settings.json"))]
    assert_golden_record("analyze", {**used, "text": text.splitlines(), "settings": settings})


def test_record_of_prune(headwise, drawn):
    result = headwise("prune", f"run={drawn}", "table=true", "ablation=true", "fraction=0.4")
    assert (result.code, result.err) == (0, "")
    one_site = ("table=true", "sites=[cross]", "data.sentences=2")
    headwise.ok("prune", f"run={drawn}", *one_site)
    record = {}
    for path in sorted((drawn / "pruning").glob("*.json")):
        if path.name != "importance.json":
            content = read_json(path)
            table = pd.DataFrame(content["rows"]).to_csv(index=False)
            assert path.with_suffix(".csv").read_text(encoding="utf-8") == table
        record[path.name] = [lasting(read_json(path))]
    (pruned,) = drawn.parent.glob("moved-pruned-*")
    record["pruned.json"] = [lasting(read_json(pruned / "pruned.json"))]
    assert_golden_record("prune", record)


def test_record_of_page(headwise, drawn):
    """Of the last head there is no analysis, and there are results of one that the run lacks."""
    headwise.ok("analyze", f"run={drawn}")
    *rows, last = HEADS.read(Record(drawn))
    text = HEADS.text([*rows, {**last, "layer": 9}])
    HEADS.path(drawn / FOLDER).write_text(text, encoding="utf-8")
    loaded = package.load(str(drawn), device="cpu")
    chosen = items(loaded, 2)
    readings = reading_contents(loaded, chosen.chosen)
    assert all(reading.pop("weights") for reading in readings)
    record = page_record([{**run_content(loaded), "readings": readings}], [], chosen)
    (content,) = record["data"].pop("runs")
    parts = {name: part if isinstance(part, list) else [part] for name, part in content.items()}
    assert_golden_record("page", {"page": [record], **parts}, rel=2e-3)  # they have four digits


# -- analyze --------------------------------------------------------------------------------------


def modification_times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_analysis_is_repeated_after_changes(headwise, run):
    out = run / FOLDER

    def is_repeated(*options, sentences=4):
        result = headwise.ok("analyze", f"run={run}", f"data.sentences={sentences}", *options)
        return "already exists" not in result.out

    assert is_repeated()
    before = modification_times(out)
    assert not is_repeated()
    assert not is_repeated("importance=false"), "a part of the saved analysis"
    assert modification_times(out) == before
    assert is_repeated("overwrite=true")
    assert is_repeated(sentences=3)
    assert is_repeated()
    (out / "density.csv").unlink()
    assert is_repeated()
    with open(run / "heads.jsonl", "a", encoding="utf-8") as log:  # as after more training
        log.write('{"update": 5000}\n')
    assert is_repeated()
    best = run / "checkpoints" / "best.pt"
    weights = load_checkpoint(best)["model"]
    weights["encoder.layers.0.self_attention.query.bias"] += 1
    save_checkpoint(best, {"model": weights})
    assert is_repeated()
    assert not is_repeated()


def test_runs_are_compared(headwise, drawn, tmp_path):
    folders = [tmp_path / "runs" / name for name in ("one", "two")]
    for folder in folders:
        shutil.copytree(drawn, folder)
    (tmp_path / "runs" / "no-run").mkdir()
    out = tmp_path / "side" / "by"
    runs = f"runs=[{tmp_path}/runs,{tmp_path}/runs/one/../two]"
    options = (runs, f"output={out}", "importance=false", "positional_share=0.3")
    result = headwise("analyze", *options)
    assert (result.code, result.err) == (0, "")
    text = (out / "comparison.md").read_text(encoding="utf-8")
    assert text in result.out
    # runs of equal settings are named by their folders
    record = {"comparison": text.replace(str(tmp_path), "").splitlines()}
    assert_golden_record("analyze_runs", record)
    before = modification_times(folders[0] / FOLDER)
    headwise.ok("analyze", *options)
    assert modification_times(folders[0] / FOLDER) == before


# -- prune ----------------------------------------------------------------------------------------


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
    left = {}
    for fraction in (0.4, 0.3):
        headwise.ok("prune", f"run={run}", f"fraction={fraction}", "sites=[cross]")
    for path in run.parent.glob("moved-pruned-*/pruned.json"):
        summary = read_json(path)
        left[summary["fraction"]] = list(summary["heads"].values())
    assert left == {0.4: [4, 4, 2], 0.3: [4, 4, 3]}


def test_path_is_no_split(headwise, run):
    for command in ("prune", "analyze"):
        result = headwise(command, f"run={run}", "data.split=../x")
        assert_rejected(result, 2, "data.split must be a plain name")


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
    loaded = package.load(str(pruned), device="cpu")
    left = present_heads(loaded.model)  # the most important half: see the contract of tasks
    assert left == loaded.config.model.heads
    assert sum(len(layer) for layers in left.values() for layer in layers) == 6
    torch.testing.assert_close(logits(pruned), logits(run, left), rtol=0, atol=1e-5)
    sizes = [(folder / "checkpoints" / "best.pt").stat().st_size for folder in (run, pruned)]
    assert sizes[1] < sizes[0]
    text = {path.name for path in (pruned / "hypotheses").iterdir()}
    assert text == {f"{s}.{e}.txt" for s in ("valid", "test_a", "test_b") for e in ("src", "ref")}
    headwise.ok("evaluate", f"run={pruned}")
    assert set(read_json(pruned / "results-auto.json")["scores"]) == {"test_a", "test_b"}
    (tmp_path / "text.de").write_text(f"{SENTENCE}\n", encoding="utf-8")
    arguments = (f"input={tmp_path / 'text.de'}", f"output={tmp_path / 'text.en'}")
    headwise.ok("translate", f"run={pruned}", *arguments)
    (line,) = (tmp_path / "text.en").read_text(encoding="utf-8").splitlines()
    assert line == loaded.translate([SENTENCE])[0].text
    # it can be pruned again, with the head numbers of the first model
    further = {**left, "cross": [left["cross"][0][:1]], "encoder_self": [[]]}
    keep = json.dumps(further).replace('"', "").replace(" ", "")
    headwise.ok("prune", f"run={pruned}", f"keep={keep}")
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

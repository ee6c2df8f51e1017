"""`headwise analyze`: tables and findings of a run, and comparisons of runs."""

import shutil

import pytest

from command_line import read_json
from headwise.analysis.tables import FOLDER, HEADS, TABLES
from headwise.runs.record import Record
from headwise.train.checkpoint import load_checkpoint, save_checkpoint

SITES = ("encoder_self", "decoder_self", "cross")
TABLE_FILES = {f"{table.name}.csv" for table in TABLES}


def modification_times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_analyze_writes_tables_and_findings(headwise, run):
    result = headwise("analyze", f"run={run}")
    assert (result.code, result.err) == (0, "")
    out = run / FOLDER
    assert {path.name for path in out.iterdir()} == {*TABLE_FILES, "findings.md", "settings.json"}
    assert (out / "findings.md").read_text(encoding="utf-8") in result.out
    rows = {table.name: table.read(Record(run)) for table in TABLES}
    assert [(r["site"], r["layer"], r["head"]) for r in rows["heads"]] == [
        (site, 1, head) for site in SITES for head in (1, 2)
    ]
    results = read_json(run / "results.json")["alpha"]
    for row in rows["heads"]:
        assert row["alpha"] == pytest.approx(results[row["site"]][0][row["head"] - 1], abs=1e-6)
        assert 0 < row["density"] <= 1
        assert row["importance"] > 0
    gradients = [r for r in rows["other_statistics"] if r["statistic"] == "query_gradient"]
    assert len(gradients) == 6
    assert all(row["value"] > 0 for row in gradients)
    assert len(rows["layers"]) == 3
    assert len(rows["density"]) == 6 * 21
    assert len(rows["trajectories"]) == 6
    settings = read_json(out / "settings.json")
    assert (settings["sentences"], settings["split"]) == (6, "valid")
    # the histograms count every query of every sentence once
    n_queries = {
        site: sum(r["n_queries"] for r in rows["density"] if (r["site"], r["head"]) == (site, 1))
        for site in SITES
    }
    assert n_queries["encoder_self"] == settings["counts"]["source_tokens"] + 6
    assert n_queries["cross"] == settings["counts"]["target_tokens"] + 6


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


# -- several runs ---------------------------------------------------------------------------------


def test_runs_are_compared(headwise, trained, tmp_path):
    folders = [tmp_path / "runs" / name for name in ("one", "two")]
    for folder in folders:
        shutil.copytree(trained, folder)
    (tmp_path / "runs" / "no-run").mkdir()
    out = tmp_path / "side" / "by"
    runs = f"runs=[{tmp_path}/runs,{tmp_path}/runs/one/../two]"
    result = headwise("analyze", runs, f"output={out}", "importance=false", "positional_share=0.3")
    assert (result.code, result.err) == (0, "")
    text = (out / "comparison.md").read_text(encoding="utf-8")
    assert text in result.out
    head, _, *rows = (line.strip("| ").split(" | ") for line in text.splitlines() if "| " in line)
    assert head == list(map(str, folders))  # runs of equal settings are named by their folders
    values = {name: cells for name, *cells in rows}
    heads = HEADS.read(Record(folders[0]))
    n_previous = sum("previous" in (row["roles"] or "") for row in heads)
    assert values["heads at -1"] == [str(n_previous)] * 2
    cross = [row["alpha"] for row in heads if row["site"] == "cross"]
    assert values["α, mean, cross-attention"][1] == f"{sum(cross) / 2:.2f}"
    assert "diversity, decoder self-attention layer 1" in values
    before = modification_times(folders[0] / FOLDER)
    headwise.ok("analyze", runs, f"output={out}", "importance=false", "positional_share=0.3")
    assert modification_times(folders[0] / FOLDER) == before

"""`headwise analyze`: tables and findings of a run, and runs side by side."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from command_line import CommandLine, read_json
from headwise.analysis.tables import COMPARISON, FOLDER, HEADS, TABLES
from headwise.train.checkpoint import load_checkpoint, save_checkpoint

SITES = ("encoder_self", "decoder_self", "cross")
TABLE_FILES = {f"{table.name}.csv" for table in TABLES} - {"other_statistics.csv"}


def written_at(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_a_run_gets_its_tables_and_findings(headwise: CommandLine, run: Path) -> None:
    ended = headwise("analyze", f"run={run}")
    assert (ended.code, ended.err) == (0, "")
    out = run / FOLDER
    assert {path.name for path in out.iterdir()} == {*TABLE_FILES, "findings.md", "settings.json"}
    assert (out / "findings.md").read_text(encoding="utf-8") in ended.out
    rows = {table.name: table.read(out) for table in TABLES if table.path(out).is_file()}
    assert [(r["site"], r["layer"], r["head"]) for r in rows["heads"]] == [
        (site, 1, head) for site in SITES for head in (1, 2)
    ]
    results = read_json(run / "results.json")["alpha"]
    for row in rows["heads"]:
        assert row["alpha"] == pytest.approx(results[row["site"]][0][row["head"] - 1], abs=1e-6)
        assert 0 < row["density"] <= 1
        assert row["importance"] > 0
    assert len(rows["layers"]) == 3
    assert len(rows["density"]) == 6 * 21
    assert len(rows["trajectories"]) == 6
    about = read_json(out / "settings.json")
    assert (about["sentences"], about["split"]) == (6, "valid")
    # every query of every sentence stands in the histograms once
    n_queries = {
        site: sum(r["n_queries"] for r in rows["density"] if (r["site"], r["head"]) == (site, 1))
        for site in SITES
    }
    assert n_queries["encoder_self"] == about["counts"]["source_tokens"] + 6
    assert n_queries["cross"] == about["counts"]["target_tokens"] + 6


def test_an_analysis_is_repeated_after_changes(headwise: CommandLine, run: Path) -> None:
    out = run / FOLDER

    def is_done_again(*options: str, sentences: int = 4) -> bool:
        ended = headwise.ok("analyze", f"run={run}", f"data.sentences={sentences}", *options)
        return "already exists" not in ended.out

    assert is_done_again()
    before = written_at(out)
    assert not is_done_again()
    assert not is_done_again("importance=false"), "less is there as well"
    assert written_at(out) == before
    assert is_done_again("overwrite=true")
    assert is_done_again(sentences=3)
    assert is_done_again()
    (out / "offsets.csv").unlink()
    assert is_done_again()
    with open(run / "heads.jsonl", "a", encoding="utf-8") as record:  # a lengthened training's
        record.write('{"update": 5000}\n')
    assert is_done_again()
    best = run / "checkpoints" / "best.pt"
    weights = load_checkpoint(best)["model"]
    weights["encoder.layers.0.self_attention.query.bias"] += 1
    save_checkpoint(best, {"model": weights})
    assert is_done_again()
    assert not is_done_again()


# -- several runs ---------------------------------------------------------------------------------


def test_runs_of_one_name(headwise: CommandLine, trained: Path, tmp_path: Path) -> None:
    for parent in ("short", "long", "long/again/long"):
        shutil.copytree(trained, tmp_path / parent / "run")
    runs = [str(tmp_path / parent / "run") for parent in ("short", "long", "long/again/long")]
    ended = headwise.ok(
        "analyze", f"runs=[{','.join(runs)}]", f"output={tmp_path / 'out'}", "importance=false"
    )
    assert {row["run"] for row in COMPARISON.read(tmp_path / "out")} == set(runs)
    assert f"|  | short/run | {runs[1]} | {runs[2]} |" in ended.out


def test_runs_side_by_side(headwise: CommandLine, trained: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(trained, tmp_path / "runs" / name)
    (tmp_path / "runs" / "no-run").mkdir()
    out = tmp_path / "side" / "by"
    given = f"runs=[{tmp_path}/runs,{tmp_path}/runs/one/../two]"
    ended = headwise("analyze", given, f"output={out}", "importance=false", "positional_share=0.3")
    assert (ended.code, ended.err) == (0, "")
    rows = COMPARISON.read(out)
    folders = [str(tmp_path / "runs" / name) for name in ("one", "two")]
    assert list(dict.fromkeys(row["run"] for row in rows)) == folders
    found = {
        (Path(row["run"]).name, row["quantity"], row["site"], row["layer"]): row["value"]
        for row in rows
    }
    heads = HEADS.read(tmp_path / "runs" / "one" / FOLDER)
    n_previous = sum("previous" in (row["roles"] or "") for row in heads)
    assert found["one", "previous_heads", None, None] == n_previous
    cross = [row["alpha"] for row in heads if row["site"] == "cross"]
    assert found["two", "alpha", "cross", None] == pytest.approx(sum(cross) / 2)
    assert ("one", "diversity", "decoder_self", 1) in found
    text = (out / "comparison.md").read_text(encoding="utf-8")
    assert text in ended.out
    assert text.startswith("|  | one | two |")
    before = written_at(tmp_path / "runs" / "one" / FOLDER)
    headwise.ok("analyze", given, f"output={out}", "importance=false", "positional_share=0.3")
    assert written_at(tmp_path / "runs" / "one" / FOLDER) == before

"""Which sets `headwise evaluate` scores, their location, and which scores it saves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine, assert_rejected, read_json, read_results, write_sentence
from headwise.commands import evaluate
from headwise.errors import DataError
from headwise.runs.results import Results


def test_scores_are_saved_if_a_later_set_fails(
    headwise: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = evaluate.score

    def fail_at_test_b(*arguments: Any, **options: Any) -> Any:
        if "test_b" in arguments:
            raise DataError("no more")
        return score(*arguments, **options)

    monkeypatch.setattr(evaluate, "score", fail_at_test_b)
    assert_rejected(headwise("evaluate", f"run={run}", "data.test=[test_a,test_b]"), 1, "no more")
    assert set(read_results(run)["scores"]) == {"test_a"}


def test_run_without_its_sets_uses_the_corpus(headwise: CommandLine, run: Path) -> None:
    shutil.rmtree(run / "hypotheses")
    headwise.ok("evaluate", f"run={run}")
    assert set(read_results(run)["scores"]) == {"test_a", "test_b"}


def without_hashes(path: Path) -> None:
    """Rewrite a results file as version 0.1.0 had it."""
    content = read_json(path)
    for entry in (entry for split in content["scores"].values() for entry in split.values()):
        entry.pop("content", None)
        entry.pop("items", None)
    path.write_text(json.dumps(content))


def test_another_text_of_the_same_name_needs_another_results_file(
    headwise: CommandLine, run: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sentence(tmp_path, "test_a")
    (tmp_path / "test_a").write_text("Hund\n", encoding="utf-8")
    (tmp_path / "mine").write_text("dog\n", encoding="utf-8")
    files = f"data.source_file={tmp_path}/test_a", f"data.reference_file={tmp_path}/mine"
    theirs = f"data.dir={tmp_path}", "data.test=[test_a]"
    ours = f"data.dir={trained.parents[2] / 'text'}", "data.test=[test_a]"

    def evaluated(*arguments: str) -> Any:
        return headwise("evaluate", f"run={run}", *arguments)

    def refused(*arguments: str, file: str = "results.json", kind: str = "another text") -> None:
        with monkeypatch.context() as patch:
            patch.setattr(evaluate, "score", lambda *_, **__: pytest.fail("scored"))
            about = f"{run / file} has scores of test_a on {kind}"
            assert_rejected(evaluated(*arguments), 2, about, "set name=")

    refused(*theirs)
    refused(*files)
    assert evaluated(*ours).code == 0  # the same text at another place
    assert evaluated(*theirs, "name=theirs").code == 0
    contents = {split_content(run, name) for name in ("results", "results-auto")}
    assert len(contents | {split_content(run, "theirs")}) == 1 + len(contents) == 2
    refused(*files, "name=theirs", file="theirs.json")
    for name in ("results.json", "results-auto.json"):
        without_hashes(run / name)
    refused(*ours, file="results-auto.json", kind="a text that 0.1.0 wrote no hash of")
    assert evaluated("data.test=[test_a]").code == 0  # its own data
    assert {split_content(run, "results-auto")} == contents


def split_content(run: Path, name: str) -> str | None:
    """Hash of the text that test_a of a results file was scored on."""
    return Results(read_json(run / f"{name}.json")["scores"]).content("test_a")


def test_two_evaluations_at_a_time_keep_the_scores_of_both(
    headwise: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = evaluate.score

    def score_test_b_meanwhile(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(evaluate, "score", score)
        headwise.ok("evaluate", f"run={run}", "data.test=[test_b]")
        return score(*arguments, **options)

    def evaluated(*arguments: str) -> str:
        monkeypatch.setattr(evaluate, "score", score_test_b_meanwhile)
        return headwise.ok("evaluate", f"run={run}", "data.test=[test_a]", *arguments).out

    assert "overwritten" not in evaluated()
    assert set(read_results(run)["scores"]) == {"test_a", "test_b"}
    assert not list(run.glob(".*.lock"))
    (run / "results-auto.json").unlink()
    assert "contained scores of test_b with other" in evaluated("decode.beam=3")

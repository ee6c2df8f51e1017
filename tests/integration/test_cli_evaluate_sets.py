"""Which sets `headwise evaluate` scores, their location, and which scores it saves."""

import shutil

from command_line import (
    assert_rejected,
    read_json,
    read_results,
    without_hashes,
    write_sentence,
)
from headwise.commands import evaluate
from headwise.errors import DataError
from headwise.runs.results import Results


def test_scores_are_saved_if_a_later_set_fails(headwise, run, monkeypatch):
    score = evaluate.score

    def fail_at_test_b(*arguments, **options):
        if "test_b" in arguments:
            raise DataError("no more")
        return score(*arguments, **options)

    monkeypatch.setattr(evaluate, "score", fail_at_test_b)
    assert_rejected(headwise("evaluate", f"run={run}", "data.test=[test_a,test_b]"), 1, "no more")
    assert set(read_results(run)["scores"]) == {"test_a"}


def test_run_without_its_sets_uses_the_corpus(headwise, run):
    shutil.rmtree(run / "hypotheses")
    headwise.ok("evaluate", f"run={run}")
    assert set(read_results(run)["scores"]) == {"test_a", "test_b"}


def split_content(run, name="results-auto"):
    """Hash of the text that test_a of a results file was scored on."""
    return Results(read_json(run / f"{name}.json")["scores"]).content("test_a")


def test_another_text_of_the_same_name_needs_another_results_file(headwise, run, trained, tmp_path):
    write_sentence(tmp_path, "test_a")
    ours, theirs = (
        ("evaluate", f"run={run}", f"data.dir={folder}", "data.test=[test_a]")
        for folder in (trained.parents[2] / "text", tmp_path)
    )

    def refused(*arguments, file, kind="another text"):
        result = headwise(*arguments)
        assert_rejected(result, 2, f"{run / file} has scores of test_a on {kind}", "set name=")
        assert "BLEU" not in result.out, "nothing is scored before"

    refused(*theirs, file="results.json")
    headwise.ok(*ours)  # the same text at another place
    headwise.ok(*theirs, "name=theirs")
    content = split_content(run)
    assert content == split_content(run, "results") != split_content(run, "theirs")
    refused(*ours, "name=theirs", file="theirs.json")
    without_hashes(run / "results.json")
    without_hashes(run / "results-auto.json")
    refused(*ours, file="results-auto.json", kind="a text that 0.1.0 wrote no hash of")
    headwise.ok("evaluate", f"run={run}", "data.test=[test_a]")  # its own data
    assert split_content(run) == content


def test_two_evaluations_at_a_time_keep_the_scores_of_both(headwise, run, monkeypatch):
    score = evaluate.score

    def score_test_b_meanwhile(*arguments, **options):
        monkeypatch.setattr(evaluate, "score", score)
        headwise.ok("evaluate", f"run={run}", "data.test=[test_b]")
        return score(*arguments, **options)

    def evaluated(*arguments):
        monkeypatch.setattr(evaluate, "score", score_test_b_meanwhile)
        return headwise.ok("evaluate", f"run={run}", "data.test=[test_a]", *arguments).out

    assert "overwritten" not in evaluated()
    assert set(read_results(run)["scores"]) == {"test_a", "test_b"}
    assert not list(run.glob(".*.lock"))
    (run / "results-auto.json").unlink()
    assert "contained scores of test_b with other" in evaluated("decode.beam=3")

"""Synthetic sequences, and the guide's task: what no other task has."""

import pytest

from command_line import assert_rejected, read_json
from guide import ROOT
from headwise.analysis.tables import LENGTHS
from headwise.errors import DataError
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.tasks.inspection import readings
from headwise.tasks.task import Part
from headwise.train.distributed import Ranks
from slow_marks import slow_but
from tasks.data import LENGTH, N_ROWS


@pytest.fixture(scope="module", params=slow_but(["sequence", "sequence_pair"], "sequence"))
def sequence(request, trained):
    return trained(request.param)


def test_heads_by_length(headwise, sequence):
    headwise.ok("analyze", f"run={sequence.run}", "importance=false")
    rows = {(r["site"], r["head"], r["length"]): r for r in LENGTHS.read(Record(sequence.run))}
    site = list(sequence.case.sites)[-1]
    assert {length for _, _, length in rows} == {12, 40}
    (reading,) = readings(sequence.loaded(), ["40 0"])
    (observed,) = (obs for obs in reading.observations if obs.site == site)
    axes = reading.axes[site]
    asked = [index for index, key in enumerate(axes.relevant) if key >= 0]
    assert len(asked) == 2
    for index in asked:  # the relevant key is the value after the asked key
        assert axes.keys[axes.relevant[index] - 1] == axes.queries[index]
    for head in (1, 2):
        row = rows[site, head, 40]
        assert 0 <= row["relevant_weight"] <= 1
        assert row["used_keys"] <= row["visible_keys"]
        assert row["n_queries"] == 9 * len(asked)
    assert observed.weights_BHQK.shape[2] == len(axes.queries)


def test_any_length_is_evaluated_also_with_another_scaling(headwise, sequence):
    run = sequence.run
    headwise.ok("evaluate", f"run={run}", "data.test=[12,64]", "name=lengths")
    scores = read_json(run / "lengths.json")["scores"]
    assert scores["12"] == sequence.results["scores"]["12"]
    scaled = ["scaling=ssmax", "scaling.reference=12", "scaling.heads=without_positions"]
    headwise.ok("evaluate", f"run={run}", "data.test=[64]", *scaled, "name=scaled")
    loss = read_json(run / "scaled.json")["scores"]["64"]["loss"]["score"]
    assert loss != scores["64"]["loss"]["score"]
    refused = headwise("evaluate", f"run={run}", "data.test=[test]")
    assert_rejected(refused, 2, "data.test must be one of a length, valid")


def test_split_without_targets_has_no_score(sequence, monkeypatch):
    loaded = sequence.loaded()
    monkeypatch.setattr(type(loaded.task), "batches", lambda *_: [])
    data, ranks = loaded.task.restored(sequence.run, ["12"]), Ranks(0, 1, loaded.device)
    with pytest.raises(DataError, match="no item of 12 has a target"):
        loaded.task.evaluate(loaded.model, data, Part("12"), ranks)


def test_a_task_of_a_user_is_read_and_described(headwise, trained):
    case = trained("own")
    for split in ("valid", "test"):
        accuracy = case.results["scores"][split]["accuracy"]["score"]
        sums = RunFolder(case.run).read_sums(split, "loss")
        n_bits = N_ROWS * LENGTH
        assert sums.shape == (N_ROWS, 4)
        assert sums[:, 2:].sum(0).tolist() == [n_bits, round(accuracy * n_bits)]
    (site,) = case.loaded().model.sites
    assert site.causal
    headwise.ok("analyze", f"run={case.run}")
    assert read_json(case.run / "analysis" / "settings.json")["sentences"] == N_ROWS
    refused = headwise("analyze", f"run={case.run}", "data.split=tset")
    assert_rejected(refused, 2, "a split of", "test")
    refused = headwise("evaluate", f"run={case.run}", "decode.beam=3")
    assert_rejected(refused, 2, "decode.beam is not known")
    compared = headwise.ok("compare", f"run={case.run}", f"other={case.run}").out
    (row,) = (line for line in compared.splitlines() if line.startswith("| test accuracy"))
    assert row.endswith("|  |")  # an item has many positions: McNemar's test does not apply


@pytest.mark.slow
def test_an_encoder_of_a_user_is_not_causal(trained):
    (site,) = trained("own_encoder").loaded().model.sites
    assert not site.causal


def test_headwise_does_not_contain_the_task():
    paths = [path for folder in ("src", "conf") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text(encoding="utf-8") for path in paths if path.suffix in (".py", ".yaml")]
    assert len(texts) > 100
    assert not [text for text in texts if "majority" in text.lower()]

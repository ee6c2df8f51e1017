"""Synthetic sequences: scores and heads by length, both layouts, resuming, ranks, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from command_line import CommandLine, assert_rejected, page_data, read_json, train_with
from headwise import load
from headwise.analysis.tables import LENGTHS
from headwise.errors import DataError
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.tasks.inspection import readings
from headwise.tasks.task import Part
from headwise.train.distributed import Ranks
from slow_marks import slow_but
from training_runs import Runs, assert_resumes_bitwise, assert_two_ranks_equal_one

SMALL = [
    "data=recall", "data.rows.keys=8", "data.rows.values=3", "data.rows.asked=2",
    "data.min_length=8", "data.max_length=12", "data.first_length=4", "data.curriculum=4",
    "data.test_lengths=[12,40]", "data.n_test=9", "data.epoch_batches=5", "positions=nape",
    "model=tiny", "model.d_model=16", "model.n_heads=2", "model.d_ff=32", "trainer.max_tokens=80",
    "trainer.max_updates=12", "trainer.validate_every=6", "trainer.save_every=6",
    "trainer.log_every=3", "trainer.average=0", "trainer.head_sentences=2",
    "trainer.precision=fp32", "scheduler.warmup_updates=4", "tracker=none",
]  # fmt: skip
LAYOUTS = "decoder", "encoder_decoder"


@pytest.fixture(scope="module", params=slow_but(LAYOUTS, "decoder"))
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def overrides(layout: str) -> list[str]:
    depth = ["model.encoder_layers=1", "model.decoder_layers=1"]
    depth.append("model.share_embeddings=decoder")
    return [
        *SMALL,
        *(["model.layers=1"] if layout == "decoder" else depth),
        f"task.layout={layout}",
    ]


@pytest.fixture(scope="module")
def run(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_with([*overrides, f"paths.outputs={tmp_path_factory.mktemp('outputs')}"])


def test_scores_of_every_length_match_the_weights(run: Path) -> None:
    scores, trained = read_json(run / "results.json")["scores"], load(run, device="cpu")
    assert list(scores) == ["valid", "12", "40"]
    for split, of_split in scores.items():
        right = []
        for number in range(9):
            (row,) = trained.task.rows(split, [number])
            (batch,) = (trained.task.layout.batch([row], [0]),)
            with torch.no_grad():
                logits = trained.model(**trained.model.inputs(batch)).flatten(0, 1)
            right.append(logits[batch.scored_R].argmax(1) == batch.targets_R)
        correct = torch.stack(right).double()
        share = float(correct.mean())
        assert correct.shape == (9, 2)
        assert of_split["tokens"]["score"] == pytest.approx(100 * share)
        assert of_split["errors"]["score"] == pytest.approx(1000 * (1 - share))
        assert of_split["whole"]["score"] == pytest.approx(100 * float(correct.prod(1).mean()))
        assert of_split["counted"]["score"] == pytest.approx(100 * share**2)
    assert RunFolder(run).read_sums("40", "loss") is not None


def test_heads_by_length(headwise: CommandLine, run: Path, layout: str) -> None:
    headwise.ok("analyze", f"run={run}", "importance=false")
    rows = {(r["site"], r["head"], r["length"]): r for r in LENGTHS.read(Record(run))}
    site = "decoder_self" if layout == "decoder" else "cross"
    assert {length for _, _, length in rows} == {12, 40}
    (reading,) = readings(load(run, device="cpu"), ["40 0"])
    (observed,) = (obs for obs in reading.observations if obs.site == site)
    asked = [index for index, key in enumerate(reading.axes[site].relevant) if key >= 0]
    assert len(asked) == 2
    for index in asked:  # the relevant key is the value after the asked key
        key = reading.axes[site].relevant[index]
        assert reading.axes[site].keys[key - 1] == reading.axes[site].queries[index]
    for head in (1, 2):
        row = rows[site, head, 40]
        assert 0 <= row["relevant_weight"] <= 1
        assert row["used_keys"] <= row["visible_keys"]
        assert row["n_queries"] == 9 * len(asked)
    assert observed.weights_BHQK.shape[2] == len(reading.axes[site].queries)


def test_any_length_is_evaluated_also_with_another_scaling(
    headwise: CommandLine, run: Path
) -> None:
    headwise.ok("evaluate", f"run={run}", "data.test=[12,64]")
    scores = read_json(run / "results-auto.json")["scores"]
    assert scores["12"] == read_json(run / "results.json")["scores"]["12"]
    scaled = ["scaling=ssmax", "scaling.reference=12", "scaling.heads=without_positions"]
    headwise.ok("evaluate", f"run={run}", "data.test=[64]", *scaled, "name=scaled")
    loss = read_json(run / "scaled.json")["scores"]["64"]["loss"]["score"]
    assert loss != scores["64"]["loss"]["score"]
    refused = headwise("evaluate", f"run={run}", "data.test=[test]")
    assert_rejected(refused, 2, "data.test must be one of a length, valid")


def test_split_without_targets_has_no_score(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = load(run, device="cpu")
    monkeypatch.setattr(type(trained.task), "batches", lambda *_: [])
    data, ranks = trained.task.restored(run, ["12"]), Ranks(0, 1, trained.device)
    with pytest.raises(DataError, match="no item of 12 has a target"):
        trained.task.evaluate(trained.model, data, Part("12"), ranks)


def test_page_shows_rows(headwise: CommandLine, run: Path) -> None:
    headwise.ok("page", f"run={run}", "n_sentences=2")
    assert [item["number"] for item in page_data(run)["items"]["chosen"]] == [1, 5]


def test_stopped_run_resumes_bitwise_equal(
    headwise: CommandLine, run: Path, overrides: list[str], tmp_path: Path
) -> None:
    assert_resumes_bitwise(headwise, overrides, run, tmp_path)


@pytest.mark.slow
def test_two_ranks_equal_one_with_twice_the_tokens(runs: Runs, overrides: list[str]) -> None:
    assert_two_ranks_equal_one(runs, overrides, 80, runs.folder / overrides[-1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["task.layout=encoder"], "task.layout must be one of decoder, encoder_decoder"),
        (["data=parity", "task.layout=encoder_decoder"], "targets of Parity are in place"),
        (["data.test_lengths=[8,8]"], "data.test_lengths must be different lengths"),
        (["data.max_length=4"], "data.max_length must be at least data.min_length=8"),
        (["positions=learned", "data.test_lengths=[2000]"], "positions.max_positions"),
        (["data=nback", "data.rows.back=12"], "data.max_length must be a length at which"),
        (["data=nback", "data.rows.back=9", "data.test_lengths=[8]"], "data.test_lengths must be"),
        (["data.rows.asked=8"], "asked must be at least 1 and below keys=8"),
    ],
)
def test_wrong_settings_are_refused(
    headwise: CommandLine, tmp_path: Path, changes: list[str], message: str
) -> None:
    arguments = [
        change
        for change in SMALL
        if not changes[0].startswith(("data=p", "data=n")) or "data.rows" not in change
    ]
    refused = headwise("train", *arguments, f"paths.outputs={tmp_path}", *changes)
    assert_rejected(refused, 2, message)

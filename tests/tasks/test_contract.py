"""Contract of every task, on one short training of each."""

import base64
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from command_line import CommandResult, assert_rejected, page_data, read_json, run_folders
from headwise import load
from headwise.analysis.tables import HEADS
from headwise.errors import DataError
from headwise.runs.record import Record
from headwise.tasks.inspection import readings
from headwise.train.checkpoint import load_checkpoint
from refused_settings import refused, table
from slow_marks import slow_but
from tasks.cases import ALL, CASES, DOCUMENTS
from tasks.data import write_inputs
from training_runs import assert_two_ranks_equal_one, read_log, run_outputs

ROTARY = (*DOCUMENTS, "positions=rotary")


@pytest.fixture
def case(request, trained):
    return trained(request.param)


def of_cases(*fast):
    """Every case, those named in `make test`."""
    return pytest.mark.parametrize("case", slow_but(CASES, *fast), indirect=True)


FAST = [case.name for case in ALL if not case.slow]


@of_cases(*FAST)
def test_scores_follow_from_the_weights(case):
    scores = case.results["scores"]
    expected = case.case.score_by_hand(case)
    assert {key.split("/")[0] for key in expected} == scores.keys()
    for key, score in expected.items():
        split, metric = key.split("/")
        assert scores[split][metric]["score"] == pytest.approx(score, rel=1e-6), key


@of_cases(*FAST)
def test_scores_are_sums_over_items(case):
    for split, scores in case.results["scores"].items():
        sums = Record(case.run).sums(split, "loss")
        assert scores["loss"]["score"] == pytest.approx(sums[:, 0].sum() / sums[:, 2].sum())


@of_cases("text", "masked_lm", "classes", "sequence", "own")
def test_the_last_validation_is_what_evaluate_gives(headwise, case):
    *_, last = (line for line in read_log(case.run / "metrics.jsonl") if "valid/loss" in line)
    options = "data.test=[valid]", "checkpoint=last", "name=last", *case.case.greedy
    headwise.ok("evaluate", f"run={case.run}", *options)
    evaluated = read_json(case.run / "last.json")["scores"]["valid"]
    expected = {f"valid/{name}": entry["score"] for name, entry in evaluated.items()}
    assert {name: value for name, value in last.items() if name.startswith("valid/")} == expected
    scores = case.results["scores"]
    headwise.ok("evaluate", f"run={case.run}", f"data.test=[{','.join(scores)}]", "name=again")
    assert read_json(case.run / "again.json")["scores"] == scores


@of_cases("documents", "sequence", "own")
def test_a_stopped_run_resumes_bitwise(case):
    assert read_log(case.stopped / "metrics.jsonl")[-1]["update"] == 7
    resumed = case.train(case.own / "halves")
    whole, continued = (load_checkpoint(f / "checkpoints/last.pt") for f in (case.run, resumed))
    assert whole["model"].keys() == continued["model"].keys()
    assert all(whole["model"][name].equal(continued["model"][name]) for name in whole["model"])


@pytest.mark.parametrize(
    ("name", "changes"), [*slow_but([(n, ()) for n in CASES]), ("masked_lm", ROTARY)]
)
def test_a_killed_run_resumes_bitwise(runs, trained, tmp_path, name, changes):
    case = trained(name)
    whole = case.train(tmp_path / "whole", *changes) if changes else case.run
    command = [*case.overrides, *changes, f"paths.outputs={tmp_path / 'killed'}"]
    (first,) = runs.ranks(command, 1, ("record", 5, 9))
    assert first.code == -9
    (last,) = runs.ranks(command, 1)
    assert last.code == 0, last
    (resumed,) = run_folders(tmp_path / "killed")
    outputs = [run_outputs(folder) for folder in (whole, resumed)]
    for name, content in outputs[0].items():
        assert content == outputs[1][name], name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"), [*((n, ()) for n in CASES), ("text", DOCUMENTS), ("masked_lm", ROTARY)]
)
def test_two_ranks_equal_one_with_twice_the_tokens(runs, trained, tmp_path, name, changes):
    case = trained(name)
    n_tokens = int(case.setting("trainer.max_tokens"))
    few = "trainer.max_updates=12"  # rounding grows with the updates
    assert_two_ranks_equal_one(runs, [*case.overrides, *changes, few], n_tokens, tmp_path)


@of_cases("translation", "text", "pictures", "own")
def test_heads_are_listed_analysed_and_pruned(headwise, case, tmp_path):
    results, heads, main = case.results, case.case.heads, case.loaded().task.metric.name
    assert results["heads"]["density"].keys() == case.case.sites.keys()
    headwise.ok("analyze", f"run={case.run}")
    rows = HEADS.read(Record(case.run))
    assert [(row["site"], row["layer"], row["head"]) for row in rows] == heads
    alphas = [layers for site in case.case.sites for layers in results["alpha"].get(site, [])]
    if any("alpha" in name for name, _ in case.loaded().model.named_parameters()):
        assert [row["alpha"] for row in rows] == pytest.approx(
            [a for layer in alphas for a in layer]
        )
    assert all(row["importance"] > 0 for row in rows)
    pruned = tmp_path / "pruned"
    options = "fraction=0.5", "table=true", "data.sentences=null", f"output={pruned}"
    headwise.ok("prune", f"run={case.run}", *options)
    curve = read_json(case.run / "pruning" / "curve.json")["rows"]
    assert [sum(row[site] for site in case.case.sites) for row in curve] == [
        len(heads) - round(len(heads) * tenth / 10) for tenth in range(11)
    ]
    for name in (main, "loss"):
        assert curve[0][name] == pytest.approx(results["scores"]["valid"][name]["score"])
    assert curve[0]["loss"] != pytest.approx(curve[-1]["loss"])
    kept = load(pruned, device="cpu").config.model.heads
    table = read_json(case.run / "pruning" / "importance.json")["normalised"]
    important = sorted(heads, key=lambda head: table[head[0]][head[1] - 1][head[2] - 1])
    assert sorted(important[len(heads) // 2 :]) == sorted(
        (site, layer, head)
        for site in case.case.sites
        for layer, numbers in enumerate(kept[site], 1)
        for head in numbers
    )
    headwise.ok("evaluate", f"run={pruned}", "data.test=[valid]", "name=half", *case.case.greedy)
    scores = read_json(pruned / "half.json")["scores"]["valid"]
    for name in (main, "loss"):
        assert scores[name]["score"] == pytest.approx(curve[5][name], rel=1e-6), name


def cells(line):
    return [cell.strip().replace("−", "-") for cell in line.split("|")[1:-1]]


@of_cases("documents", "sequence", "own")
def test_runs_are_compared_in_pairs(headwise, case):
    """Items are drawn for both: a drawn difference lies between those of single items."""
    out = headwise.ok("compare", f"run={case.run}", f"other={case.stopped}").out
    rows = {row[0]: row[1:] for row in map(cells, out.splitlines()) if len(row) == 7}
    runs = [Record(folder) for folder in (case.run, case.stopped)]
    for split in case.results["scores"]:
        (row,) = (row for name, row in rows.items() if name.startswith(f"{split} loss per"))
        score, other, difference = map(float, row[:3])
        assert difference == pytest.approx(score - other, abs=1.1e-3)
        losses = [run.results.scores[split]["loss"]["score"] for run in runs]
        assert [score, other] == pytest.approx(losses, abs=1e-3)
        (loss, _, n), (other_loss, _, other_n) = (run.sums(split, "loss").T[:3] for run in runs)
        assert n.tolist() == other_n.tolist()
        of_items = (loss - other_loss) / n
        low, high = map(float, row[3].strip("[]").split(" to "))
        assert of_items.min() - 1e-3 <= low <= difference <= high <= of_items.max() + 1e-3
        assert 0 < float(row[4]) <= 1


@of_cases("images", "music", "masked_lm", "classes", "sequence", "own")
def test_the_page_has_the_items(headwise, case):
    expected = case.case.page_items(case)
    headwise.ok("page", f"run={case.run}", "n_sentences=2")
    data = page_data(case.run)
    (shown,), chosen = data["runs"], data["items"]["chosen"]
    assert ": 1 layers" not in dict(shown["facts"])["model"]
    numbers = [1, len(expected) // 2 + 1]
    assert data["items"]["n_all"] == len(expected)
    assert [item["number"] for item in chosen] == numbers
    main = case.loaded().task.metric.label
    (shown_metric,) = {score["metric"] for score in shown["scores"] if score["is_main"]}
    assert shown_metric.partition(" (beam")[0] == main
    for item, number, reading in zip(chosen, numbers, shown["readings"], strict=True):
        texts, queries = expected[number - 1]
        assert item["texts"] == texts
        axes = reading["axes"][next(iter(case.case.sites))]
        if isinstance(queries, bytes):
            assert base64.b64decode(axes["view"]["values"]) == queries
        else:
            names = (re.sub("<mask:(.*)>", r"\1", name) for name in axes["queries"])
            assert queries.startswith("".join(names))
        blocks = reading["blocks"]
        places = [(b["site"], b["layer"], head) for b in blocks for head in b["heads"]]
        assert places == case.case.heads
        weights = np.frombuffer(zlib.decompress(base64.b64decode(reading["weights"])), "<f4")
        start = 0
        for block in blocks:
            shape = (len(block["heads"]), *block["shape"])
            of_block = weights[start : start + np.prod(shape)].reshape(shape)
            assert np.nansum(of_block, -1) == pytest.approx(1, abs=0.01)
            if block["site"] == "decoder_self" and shape[1] == shape[2]:
                assert np.isnan(of_block[:, ~np.tri(shape[1], dtype=bool)]).all()
            start += of_block.size
        assert start == len(weights)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("images", "item 1 has no values of data=images to show"),
        ("music", "item 1 has no values of data=music to show"),
        ("pictures", "item 1 has no values of data=image_folder to show"),
        ("pairs", "item 1 must be two texts with a tab between them"),
    ],
)
def test_texts_that_are_no_items_are_refused(trained, name, message):
    with pytest.raises(DataError, match=message):
        next(readings(trained(name).loaded(), ["one text"]))


def test_bits_count_the_bytes_of_the_text(trained):
    for name in ("text", "documents"):
        case = trained(name)
        n_bytes = len(case.data("test.txt").read_bytes())
        bits = case.results["scores"]["test"]["bits_per_byte"]
        assert bits["n_bytes"] == bits["n_scored"] == n_bytes
        assert Record(case.run).sums("test", "loss")[:, 3].sum() == n_bytes
        assert bits["score"] < 8


@pytest.mark.parametrize(
    ("command", "of_case", "settings", "expected"), table(Path(__file__).parent / "refusals.txt")
)
def test_what_does_not_fit_the_data_is_refused(
    command, of_case, settings, expected, trained, headwise, tmp_path, monkeypatch, capsys
):
    (name,), (key, cure, *code) = of_case, expected
    case = trained(name)
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    if command == "train":
        outputs = f"paths.outputs={tmp_path}/outputs"
        result = headwise("train", *case.overrides, outputs, *settings.split())
    else:
        capsys.readouterr()
        arguments = [f"run={case.run}", *settings.split()]
        exit_code = refused(command, (), arguments, tmp_path / "cache")
        result = CommandResult(exit_code, *capsys.readouterr())
    assert_rejected(result, int(code[0]) if code else 2, key, cure)
    assert command == "train" or result.err.count("\n") == 1

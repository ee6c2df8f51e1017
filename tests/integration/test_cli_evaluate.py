"""`headwise evaluate` and `headwise.load` on a trained run: sets, scores and files."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

import headwise as package
from command_line import (
    assert_rejected,
    change_config,
    read_json,
    read_results,
    without_hashes,
    write_sentence,
)
from corpus_writers import serve_folder
from headwise.commands import evaluate
from headwise.errors import DataError
from headwise.runs.results import Results
from headwise.tasks.inspection import readings
from headwise.train.checkpoint import checkpoint_path

TEXT_METRICS = ("bleu", "bleu_tokenised", "chrf", "chrf++")


def test_scores_equal_those_of_training(headwise, run):
    result = headwise("evaluate", f"run={run}")
    assert (result.code, result.err) == (0, "")
    training_scores = read_json(run / "results.json")["scores"]
    training_scores.pop("valid")
    assert read_results(run)["scores"] == training_scores
    assert (run / "checkpoints" / f"{read_results(run)['checkpoint']}.pt").is_file()
    for split, metrics in training_scores.items():
        assert set(metrics) == {*TEXT_METRICS, "loss", "nll", "perplexity"}
        for unit in ("loss", "translation"):
            sums = [f"sums/{part}{split}.{unit}.npz" for part in ("", "results-auto/")]
            assert (run / sums[0]).read_bytes() == (run / sums[1]).read_bytes()
        for metric, entry in metrics.items():
            (line,) = (row for row in result.out.splitlines() if row.split()[:2] == [split, metric])
            assert f"{entry['score']:.2f}" in line
            assert entry["signature"] in line


def test_texts_are_aligned_by_line(headwise, run, trained):
    headwise.ok("evaluate", f"run={run}", "data.test=[valid,test_b]")
    folder = run / "hypotheses" / "results-auto"
    text = trained.parents[2] / "text"
    for split, n_lines in (("valid", 6), ("test_b", 4)):
        hypotheses, references, sources = (
            (folder / f"{split}{end}.txt").read_text(encoding="utf-8").splitlines()
            for end in ("", ".ref", ".src")
        )
        assert len(hypotheses) == n_lines
        assert references == (text / f"{split}.en").read_text(encoding="utf-8").splitlines()
        assert sources == (text / f"{split}.de").read_text(encoding="utf-8").splitlines()
        digest, name = (folder / f"{split}.ref.sha256").read_text(encoding="utf-8").split()
        assert digest == hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert hypotheses == [t.text for t in package.load(run).translate(sources)]


@pytest.fixture
def read_only(run, monkeypatch):
    """A run on a read-only file system; the owner of the tests may be able to write anyway."""
    real, before = os.access, sorted(run.rglob("*"))

    def access(path, *arguments, **options):
        return not Path(path).is_relative_to(run) and real(path, *arguments, **options)

    monkeypatch.setattr(os, "access", access)
    yield run
    assert sorted(run.rglob("*")) == before


def test_read_only_run_is_evaluated_elsewhere(headwise, read_only, tmp_path):
    out = tmp_path / "scores"
    arguments = ("evaluate", f"run={read_only}", "checkpoint=last", "data.test=[test_a]")
    headwise.ok(*arguments, f"output={out}")
    assert read_results(out, "results-last")["checkpoint"] == "last"
    assert (out / "hypotheses" / "results-last" / "test_a.txt").is_file()
    assert (out / "sums" / "results-last" / "test_a.loss.npz").is_file()


@pytest.mark.parametrize(
    ("command", "others"),
    [
        ("evaluate", "set output=FOLDER, or "),
        ("page", "set output=FILE.html, or "),
        ("analyze", ""),
    ],
)
def test_command_that_writes_to_a_read_only_run_is_rejected(headwise, read_only, command, others):
    name, *arguments = command.split()
    result = headwise(name, f"run={read_only}", *arguments)
    advice = f"{read_only} cannot be written; {others}copy the run: cp -rL {read_only} FOLDER"
    assert_rejected(result, 1, advice)


def test_scores_of_other_search_or_weights_are_replaced(headwise, run):
    def scored(split, *more):
        result = headwise(
            "evaluate", f"run={run}", "checkpoint=last", f"data.test=[{split}]", *more
        )
        return result.out, set(read_results(run, "results-last")["scores"])

    scored("test_a")
    content = read_results(run, "results-last")
    content["decode"]["method"] = "beam"  # a key of version 0.1.0
    (run / "results-last.json").write_text(json.dumps(content))
    assert scored("test_b")[1] == {"test_a", "test_b"}
    out, names = scored("test_b", "decode.precision=bf16")
    assert "contained scores of test_a, test_b with other weights or search settings" in out
    assert names == {"test_b"}
    assert read_results(run, "results-last")["decode"]["precision"] == "bf16"
    earlier = min((run / "checkpoints").glob("update_*.pt"))
    shutil.copy(earlier, run / "checkpoints" / "last.pt")
    out, names = scored("test_a", "decode.precision=bf16")
    assert "contained scores of test_b with other weights" in out
    assert names == {"test_a"}


def test_scores_do_not_depend_on_the_tokens_of_a_batch(headwise, run):
    loaded = package.load(run, max_tokens=8)
    assert loaded.config.trainer.max_tokens == loaded.translator.config.max_tokens == 8
    evaluate = "evaluate", f"run={run}", "data.test=[test_a]"
    headwise.ok(*evaluate, "max_tokens=8")
    scores = read_results(run)["scores"]["test_a"]
    assert "overwritten" not in headwise.ok(*evaluate, "max_tokens=4096").out
    for metric, entry in read_results(run)["scores"]["test_a"].items():
        assert entry["score"] == pytest.approx(scores[metric]["score"], rel=1e-6)


def test_joined_sets_are_scored_as_one(headwise, run):
    joined = "test_b+test_a"
    headwise.ok("evaluate", f"run={run}", f"data.test=[{joined},test_a]")
    assert set(read_results(run)["scores"]) == {joined, "test_a"}
    folder = run / "hypotheses"
    for end in (".ref.txt", ".src.txt"):
        parts = [(folder / f"{name}{end}").read_text("utf-8") for name in joined.split("+")]
        assert (folder / "results-auto" / f"{joined}{end}").read_text("utf-8") == "".join(parts)


def test_user_text_is_scored_under_a_name(headwise, run, tmp_path):
    (tmp_path / "mine.de").write_text("Hund sieht Haus\nKatze\n", encoding="utf-8")
    (tmp_path / "mine.en").write_text("dog sees house\ncat\n", encoding="utf-8")
    text_files = [f"data.source_file={tmp_path}/mine.de", f"data.reference_file={tmp_path}/mine.en"]
    headwise.ok("evaluate", f"run={run}", *text_files, "name=mine")
    assert set(read_results(run, "mine")["scores"]) == {"mine.de"}
    headwise.ok("evaluate", f"run={run}", "data.test=[test_a]", "name=mine")
    assert set(read_results(run, "mine")["scores"]) == {"mine.de", "test_a"}
    (tmp_path / "mine.en").write_text("dog sees house\n", encoding="utf-8")
    assert_rejected(headwise("evaluate", f"run={run}", *text_files), 1, "2 lines")
    (tmp_path / "mine.de").write_bytes(b"")
    (tmp_path / "mine.en").write_bytes(b"")
    assert_rejected(headwise("evaluate", f"run={run}", *text_files), 1, "mine.de is empty")


def archive_origin(archives, file="text"):
    """`data.origins` of one corpus with one test set; `archives` maps names to addresses."""
    return [
        {
            "_target_": "headwise.data.sources.archive.Archive",
            "name": "theirs",
            "archives": {
                name: {"files": [name], "downloads": [{"url": url, "file": file.format(name)}]}
                for name, url in archives.items()
            },
            "splits": {"test_x": [{"archive": {name: name for name in archives}}]},
        }
    ]


def test_run_config_cannot_write_elsewhere(headwise, run, tmp_path):
    origins = archive_origin({"de": "http://127.0.0.1:9/text"}, "../../../../out.txt")
    run_cache = str(tmp_path / "their" / "cache")
    data = {"data__dir": None, "data__origins": origins, "data__test": ["test_x"]}
    change_config(run, **data, paths__cache=run_cache)
    before = sorted(tmp_path.iterdir())
    assert_rejected(headwise("evaluate", f"run={run}"), 2, "archives.de.downloads")
    change_config(run, data__test=["../../../out"])
    assert_rejected(headwise("evaluate", f"run={run}"), 2, "'../../../out'")
    assert sorted(tmp_path.iterdir()) == before


def test_paths_of_a_run_are_named_before_they_are_read(headwise, run, tmp_path):
    write_sentence(tmp_path / "theirs", "x")
    change_config(run, data__files={"x": [f"{tmp_path}/theirs/x"]}, data__dir=str(tmp_path))
    out = headwise.ok("evaluate", f"run={run}", "data.test=[x]").out
    assert out.startswith(
        f"reading data.dir of the run: {tmp_path}\n"
        f"reading data.files of the run: {tmp_path}/theirs/x\n"
    )
    of_user = f"run={run}", "data.test=[x]", f"data.dir={tmp_path / 'theirs'}", "name=user"
    assert "data.dir of the run" not in headwise.ok("evaluate", *of_user).out


def test_downloads_use_the_cache_of_this_machine(headwise, run, tmp_path, monkeypatch):
    write_sentence(tmp_path / "served", "x")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "ours"))
    with serve_folder(tmp_path / "served") as address:
        origins = archive_origin({code: f"{address}/x.{code}" for code in ("de", "en")}, "{}")
        (tmp_path / "their" / "encoded").mkdir(parents=True)  # a folder of another program
        data = {"data__dir": None, "data__origins": origins}
        # opening too long a path raises, as does one in the home of another person
        for cache in (str(tmp_path / "their"), "x" * 300):
            change_config(run, **data, paths__cache=cache)
            headwise.ok("evaluate", f"run={run}", "data.test=[test_x]")
    assert (tmp_path / "ours" / "downloads" / "theirs" / "de").is_file()
    assert [path.name for path in (tmp_path / "their").rglob("*")] == ["encoded"]


def test_test_sets_are_read_from_the_run_folder(headwise, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change_config(run, data__dir="text")
    headwise.ok("evaluate", f"run={run}", "data.test=[test_b,valid]")
    # a missing one is searched in the corpus, which does not exist
    result = headwise("evaluate", f"run={run}", "data.test=[test_b,test_c]")
    assert_rejected(result, 1, "test_c", "data.dir=text", str(tmp_path / "text"))


@pytest.mark.parametrize("romanian", ["source", "target"])
def test_text_is_normalised(romanian, headwise, run, tmp_path):
    english = "target" if romanian == "source" else "source"
    languages = {f"data__{romanian}": "ro", f"data__{english}": "en"}
    change_config(run, **languages, data__cleaning__normalise=["romanian_comma_below"])
    (tmp_path / "mine.a").write_text("ş\n", encoding="utf-8")
    (tmp_path / "mine.b").write_text("ţ\n", encoding="utf-8")
    files = [f"data.source_file={tmp_path}/mine.a", f"data.reference_file={tmp_path}/mine.b"]
    headwise.ok("evaluate", f"run={run}", *files, "name=mine")
    folder = run / "hypotheses" / "mine"
    texts = [(folder / f"mine.a.{end}.txt").read_text(encoding="utf-8") for end in ("src", "ref")]
    assert texts == (["ș\n", "ţ\n"] if romanian == "source" else ["ş\n", "ț\n"])
    loaded = package.load(run)
    inputs = []
    loaded.translator.translate = lambda lines, *_: inputs.append(list(lines))
    loaded.translator.score = lambda *sides: inputs.extend(map(list, sides))
    loaded.translate(["ş"])
    loaded.score(["ş"], ["ţ"])
    expected = ["ș", "ș", "ţ"] if romanian == "source" else ["ş", "ş", "ț"]
    assert inputs == [[text] for text in expected]


SSMAX = {"_target_": "headwise.attention.ssmax.SSMax", "learned": False}


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"scaling": SSMAX}, "scaling=ssmax name=other", "the run was trained with SSMax"),
        (
            {"scaling_sites__cross": SSMAX},
            "scaling=none name=other",
            "the run was trained with SSMax",
        ),
        (
            {"sites__cross": {"_target_": "headwise.attention.linear.LinearAttention"}},
            "scaling=ssmax name=other",
            "computes no scores, which SSMax needs",
        ),
    ],
)
def test_scaling_that_does_not_fit_the_run_is_rejected(headwise, run, changes, arguments, message):
    change_config(run, **changes)
    assert_rejected(headwise("evaluate", f"run={run}", *arguments.split()), 2, message)
    assert not (run / "other.json").exists()


def test_load_returns_a_run(run):
    loaded = package.load(str(run), checkpoint="update_2", beam=3, n_best=2)
    assert loaded.translator.config.beam == 3
    assert package.load(run, checkpoint=2).folder.path == run
    assert checkpoint_path(loaded.folder, "2") == checkpoint_path(loaded.folder, "update_2")
    assert not loaded.model.training
    (translation,) = loaded.translate(["Hund sieht Haus"])
    assert len(translation.n_best) == 2
    (score,) = loaded.score(["Hund sieht Haus"], ["dog sees house"])
    assert score.log_prob < 0
    for wrong, message in (
        ({"beem": 3}, r"beem is not known.*Did you mean decode.beam\?"),
        ({"beam": "many"}, "^decode.beam: "),
    ):
        with pytest.raises(package.errors.ConfigError, match=message):
            package.load(run, **wrong)


def test_string_instead_of_list_is_rejected(run):
    """Otherwise each letter would be translated as a sentence."""
    loaded, line = package.load(str(run)), "Hund sieht Haus"
    for call in (lambda: loaded.translate(line), lambda: list(readings(loaded, line))):
        with pytest.raises(DataError, match="list of sentences"):
            call()
    with pytest.raises(DataError, match="source line 2 is empty"):
        list(readings(loaded, [line, " "]))


@pytest.fixture
def during_test_b(monkeypatch):
    """Do something while test_b is scored, once."""

    def set_action(action):
        score, actions = evaluate.score, [action]

        def act_and_score(*arguments, **options):
            if actions and "test_b" in arguments:
                actions.pop()()
            return score(*arguments, **options)

        monkeypatch.setattr(evaluate, "score", act_and_score)

    return set_action


def test_scores_are_saved_if_a_later_set_fails(headwise, run, during_test_b):
    during_test_b(Mock(side_effect=DataError("no more")))
    assert_rejected(headwise("evaluate", f"run={run}", "data.test=[test_a,test_b]"), 1, "no more")
    assert set(read_results(run)["scores"]) == {"test_a"}


def test_two_evaluations_at_a_time_keep_the_scores_of_both(headwise, run, during_test_b):
    def evaluated(*arguments):
        score_test_a = "evaluate", f"run={run}", "data.test=[test_a]"
        during_test_b(lambda: headwise.ok(*score_test_a))
        return headwise.ok("evaluate", f"run={run}", "data.test=[test_b]", *arguments).out

    assert "overwritten" not in evaluated()
    assert set(read_results(run)["scores"]) == {"test_a", "test_b"}
    assert not list(run.glob(".*.lock"))
    (run / "results-auto.json").unlink()
    assert "contained scores of test_a with other" in evaluated("decode.beam=3")


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

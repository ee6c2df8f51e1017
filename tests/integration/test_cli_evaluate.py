"""`headwise evaluate` and `headwise.load` on a trained run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwise as package
from command_line import (
    CommandLine,
    assert_rejected,
    change_config,
    read_json,
    read_results,
    write_sentence,
)
from corpus_writers import serve_folder
from headwise.train.checkpoint import checkpoint_path

TEXT_METRICS = ("bleu", "bleu_tokenised", "chrf", "chrf++")


def test_the_runs_own_test_sets_get_the_runs_own_scores(headwise: CommandLine, run: Path) -> None:
    ended = headwise("evaluate", f"run={run}")
    assert (ended.code, ended.err) == (0, "")
    own = read_json(run / "results.json")["scores"]
    own.pop("valid")
    assert read_results(run)["scores"] == own
    assert (run / "checkpoints" / f"{read_results(run)['checkpoint']}.pt").is_file()
    for split, metrics in own.items():
        assert set(metrics) == {*TEXT_METRICS, "loss", "nll", "perplexity"}
        for unit in ("loss", "translation"):
            sums = [f"sums/{part}{split}.{unit}.npy" for part in ("", "results-auto/")]
            assert (run / sums[0]).read_bytes() == (run / sums[1]).read_bytes()
        for metric, found in metrics.items():
            (line,) = (one for one in ended.out.splitlines() if one.split()[:2] == [split, metric])
            assert f"{found['score']:.2f}" in line
            assert found["signature"] in line


def test_texts_are_aligned_by_line(headwise: CommandLine, run: Path, trained: Path) -> None:
    headwise.ok("evaluate", f"run={run}", "data.test=[valid,test_b]")
    folder = run / "hypotheses" / "results-auto"
    text = trained.parents[2] / "text"
    for split, n_lines in (("valid", 6), ("test_b", 4)):
        ours, references, sources = (
            (folder / f"{split}{end}.txt").read_text(encoding="utf-8").splitlines()
            for end in ("", ".ref", ".src")
        )
        assert len(ours) == n_lines
        assert references == (text / f"{split}.en").read_text(encoding="utf-8").splitlines()
        assert sources == (text / f"{split}.de").read_text(encoding="utf-8").splitlines()
        assert ours == [t.text for t in package.load(run).translate(sources)]


def test_sets_add_up_but_never_across_searches_or_weights(headwise: CommandLine, run: Path) -> None:
    headwise("evaluate", f"run={run}", "data.test=[test_a]")
    headwise("evaluate", f"run={run}", "data.test=[test_b]")
    assert set(read_results(run)["scores"]) == {"test_a", "test_b"}
    ended = headwise("evaluate", f"run={run}", "data.test=[test_b]", "decode.precision=bf16")
    assert "held scores of test_a, test_b with other weights" in ended.out
    assert set(read_results(run)["scores"]) == {"test_b"}
    assert read_results(run)["decode"]["precision"] == "bf16"


def test_other_weights_under_the_same_name_make_room(headwise: CommandLine, run: Path) -> None:
    given = ("evaluate", f"run={run}", "checkpoint=last")
    headwise(*given, "data.test=[test_a]")
    other = min((run / "checkpoints").glob("update_*.pt"))
    shutil.copy(other, run / "checkpoints" / "last.pt")
    ended = headwise(*given, "data.test=[test_b]")
    assert "held scores of test_a with other weights or another search" in ended.out
    assert read_results(run, "results-last")["checkpoint"] == "last"
    assert set(read_results(run, "results-last")["scores"]) == {"test_b"}


def test_sets_that_the_run_holds_are_scored_as_one(headwise: CommandLine, run: Path) -> None:
    joined = "test_b+test_a"
    headwise.ok("evaluate", f"run={run}", f"data.test=[{joined},test_a]")
    assert set(read_results(run)["scores"]) == {joined, "test_a"}
    folder = run / "hypotheses"
    for end in (".ref.txt", ".src.txt"):
        apart = [(folder / f"{name}{end}").read_text("utf-8") for name in joined.split("+")]
        assert (folder / "results-auto" / f"{joined}{end}").read_text("utf-8") == "".join(apart)


def test_own_text_and_a_name_of_its_own(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.de").write_text("Hund sieht Haus\nKatze\n", encoding="utf-8")
    (tmp_path / "mine.en").write_text("dog sees house\ncat\n", encoding="utf-8")
    own = [f"data.source_file={tmp_path}/mine.de", f"data.reference_file={tmp_path}/mine.en"]
    headwise.ok("evaluate", f"run={run}", *own, "name=mine")
    assert set(read_results(run, "mine")["scores"]) == {"mine.de"}
    files = {"source": str(tmp_path / "mine.de"), "reference": str(tmp_path / "mine.en")}
    assert read_results(run, "mine")["files"] == {"mine.de": files}
    headwise.ok("evaluate", f"run={run}", "data.test=[test_a]", "name=mine")
    assert set(read_results(run, "mine")["scores"]) == {"mine.de", "test_a"}
    assert read_results(run, "mine")["files"] == {"mine.de": files}
    (tmp_path / "mine.en").write_text("dog sees house\n", encoding="utf-8")
    assert_rejected(headwise("evaluate", f"run={run}", *own), 1, "2 lines")
    (tmp_path / "mine.de").write_bytes(b"")
    (tmp_path / "mine.en").write_bytes(b"")
    assert_rejected(headwise("evaluate", f"run={run}", *own), 1, "mine.de is empty")


def test_a_command_of_the_users_scores_and_may_fail(headwise: CommandLine, run: Path) -> None:
    count = f"{sys.executable} -c 'print(7.5)' {{hypotheses}}"
    broken = f"{sys.executable} -c 'import sys; sys.exit(3)' {{hypotheses}}"
    external = f'decode.external={{mine: "{count}", broken: "{broken}"}}'
    ended = headwise.ok("evaluate", f"run={run}", "data.test=[test_b]", external)
    found = read_results(run)["scores"]["test_b"]
    assert found["mine"]["score"] == 7.5
    assert "exit code 3" in found["broken"]["warning"]
    assert "exit code 3" in ended.out


def test_commands_of_a_run_never_start(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    theirs = f"touch {tmp_path}/started {{hypotheses}}"
    change_config(run, decode__external={"theirs": theirs})
    assert package.load(run).translator.config.external == {}
    count = f"{sys.executable} -c 'print(7.5)' {{hypotheses}}"
    for given in ((), (f'decode.external={{mine: "{count}"}}',)):
        headwise.ok("evaluate", f"run={run}", "data.test=[test_b]", *given)
        assert not (tmp_path / "started").exists()
        assert "theirs" not in read_results(run)["scores"]["test_b"]
    assert read_results(run)["scores"]["test_b"]["mine"]["score"] == 7.5


def archive_origin(archives: dict[str, str], file: str = "text") -> list[Any]:
    """`data.origins` of one corpus with one test set: the files of each archive by its address."""
    return [
        {
            "_target_": "headwise.data.corpora.archive.ArchiveSource",
            "name": "theirs",
            "archives": {
                name: {"files": [name], "downloads": [{"url": url, "file": file.format(name)}]}
                for name, url in archives.items()
            },
            "splits": {"test_x": [{"archive": {name: name for name in archives}}]},
        }
    ]


def test_a_run_writes_only_in_its_folder(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    origins = archive_origin({"de": "http://127.0.0.1:9/text"}, "../../../../out.txt")
    theirs = str(tmp_path / "their" / "cache")
    data = {"data__dir": None, "data__origins": origins, "data__test": ["test_x"]}
    change_config(run, **data, paths__cache=theirs)
    before = sorted(tmp_path.iterdir())
    assert_rejected(headwise("evaluate", f"run={run}"), 2, "archives.de.downloads")
    change_config(run, data__test=["../../../out"])
    assert_rejected(headwise("evaluate", f"run={run}"), 2, "'../../../out'")
    assert sorted(tmp_path.iterdir()) == before


def test_downloads_go_into_the_cache_of_this_machine(
    headwise: CommandLine, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sentence(tmp_path / "served", "x")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "ours"))
    with serve_folder(tmp_path / "served") as address:
        origins = archive_origin({code: f"{address}/x.{code}" for code in ("de", "en")}, "{}")
        theirs = str(tmp_path / "their" / "cache")
        change_config(run, data__dir=None, data__origins=origins, paths__cache=theirs)
        headwise.ok("evaluate", f"run={run}", "data.test=[test_x]")
    assert (tmp_path / "ours" / "downloads" / "theirs" / "de").is_file()
    assert not (tmp_path / "their").exists()


def test_the_runs_own_sets_are_in_its_folder(
    headwise: CommandLine, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change_config(run, data__dir="text")
    headwise.ok("evaluate", f"run={run}", "data.test=[test_b,valid]")
    # one that is not there is looked for in the corpus, which is gone
    ended = headwise("evaluate", f"run={run}", "data.test=[test_b,test_c]")
    assert_rejected(ended, 1, "test_c", "data.dir=text", str(tmp_path / "text"))


def test_another_folder_of_text_wins(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_sentence(other, "test_a")
    headwise.ok("evaluate", f"run={run}", f"data.dir={other}", "data.test=[test_a]")
    sources = run / "hypotheses" / "results-auto" / "test_a.src.txt"
    assert sources.read_text(encoding="utf-8") == "Hund sieht Haus\n"


@pytest.mark.parametrize("romanian", ["source", "target"])
def test_text_is_normalised(
    romanian: str, headwise: CommandLine, run: Path, tmp_path: Path
) -> None:
    other = "target" if romanian == "source" else "source"
    languages = {f"data__{romanian}": "ro", f"data__{other}": "en"}
    change_config(run, **languages, data__cleaning__normalise=["romanian_comma_below"])
    (tmp_path / "mine.a").write_text("ş\n", encoding="utf-8")
    (tmp_path / "mine.b").write_text("ţ\n", encoding="utf-8")
    own = [f"data.source_file={tmp_path}/mine.a", f"data.reference_file={tmp_path}/mine.b"]
    headwise.ok("evaluate", f"run={run}", *own, "name=mine")
    folder = run / "hypotheses" / "mine"
    found = [(folder / f"mine.a.{end}.txt").read_text(encoding="utf-8") for end in ("src", "ref")]
    assert found == (["ș\n", "ţ\n"] if romanian == "source" else ["ş\n", "ț\n"])
    loaded = package.load(run)
    asked: list[list[str]] = []
    loaded.translator.translate = lambda lines, *_: asked.append(list(lines))  # type: ignore
    loaded.translator.score = lambda *sides: asked.extend(map(list, sides))  # type: ignore
    loaded.translate(["ş"])
    loaded.score(["ş"], ["ţ"])
    wanted = ["ș", "ș", "ţ"] if romanian == "source" else ["ş", "ş", "ț"]
    assert asked == [[text] for text in wanted]


def test_a_run_loads_in_python(run: Path) -> None:
    loaded = package.load(str(run), checkpoint="update_2", beam=3, n_best=2)
    assert loaded.translator.config.beam == 3
    assert package.load(run, checkpoint=2).folder.path == run
    assert package.load(run, checkpoint="average_1").translate(["Hund sieht Haus"])[0].text
    assert checkpoint_path(loaded.folder, "2") == checkpoint_path(loaded.folder, "update_2")
    assert not loaded.model.training
    (one,) = loaded.translate(["Hund sieht Haus"])
    assert len(one.n_best) == 2
    (score,) = loaded.score(["Hund sieht Haus"], ["dog sees house"])
    assert score.log_prob < 0
    for wrong, told in (
        ({"beem": 3}, r"beem is not known.*Did you mean decode.beam\?"),
        ({"beam": "many"}, "^decode.beam: "),
    ):
        with pytest.raises(package.errors.ConfigError, match=told):
            package.load(run, **wrong)


def test_one_string_is_no_list_of_sentences(run: Path) -> None:
    """Its letters would be translated, each as a sentence."""
    loaded = package.load(str(run))
    translator, line = loaded.translator, "Hund sieht Haus"
    attempts: list[Callable[[], object]] = [
        lambda: loaded.translate(line),
        lambda: translator.translate(line),
        lambda: loaded.score([line], line),
        lambda: translator.score(line, [line]),
        lambda: list(loaded.task.readings(loaded, line)),
    ]
    for attempt in attempts:
        with pytest.raises(package.errors.DataError, match="list of sentences"):
            attempt()
    with pytest.raises(package.errors.DataError, match="source line 2 is empty"):
        list(loaded.task.readings(loaded, [line, " "]))

"""Tables that compare the runs of a sweep."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from fabricated_runs import RECIPE, translations, write_run
from headwise.config.folders import composed
from headwise.files import locked
from headwise.runs.results import Results
from headwise.studies.render import TextTable
from headwise.studies.sweep import sweep_tables

TRANSLATION = "data=files", "data.source=de", "data.target=en"
PLAIN_TEXT = ("data=text",)
Job = dict[str, Any]


def make_job(
    folder: Path,
    overrides: str,
    data: tuple[str, ...] = TRANSLATION,
    about: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
    **results: Any,
) -> Job:
    """A finished run.

    Args:
        about: data.json; None: there is none, as in archives of version 0.1.0.
        changes: of config.yaml, after the overrides.
    """
    run = folder / f"run{len(list(folder.iterdir()))}"
    run.mkdir()
    node = composed(*data, "tracker=none", *overrides.split())
    OmegaConf.set_struct(node, False)
    for key, value in (changes or {}).items():
        OmegaConf.update(node, key, value)
    OmegaConf.save(node, run / "config.yaml", resolve=True)
    OmegaConf.save(overrides.split(), run / "overrides.yaml")
    if about is not None:
        (run / "data.json").write_text(json.dumps(about))
    of_config = {"seed": node.seed, "updates": node.trainer.max_updates}
    Results(**{**of_config, **results}).write(run / "results.json")
    return {"overrides": overrides.split(), "run": str(run)}


def scored(score: float = 1.0, content: str | None = None) -> dict[str, Any]:
    """Scores of a translation model."""
    known = {} if content is None else {"content": content}
    return {"test": {"bleu": {"score": score, **known}}}


def main_tables(jobs: list[Job]) -> dict[str, dict[str, dict[str, str]]]:
    """Title -> row -> column -> text."""
    tables = [table for table in sweep_tables(jobs)[1] if "Difference" not in table.title]
    return {t.title: {n: dict(zip(t.headers, c, strict=True)) for n, c in t.rows} for t in tables}


def counts(jobs: list[Job]) -> dict[str, str]:
    """Row -> number of runs, of a single corpus."""
    ((_, rows),) = main_tables(jobs).items()
    return {row: columns["runs"] for row, columns in rows.items()}


def notes(jobs: list[Job]) -> list[str]:
    """Notes below the table, but those on texts that the records do not name."""
    tables: list[TextTable] = sweep_tables(jobs)[1]
    return [note for note in tables[0].notes if "text not compared" not in note]


def lines_of(jobs: list[dict[str, Any]]) -> list[str]:
    """Lines of the table, without the line below its head."""
    (table, *_) = sweep_tables(jobs)[1]
    text = table.markdown()
    head, _, *rows = (line for line in text.splitlines() if line.startswith("|"))
    return [head, *rows]


def results(bleu: float, speed: float, density: float) -> dict[str, Any]:
    heads = {"density": {"encoder_self": [[density, 1.0], [0.5, 0.5]]}}
    return {
        "scores": {"test": {"bleu": {"score": bleu}}, "other": {"bleu": {"score": 2 * bleu}}},
        "tokens_per_second": speed,
        "heads": heads,
    }


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    return [
        make_job(tmp_path, "model=tiny attention=sparsemax seed=1", **results(10, 50, 0.2)),
        make_job(tmp_path, "model=tiny attention=sparsemax seed=2", **results(14, 70, 0.4)),
        make_job(tmp_path, "model=tiny attention=softmax seed=1", **results(20, 120, 1.0)),
        {"overrides": ["model=tiny", "attention=softmax", "seed=2"], "error": "DataError: gone"},
    ]


def test_seeds_are_averaged_and_ratios_are_to_softmax(jobs: list[dict[str, Any]]) -> None:
    head, sparse, softmax = lines_of(jobs)
    named = ["BLEU test ↑", "BLEU other ↑", "runs", "tokens/s, softmax = 1"]
    assert head.split(" | ")[1:5] == named
    # sample deviation of 10 and 14; median 60 against 120; (0.3 + 1 + 0.5 + 0.5)/4
    assert sparse == "| sparsemax | 12.00 ± 2.83 | 24.00 ± 5.66 | 2 | 0.50 | 0.57 | – |"
    assert softmax == "| softmax | 20.00 | 40.00 | 1 (1 failed) | 1.00 | 0.75 | – |"


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (("attention=softmax pattern=fixed", "seed=2 attention=softmax"), ["softmax, pattern fixed",
                                                                         "softmax"]),
        (("model=tiny model=small", "model=tiny seed=2"), ["model=small", "model=tiny"]),
        (("model.d_model=64", "model.d_model=128"), ["d_model=64", "d_model=128"]),
        (("attention=softmax", "model.dropout=0.2 attention=alpha_entmax"),
         ["softmax", "alpha_entmax, dropout=0.2"]),
        (("attention.alpha_init=1.2", "attention.alpha_init=1.3", "attention=softmax"),
         ["alpha_entmax, alpha_init=1.2", "alpha_entmax, alpha_init=1.3", "softmax"]),
        # keys that decide no result, and names
        (("experiment_name=a", "seed=2 trainer.threads=2 experiment_name=b"), ["alpha_entmax"]),
    ],
)  # fmt: skip
def test_rows_are_named_by_settings(
    tmp_path: Path, overrides: tuple[str, ...], names: list[str]
) -> None:
    made = [make_job(tmp_path, text, scores=scored()) for text in overrides]
    assert list(counts(made)) == names


# -- sameness -------------------------------------------------------------------------------------


def test_rows_are_by_settings_and_not_by_typed_words(tmp_path: Path) -> None:
    """Edited yamls, and a key of version 0.1.0."""
    edited = [
        make_job(tmp_path, f"seed={n}", changes={"model.d_model": 64 * n}, scores=scored(n))
        for n in (1, 2)
    ]
    assert counts(edited) == {"alpha_entmax, d_model=64": "1", "alpha_entmax, d_model=128": "1"}
    earlier = make_job(tmp_path, "seed=1 +decode.method=greedy", scores=scored())
    assert counts([earlier, make_job(tmp_path, "seed=2 decode=greedy", scores=scored())]) == {
        "alpha_entmax": "2"
    }


@pytest.mark.parametrize("about", [[{"text": "a" * 64}, {"text": "b" * 64}], [None, None]])
def test_corpora_are_apart(tmp_path: Path, about: list[Any]) -> None:
    """By the hash of the text; where it is not known, by the settings of the data."""
    made = [
        make_job(
            *(tmp_path, f"data.dir=/data/{name} attention={attention}"),
            about=about[n],
            scores=scored(10 * n),
        )
        for n, name in enumerate("AB")
        for attention in ("softmax", "alpha_entmax")
    ]
    failed = {"overrides": ["data.dir=/data/B", "attention=softmax", "seed=2"], "error": "x"}
    tables = main_tables([*made, failed])
    assert list(tables) == ["files De→En, dir=A", "files De→En, dir=B"]
    for rows, score in zip(tables.values(), ("0.00", "10.00"), strict=True):
        assert [row["BLEU test ↑"] for row in rows.values()] == [score, score]
    assert tables["files De→En, dir=B"]["softmax"]["runs"] == "1 (1 failed)"
    (scores, _) = sweep_tables(made)
    assert set(scores.column) == {f"BLEU test, {name}" for name in tables}


def test_one_text_in_two_folders_is_one_corpus(tmp_path: Path) -> None:
    made = [
        make_job(
            *(tmp_path, f"seed={n} data.dir=/data/{n}"),
            about={"text": "a" * 64},
            scores=scored(n, "c" * 16),
        )
        for n in (1, 2)
    ]
    assert main_tables(made)[""]["alpha_entmax"]["BLEU test ↑"] == "1.50 ± 0.71"


@pytest.mark.parametrize("contents", [("c" * 16, "d" * 16), ("", "")])
def test_scores_of_another_text_are_in_another_column(
    tmp_path: Path, contents: tuple[str, str]
) -> None:
    """By the hash of the split; where it is not known, by the folder of the data."""
    made = [
        make_job(
            *(tmp_path, f"seed={n} data.dir=/data/{n}"),
            about={"text": "a" * 64},
            scores=scored(n, content or None),
        )
        for n, content in enumerate(contents)
    ]
    row = main_tables(made)[""]["alpha_entmax"]
    assert [row[f"BLEU test (text {n}) ↑"] for n in (1, 2)] == ["0.00", "1.00"]


def test_what_is_not_known_is_with_the_only_known_one(tmp_path: Path) -> None:
    """Scores and vocabularies of version 0.1.0, and of this one."""
    text = {"text": "a" * 64}
    made = [
        make_job(tmp_path, "seed=1", about=text, scores=scored(1)),
        make_job(tmp_path, "seed=2", about=text | {"vocabulary": "v" * 64}, scores=scored(3, "c")),
    ]
    assert main_tables(made)[""]["alpha_entmax"]["BLEU test ↑"] == "2.00 ± 1.41"
    (note,) = sweep_tables(made)[1][0].notes
    assert note.startswith("BLEU test: scored text not compared: no hash of it in 1 run ")
    other = text | {"vocabulary": "w" * 64}
    made.append(make_job(tmp_path, "seed=3", about=other, scores=scored(5, "d")))
    assert len(counts(made)) == 3
    row = next(iter(main_tables(made)[""].values()))
    assert sum(name.startswith("BLEU test (text ") for name in row) == 3


def test_notes_are_on_the_splits_that_are_compared(tmp_path: Path) -> None:
    """Archives of version 0.1.0 have no items of the validation set, so no hash of it."""
    hashed = {"test": {"bleu": {"score": 2.0, "content": "c"}}, "valid": {"bleu": {"score": 1.0}}}
    made = [make_job(tmp_path, f"seed={n}", about={"text": "a"}, scores=hashed) for n in (1, 2)]
    assert sweep_tables(made)[1][0].notes == []


def test_corpora_are_named_by_their_task(tmp_path: Path) -> None:
    tasks = ("density", "masked_lm")
    made = [make_job(tmp_path, f"task={name}", ("data=builtin_text",)) for name in tasks]
    assert list(main_tables(made)) == [f"builtin_text En, task={name}" for name in tasks]


def test_rows_are_apart_by_the_updates_that_were_reached(tmp_path: Path) -> None:
    words = "attention=softmax trainer.max_updates=50"
    made = [
        make_job(tmp_path, f"{words} seed=1", updates=50),
        make_job(tmp_path, f"{words} seed=2", updates=50),
        # the third was continued, with another command
        make_job(tmp_path, f"{words} seed=3", changes={"trainer.max_updates": 400}, updates=400),
    ]
    assert counts(made) == {"max_updates=50": "2", "max_updates=400": "1"}
    stopped = [
        make_job(tmp_path, f"{words} seed={n}", updates=10 * n, stopped_early=True) for n in (4, 5)
    ]
    assert counts([*made[:2], *stopped]) == {"softmax": "4"}


def test_settings_of_cost_are_rows_if_a_sweep_varied_them(tmp_path: Path) -> None:
    words = [f"model.recompute={value}" for value in ("false", "true")]
    made = [
        make_job(tmp_path, word, about={"swept": {"model.recompute": n == 1}})
        for n, word in enumerate(words)
    ]
    assert counts(made) == {"recompute=false": "1", "recompute=true": "1"}
    plain = [make_job(tmp_path, f"{word} seed={n}", about={}) for n, word in enumerate(words)]
    assert counts(plain) == {"alpha_entmax": "2"}


@pytest.mark.parametrize(
    ("key", "words"),
    [("vocabulary", "tokenizer.folder=/T/"), ("init_weights", "init_from=/runs/")],
)
def test_given_content_makes_rows_within_a_seed(tmp_path: Path, key: str, words: str) -> None:
    """Origins differ between the seeds of one row, and their paths decide nothing."""
    made = [
        make_job(tmp_path, f"seed={seed} {words}{name}", about={key: content})
        for seed, name, content in ((1, "a", "1" * 16), (1, "b", "2" * 16), (2, "b", "2" * 16))
    ]
    last = words.rpartition("=")[0].rpartition(".")[2]
    assert counts(made) == {f"{last}=a": "1", f"{last}=b": "2"}
    assert list(counts(made[1:]).values()) == ["2"]
    unlike = list(counts(made[::2]).values())
    assert unlike == (["1", "1"] if key == "vocabulary" else ["2"])


def test_a_run_counts_once(tmp_path: Path) -> None:
    made = [make_job(tmp_path, f"seed={n}", scores=scored(n)) for n in (1, 2)]
    copied = tmp_path / "copy"
    shutil.copytree(made[0]["run"], copied)
    shorter = tmp_path / "unfinished"
    shutil.copytree(made[1]["run"], shorter)
    (shorter / "results.json").unlink()
    for folder in (made[0]["run"], f"{made[0]['run']}/", str(copied), str(shorter)):
        again = [{"overrides": [], "run": folder}, *made]
        assert counts(again) == {"alpha_entmax": "2"}
        (note,) = notes(again)
        assert "is not counted: the same settings, text and seed as " in note
    failed = {"overrides": ["seed=3"], "error": "x"}
    assert counts([made[0], *made, failed]) == {"alpha_entmax": "2 (1 failed)"}
    assert notes(made) == []


def test_jobs_are_counted_as_what_they_are(tmp_path: Path) -> None:
    made = [make_job(tmp_path, f"seed={n}") for n in range(5)]
    runs = [Path(job["run"]) for job in made]
    for run in runs[1:4]:
        (run / "results.json").unlink()
    (runs[1] / "error.json").write_text('{"error": "DataError", "message": "x"}')
    shutil.rmtree(runs[4])
    recorded = [{"overrides": ["seed=5"], state: True} for state in ("interrupted", "pruned")]
    other = {"overrides": ["model=tiny", "seed=1"], "error": "x"}
    with locked(runs[2] / ".lock"):
        shown = counts([*made, *recorded, other])
    states = "1 failed, 1 running, 2 interrupted, 1 not found, 1 pruned"
    assert shown == {"alpha_entmax": f"1 ({states})", "model=tiny": "0 (1 failed)"}
    assert counts([other, {"overrides": [], "error": "x"}]) == {
        "model=tiny": "0 (1 failed)",
        "all": "0 (1 failed)",
    }


# -- cost and heads -------------------------------------------------------------------------------


def test_ratios_are_of_medians(tmp_path: Path) -> None:
    speeds = {
        "softmax": (30.0, 500.0, 40.0, None),
        "entmax15": (20.0, None),
        "sparsemax": (None,),
        "alpha_entmax": (0.0,),
    }
    jobs = [
        make_job(tmp_path, f"attention={name} seed={seed}", tokens_per_second=speed)
        for name, by_seed in speeds.items()
        for seed, speed in enumerate(by_seed)
    ]
    lines = [line.split(" | ") for line in lines_of(jobs)[1:]]
    assert [line[2] for line in lines] == ["1.00", "0.50", "–", "0.00"]


def test_mean_over_heads_includes_zeros_and_omits_missing_values(tmp_path: Path) -> None:
    jobs = [
        make_job(tmp_path, "seed=1", heads={"density": {"cross": [[0.0, 0.6, None], [0.0]]}}),
        make_job(tmp_path, "seed=2"),
        make_job(tmp_path, "model=small seed=1", heads={"density": {"cross": [[0.0]]}}),
    ]
    lines = [line.split(" | ") for line in lines_of(jobs)[1:]]
    assert [line[3] for line in lines] == ["0.20", "0.00"]


def test_ratios_are_to_the_first_row_without_softmax(tmp_path: Path) -> None:
    jobs = [
        make_job(tmp_path, f"model={name} seed=1", **results(1, speed, 1.0))
        for name, speed in (("tiny", 50), ("small", 100))
    ]
    head, first, second = lines_of(jobs)
    assert "tokens/s, model=tiny = 1" in head
    assert [line.split(" | ")[4] for line in (first, second)] == ["1.00", "2.00"]


def test_runs_of_two_tasks_have_two_tables(tmp_path: Path) -> None:
    made = [
        make_job(
            *(tmp_path, f"attention={name}", data),
            scores={"test": {metric: {"score": score}, "loss": {"score": 1.0}}},
            heads={"density": {site: [[0.5]]}},
        )
        for name, score, metric, data, site in (
            ("softmax", 30.0, "bleu", TRANSLATION, "encoder_self"),
            ("sparsemax", 22.0, "bleu", TRANSLATION, "encoder_self"),
            ("entmax15", 1.5, "bits_per_byte", PLAIN_TEXT, "decoder_self"),
        )
    ]
    first, second = main_tables(made).values()
    assert {row: columns["BLEU test ↑"] for row, columns in first.items()} == {
        "softmax": "30.00",
        "sparsemax": "22.00",
    }
    assert second["entmax15"]["bits per byte test ↓"] == "1.500"
    assert second["entmax15"]["density decoder_self"] == "0.50"


def test_rows_are_compared_over_seeds(tmp_path: Path, make: Any) -> None:
    """Two rows share the seeds 1 and 2; the third seed of one has no partner."""
    n_wrong = {("softmax", 1): 1, ("softmax", 2): 1, ("entmax15", 1): 5, ("entmax15", 2): 5}
    jobs = []
    for (name, seed), n in {**n_wrong, ("entmax15", 3): 5}.items():
        overrides = [f"attention={name}", f"seed={seed}"]
        run = tmp_path / f"{name}{seed}"
        write_run(run, make, [*RECIPE, *overrides], translations(n, 1))
        jobs.append({"overrides": overrides, "run": str(run)})
    scores, (_, differences) = sweep_tables(jobs, 50)
    assert differences.title == "Difference to softmax, in BLEU"
    ((name, texts),) = differences.rows
    assert name == "BLEU test ↑, entmax15"
    by_name = dict(zip(differences.headers, texts, strict=True))
    means = scores[scores.seed < 3].groupby("row").score.mean()
    difference = f"−{means['softmax'] - means['entmax15']:.2f}"
    assert by_name["ours"] == f"{difference} (2 of 3)"
    assert by_name["95 % over seeds"] == f"[{difference} to {difference}]"  # equal in both seeds
    assert by_name["95 % over items"].startswith("[−")
    assert differences.markdown().count("**") == 4
    _, tables = sweep_tables([job for job in jobs if job["overrides"][1] == "seed=1"], 50)
    assert tables[1].markdown().count("**") == 0

"""Tables that compare the runs of a sweep."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from fabricated_runs import RECIPE, translations, write_run
from headwise.config.commands import TableConfig
from headwise.config.folders import composed
from headwise.errors import ConfigError, RunError
from headwise.files import locked
from headwise.runs.results import Results
from headwise.studies.match import SavedRun
from headwise.studies.sweep import N_RESAMPLES, sweep_tables

TRANSLATION = "data=files", "data.source=de", "data.target=en"
PLAIN_TEXT = ("data=text",)
Job = dict[str, Any]


def make_job(folder, overrides, data=TRANSLATION, about=None, **results):
    """A finished run.

    Args:
        overrides: of the command; after ` / ` those of an edited yaml.
        about: data.json.
    """
    run = folder / f"run{len(list(folder.iterdir()))}"
    run.mkdir()
    typed, _, edited = overrides.partition(" / ")
    node = composed(*data, "tracker=none", *typed.split(), *edited.split())
    OmegaConf.save(node, run / "config.yaml", resolve=True)
    OmegaConf.save(typed.split(), run / "overrides.yaml")
    (run / "data.json").write_text(json.dumps(about or {}))
    of_config = {"seed": node.seed, "updates": node.trainer.max_updates}
    Results(**{**of_config, **results}).write(run / "results.json")
    return {"overrides": typed.split(), "run": str(run)}


def make_jobs(folder, overrides, **settings):
    """Runs of several overrides, separated by ` | `."""
    return [make_job(folder, of_run, **settings) for of_run in overrides.split(" | ")]


def scored(score, **hashes):
    """Scores of a translation model."""
    return {"test": {"bleu": {"score": score, **hashes}}}


def main_tables(jobs):
    """Title -> row -> column -> text."""
    tables = [table for table in sweep_tables(jobs)[1] if "Difference" not in table.title]
    return {t.title: {n: dict(zip(t.headers, c, strict=True)) for n, c in t.rows} for t in tables}


def counts(jobs):
    """Rows and their numbers of runs, of a single corpus."""
    (rows,) = main_tables(jobs).values()
    return "; ".join(f"{row}: {columns['runs']}" for row, columns in rows.items())


def lines_of(jobs):
    """Lines of the table, without the line below its head."""
    text = sweep_tables(jobs)[1][0].markdown()
    head, _, *rows = (line for line in text.splitlines() if line.startswith("|"))
    return [head, *rows]


def results(bleu, speed, density):
    heads = {"density": {"encoder_self": [[density, 1.0], [0.5, 0.5]]}}
    return {
        "scores": {"test": {"bleu": {"score": bleu}}, "other": {"bleu": {"score": 2 * bleu}}},
        "tokens_per_second": speed,
        "heads": heads,
    }


def test_seeds_are_averaged_and_ratios_are_to_softmax(tmp_path):
    head, sparse, softmax = lines_of([
        make_job(tmp_path, "model=tiny attention=sparsemax seed=1", **results(10, 50, 0.2)),
        make_job(tmp_path, "model=tiny attention=sparsemax seed=2", **results(14, 70, 0.4)),
        make_job(tmp_path, "model=tiny attention=softmax seed=1", **results(20, 120, 1.0)),
        {"overrides": ["model=tiny", "attention=softmax", "seed=2"], "error": "DataError: gone"},
    ])  # fmt: skip
    named = ["BLEU test ↑", "BLEU other ↑", "runs", "seeds", "tokens/s, softmax = 1"]
    assert head.split(" | ")[1:6] == named
    # sample deviation of 10 and 14; median 60 against 120; (0.3 + 1 + 0.5 + 0.5)/4
    assert sparse == "| sparsemax | 12.00 ± 2.83 | 24.00 ± 5.66 | 2 | 1, 2 | 0.50 | 0.57 | – |"
    assert softmax == "| softmax | 20.00 | 40.00 | 1 (1 failed) | 1 | 1.00 | 0.75 | – |"


# -- sameness -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "rows"),
    [
        ("attention=softmax pattern=fixed | attention=softmax",
         "softmax, pattern fixed: 1; softmax: 1"),
        ("model=tiny model=small | model=tiny", "model=small: 1; model=tiny: 1"),
        ("model.d_model=64 | model.d_model=128", "d_model=64: 1; d_model=128: 1"),
        ("seed=1 / model.d_model=64 | seed=2 / model.d_model=128",
         "alpha_entmax, d_model=64: 1; alpha_entmax, d_model=128: 1"),
        ("attention=softmax | model.dropout=0.2", "softmax: 1; alpha_entmax, dropout=0.2: 1"),
        ("attention.alpha_init=1.2 | attention.alpha_init=1.3 | attention=softmax",
         "alpha_entmax, alpha_init=1.2: 1; alpha_entmax, alpha_init=1.3: 1; softmax: 1"),
        # what decides no result, and a key of version 0.1.0
        ("experiment_name=a | seed=2 trainer.threads=2 experiment_name=b", "alpha_entmax: 2"),
        ("+decode.method=greedy | seed=2 decode=greedy", "alpha_entmax: 2"),
    ],
)  # fmt: skip
def test_rows_are_by_settings_and_not_by_typed_words(tmp_path, overrides, rows):
    assert counts(make_jobs(tmp_path, overrides)) == rows


@pytest.mark.parametrize("texts", ["ab", [None, None]])
def test_corpora_are_apart(tmp_path, texts):
    """By the hash of the text; where it is not known, by the settings of the data."""
    made = [
        job
        for name, text, score in zip("AB", texts, (1, 2), strict=True)
        for job in make_jobs(
            *(tmp_path, f"data.dir=/{name} attention=softmax | data.dir=/{name}"),
            about={"text": text},
            scores=scored(score),
        )
    ]
    failed = {"overrides": ["data.dir=/B", "attention=softmax", "seed=2"], "error": "x"}
    tables = main_tables([*made, failed])
    keys = "BLEU test ↑", "runs"
    shown = {name: [[row[k] for k in keys] for row in of.values()] for name, of in tables.items()}
    assert shown == {
        "files De→En, dir=A": [["1.00", "1"], ["1.00", "1"]],
        "files De→En, dir=B": [["2.00", "1 (1 failed)"], ["2.00", "1"]],
    }
    assert set(sweep_tables(made)[0].column) == {f"BLEU test, {name}" for name in tables}


APART = {"BLEU test (text 1) ↑": "1.00", "BLEU test (text 2) ↑": "2.00"}


@pytest.mark.parametrize(
    ("hashes", "scores"),
    [
        ([{"content": "c"}, {"content": "c"}], {"BLEU test ↑": "1.50 ± 0.71"}),
        ([{"content": "c"}, {"content": "d"}], APART),
        ([{}, {}], APART),
    ],
)
def test_scores_of_another_text_are_in_another_column(tmp_path, hashes, scores):
    """By the hash of the split; where it is not known, by the folder of the data."""
    made = [
        make_job(
            *(tmp_path, f"seed={n} data.dir=/data/{n}"),
            about={"text": "a"},
            scores=scored(n, **of_run),
        )
        for n, of_run in enumerate(hashes, 1)
    ]
    row = main_tables(made)[""]["alpha_entmax"]
    assert {name: text for name, text in row.items() if "BLEU" in name} == scores


def test_what_is_not_known_is_with_the_only_known_one(tmp_path):
    """Scores and vocabularies of version 0.1.0, and of this one."""
    text = {"text": "a" * 64}
    made = [
        make_job(tmp_path, "seed=1", about=text, scores=scored(1)),
        make_job(
            tmp_path, "seed=2", about=text | {"vocabulary": "v" * 64}, scores=scored(3, content="c")
        ),
    ]
    assert main_tables(made)[""]["alpha_entmax"]["BLEU test ↑"] == "2.00 ± 1.41"
    (note,) = sweep_tables(made)[1][0].notes
    assert note.startswith("BLEU test: scored text not compared: no hash of it in 1 run ")
    other = text | {"vocabulary": "w" * 64}
    made.append(make_job(tmp_path, "seed=3", about=other, scores=scored(5, content="d")))
    assert len(main_tables(made)[""]) == 3
    row = next(iter(main_tables(made)[""].values()))
    assert sum(name.startswith("BLEU test (text ") for name in row) == 3


def test_notes_are_on_the_splits_that_are_compared(tmp_path):
    """Archives of version 0.1.0 have no items of the validation set, so no hash of it."""
    hashed = {"test": {"bleu": {"score": 2.0, "content": "c"}}, "valid": {"bleu": {"score": 1.0}}}
    made = [make_job(tmp_path, f"seed={n}", about={"text": "a"}, scores=hashed) for n in (1, 2)]
    assert sweep_tables(made)[1][0].notes == []


def test_corpora_are_named_by_their_task(tmp_path):
    tasks = ("density", "masked_lm")
    made = [make_job(tmp_path, f"task={name}", ("data=builtin_text",)) for name in tasks]
    assert list(main_tables(made)) == [f"builtin_text En, task={name}" for name in tasks]


def test_rows_are_apart_by_the_updates_that_were_reached(tmp_path):
    words = "attention=softmax trainer.max_updates=50 seed="
    # the third was continued, with another command
    made = make_jobs(tmp_path, f"{words}1 | {words}2 | {words}3 / trainer.max_updates=400")
    assert counts(made) == "max_updates=50: 2; max_updates=400: 1"
    stopped = [make_job(tmp_path, f"{words}{n}", updates=n, stopped_early=True) for n in (4, 5)]
    assert counts([*made[:2], *stopped]) == "softmax: 4"


def test_settings_of_cost_are_rows_if_a_sweep_varied_them(tmp_path):
    words = "seed=1 model.recompute=false | seed=2 model.recompute=true"
    assert counts(make_jobs(tmp_path, words)) == "alpha_entmax: 2"
    swept = make_jobs(tmp_path, words, about={"swept": {"model.recompute": True}})
    assert counts(swept) == "recompute=false: 1; recompute=true: 1"


@pytest.mark.parametrize(
    ("key", "setting", "unlike"),
    [
        ("vocabulary", "tokenizer.folder", "folder=a: 1; folder=c: 1"),
        ("init_weights", "init_from", "alpha_entmax: 2"),
    ],
)
def test_given_content_makes_rows_within_a_seed(tmp_path, key, setting, unlike):
    """Origins differ between the seeds of one row, and their paths decide nothing."""
    made = [
        make_job(tmp_path, f"seed={seed} {setting}=/{name}", about={key: content})
        for seed, name, content in ((1, "a", "1"), (1, "b", "2"), (2, "c", "2"))
    ]
    last = setting.rpartition(".")[2]
    assert counts(made) == f"{last}=a: 1; {last}=b: 2"
    assert counts(made[1:]) == "alpha_entmax: 2"
    assert counts(made[::2]) == unlike


def test_a_run_counts_once(tmp_path):
    made = make_jobs(tmp_path, "seed=1 | seed=2")
    first, second = (job["run"] for job in made)
    copied = shutil.copytree(first, tmp_path / "copy")
    unfinished = shutil.copytree(second, tmp_path / "unfinished")
    (unfinished / "results.json").unlink()
    failed = {"overrides": ["seed=3"], "error": "x"}
    for folder in (first, f"{first}/", copied, unfinished):
        again = [{"overrides": [], "run": str(folder)}, *made, failed]
        assert counts(again) == "alpha_entmax: 2 (1 failed)"
        (note,) = (n for n in sweep_tables(again)[1][0].notes if "not counted" in n)
        assert "is not counted: the same settings, text and seed as " in note


def test_jobs_are_counted_as_what_they_are(tmp_path):
    made = make_jobs(tmp_path, " | ".join(f"seed={n}" for n in range(6)))
    _, failed, running, interrupted, gone, broken = (Path(job["run"]) for job in made)
    for run in (failed, running, interrupted):
        (run / "results.json").unlink()
    (failed / "error.json").write_text('{"error": "DataError", "message": "x"}')
    shutil.rmtree(gone)
    (broken / "config.yaml").write_text("model: [")
    recorded = [{"overrides": ["seed=9"], state: True} for state in ("interrupted", "pruned")]
    other = {"overrides": ["model=tiny", "seed=1"], "error": "x"}
    with locked(running / ".lock"):
        shown = counts([*made, *recorded, other])
    states = "1 failed, 1 running, 2 interrupted, 1 not found, 1 broken, 1 pruned"
    assert shown == f"alpha_entmax: 1 ({states}); model=tiny: 0 (1 failed)"
    with pytest.raises(RunError, match="is broken"):
        counts([{"run": SavedRun(broken)}])
    (note,) = sweep_tables([*made[:1], made[-1]])[1][0].notes
    assert note.startswith(f"{broken} is not counted: {broken}/config.yaml is broken")
    alone = counts([other, {"overrides": [], "error": "x"}])
    assert alone == "model=tiny: 0 (1 failed); all: 0 (1 failed)"


@pytest.mark.parametrize(
    ("overrides", "given", "baseline", "n_notes"),
    [
        ("attention=entmax15 | attention=softmax model=small", None, "softmax, model=small", 0),
        ("attention=entmax15 | attention=softmax pattern=fixed | attention=softmax model=small",
         None, "softmax, pattern fixed", 1),
        ("attention=entmax15 | attention=sparsemax", None, "entmax15", 1),
        ("attention=entmax15 | attention=sparsemax", "sparsemax", "sparsemax", 0),
        ("attention=entmax15", None, "entmax15", 0),
    ],
)  # fmt: skip
def test_baseline(tmp_path, overrides, given, baseline, n_notes):
    _, (table,) = sweep_tables(make_jobs(tmp_path, overrides), 50, given)
    assert f"tokens/s, {baseline} = 1" in table.headers
    assert [baseline in note for note in table.notes] == [True] * n_notes


@pytest.mark.parametrize("given", ["softmx", "softmax"])
def test_unknown_and_ambiguous_baselines_are_refused(tmp_path, given):
    made = make_jobs(tmp_path, "attention=softmax pattern=fixed | attention=softmax model=small")
    with pytest.raises(ConfigError, match=r"baseline.*softmax, pattern fixed"):
        sweep_tables([*made, make_job(tmp_path, "attention=entmax15")], 50, given)


# -- cost and heads -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speeds", "ratios"),
    [
        ({"softmax": (30.0, 500.0, 40.0, None), "entmax15": (20.0, None), "sparsemax": (None,),
          "alpha_entmax": (0.0,)}, ["softmax = 1", "1.00", "0.50", "–", "0.00"]),
        ({"sparsemax": (50.0,), "entmax15": (100.0,)}, ["sparsemax = 1", "1.00", "2.00"]),
    ],
)  # fmt: skip
def test_ratios_are_of_medians(tmp_path, speeds, ratios):
    """To softmax, else to the first row."""
    jobs = [
        make_job(tmp_path, f"attention={name} seed={seed}", tokens_per_second=speed)
        for name, by_seed in speeds.items()
        for seed, speed in enumerate(by_seed)
    ]
    shown = [line.split(" | ")[3].removeprefix("tokens/s, ") for line in lines_of(jobs)]
    assert shown == ratios


def test_mean_over_heads_includes_zeros_and_omits_missing_values(tmp_path):
    jobs = [
        make_job(tmp_path, "seed=1", heads={"density": {"cross": [[0.0, 0.6, None], [0.0]]}}),
        make_job(tmp_path, "seed=2"),
        make_job(tmp_path, "model=small seed=1", heads={"density": {"cross": [[0.0]]}}),
    ]
    lines = [line.split(" | ") for line in lines_of(jobs)[1:]]
    assert [line[4] for line in lines] == ["0.20", "0.00"]


def test_runs_of_two_tasks_have_two_tables(tmp_path):
    made = [
        make_job(
            *(tmp_path, "seed=1", data),
            scores={"test": {metric: {"score": 1.5}, "loss": {"score": 1.0}}},
            heads={"density": {site: [[0.5]]}},
        )
        for metric, data, site in (
            ("bleu", TRANSLATION, "encoder_self"),
            ("bits_per_byte", PLAIN_TEXT, "decoder_self"),
        )
    ]
    first, second = (of_task["alpha_entmax"] for of_task in main_tables(made).values())
    assert (first["BLEU test ↑"], first["density encoder_self"]) == ("1.50", "0.50")
    assert (second["bits per byte test ↓"], second["density decoder_self"]) == ("1.500", "0.50")


def test_rows_are_compared_over_seeds(tmp_path, make):
    """Two rows share the seeds 1 and 2; the third seed of one has no partner."""
    jobs = []
    for name, seeds, n_wrong in (("softmax", (1, 2), 1), ("entmax15", (1, 2, 3), 5)):
        for seed in seeds:
            overrides, run = [f"attention={name}", f"seed={seed}"], tmp_path / f"{name}{seed}"
            write_run(run, make, [*RECIPE, *overrides], translations(n_wrong, 1))
            jobs.append({"overrides": overrides, "run": str(run)})
    _, (table, differences) = sweep_tables(jobs, 50)
    assert dict(table.rows)["entmax15"][-4] == "1–3"
    assert TableConfig.n_resamples == N_RESAMPLES
    assert differences.title == "Difference to softmax, in BLEU"
    ((name, (ours, over_seeds, over_items, _)),) = differences.rows
    assert name == "BLEU test ↑, entmax15"
    assert re.fullmatch(r"−\d+\.\d\d \(2 of 3\)", ours)
    assert over_seeds == "[{0} to {0}]".format(ours.split()[0])  # equal in both seeds
    assert over_items.count("−") == 2

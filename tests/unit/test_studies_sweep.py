"""Tables that compare the runs of a sweep."""

import json
import re
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from composed_configs import changed
from fabricated_runs import RECIPE, translations, write_run
from golden_files import assert_golden
from headwise.errors import ConfigError, RunError
from headwise.files import locked
from headwise.runs.results import Results
from headwise.studies.record import TaskRecord
from headwise.studies.sweep import sweep_tables

TRANSLATION = "data=files data.source=de data.target=en"


def make_job(folder, overrides, data=TRANSLATION, about=None, **results):
    """A finished run.

    Args:
        overrides: of the command; after ` / ` those of an edited yaml.
        about: data.json.
    """
    run = folder / f"run{len(list(folder.iterdir()))}"
    run.mkdir()
    typed, _, edited = overrides.partition(" / ")
    base = (*data.split(), "tracker=none")
    node = changed("train", base, [*typed.split(), *edited.split()])
    OmegaConf.save(node, run / "config.yaml", resolve=True)
    OmegaConf.save(typed.split(), run / "overrides.yaml")
    (run / "data.json").write_text(json.dumps(about or {}))
    of_config = {"seed": node.seed, "updates": node.trainer.max_updates}
    Results(**{**of_config, **results}).write(run / "results.json")
    return {"overrides": typed.split(), "run": str(run)}


def make_jobs(folder, *jobs):
    """Runs, each of its overrides alone or with what else `make_job` takes; records as given."""
    made = []
    for job in jobs:
        if isinstance(job, dict):
            made.append(job)
        else:
            overrides, more = (job, {}) if isinstance(job, str) else job
            made.append(make_job(folder, overrides, **more))
    return made


def scored(score, test="test", metric="bleu", **hashes):
    """Results with one score."""
    return {"scores": {test: {metric: {"score": score, **hashes}}}}


def counts(jobs):
    """Rows and their numbers of runs, of a single corpus."""
    (table,) = (table for table in sweep_tables(jobs)[1] if "Difference" not in table.title)
    column = table.headers.index("runs")
    return "; ".join(f"{row}: {cells[column]}" for row, cells in table.rows)


def lines_of(jobs):
    """Lines of the table, without the line below its head."""
    text = sweep_tables(jobs)[1][0].markdown()
    head, _, *rows = (line for line in text.splitlines() if line.startswith("|"))
    return [head, *rows]


def test_means_deviations_and_ratios_follow_their_definitions(tmp_path):
    def of_run(bleu, speed, *density):
        heads = {"density": {"encoder_self": [[*density, 1.0], [0.5, 0.5]]}}
        scores = {"test": {"bleu": {"score": bleu}}, "other": {"bleu": {"score": 2 * bleu}}}
        return {"scores": scores, "tokens_per_second": speed, "heads": heads}

    failed = {"overrides": ["model=tiny", "attention=softmax", "seed=2"], "error": "DataError: x"}
    head, sparse, softmax = lines_of(make_jobs(
        tmp_path,
        ("model=tiny attention=sparsemax seed=1", of_run(10, 50, 0.2)),
        ("model=tiny attention=sparsemax seed=2", of_run(14, 70, 0.4)),
        ("model=tiny attention=softmax seed=1", of_run(20, 120, 1.0)),
        failed,
    ))  # fmt: skip
    named = ["BLEU test ↑", "BLEU other ↑", "runs", "seeds", "tokens/s, softmax = 1"]
    assert head.split(" | ")[1:6] == named
    # sample deviation of 10 and 14; median 60 against 120; (0.3 + 1 + 0.5 + 0.5)/4
    assert sparse == "| sparsemax | 12.00 ± 2.83 | 24.00 ± 5.66 | 2 | 1, 2 | 0.50 | 0.57 | – |"
    assert softmax == "| softmax | 20.00 | 40.00 | 1 (1 failed) | 1 | 1.00 | 0.75 | – |"


# -- whole tables ---------------------------------------------------------------------------------


def of_texts(*texts):
    """Runs of two folders of data, whose texts have these hashes."""
    return [
        (f"data.dir=/{name}{attention}", {"about": {"text": text}, **scored(score)})
        for name, text, score in zip("AB", texts, (1, 2), strict=True)
        for attention in (" attention=softmax", "")
    ] + [{"overrides": ["data.dir=/B", "attention=softmax", "seed=2"], "error": "x"}]


def of_contents(*hashes):
    """Runs of one training text, scored on test sets with these hashes, in folders of their own."""
    return [
        (f"seed={n} data.dir=/data/{n}", {"about": {"text": "a"}, **scored(n, **of_run)})
        for n, of_run in enumerate(hashes, 1)
    ]


def of_speeds(**speeds):
    """Runs of several attentions, with speeds by seed."""
    return [
        (f"attention={name} seed={seed}", {"tokens_per_second": speed})
        for name, by_seed in speeds.items()
        for seed, speed in enumerate(by_seed)
    ]


def of_versions(*vocabularies):
    """Runs of one text: vocabulary and hash of the scored text, which 0.1.0 did not write."""
    return [
        (f"seed={n}", {"about": {"text": "a" * 64, **about}, **scored(2 * n - 1, **content)})
        for n, (about, content) in enumerate(vocabularies, 1)
    ]


OLD = ({}, {})
NEW = ({"vocabulary": "v" * 64}, {"content": "c"})
TABLES = {  # what a table shows -> its jobs
    "corpora are apart by the hash of the text": of_texts("a", "b"),
    "corpora of texts that are not known are apart by the settings": of_texts(None, None),
    "corpora are named by their task": [
        (f"task={name}", {"data": "data=builtin_text"}) for name in ("density", "masked_lm")
    ],
    "scores of one text": of_contents({"content": "c"}, {"content": "c"}),
    "scores of another text are in another column": of_contents({"content": "c"}, {"content": "d"}),
    "scores of texts that are not known are by the folder of the data": of_contents({}, {}),
    "what is not known is with the only known one": of_versions(OLD, NEW),
    "what is not known is apart from several known ones": of_versions(
        OLD, NEW, ({"vocabulary": "w" * 64}, {"content": "d"})
    ),
    "notes are on the splits that are compared": [
        (
            f"seed={n}",
            {
                "about": {"text": "a"},
                "scores": scored(2.0, content="c")["scores"] | scored(1.0, "valid")["scores"],
            },
        )
        for n in (1, 2)
    ],
    "ratios are of medians, to softmax": of_speeds(
        softmax=(30.0, 500.0, 40.0, None), entmax15=(20.0, None), sparsemax=(None,),
        alpha_entmax=(0.0,),
    ),
    "ratios are to the first row": of_speeds(sparsemax=(50.0,), entmax15=(100.0,)),
    "means over heads include zeros and omit missing values": [
        ("seed=1", {"heads": {"density": {"cross": [[0.0, 0.6, None], [0.0]]}}}),
        "seed=2",
        ("model=small seed=1", {"heads": {"density": {"cross": [[0.0]]}}}),
    ],
    "two tasks have two tables": [
        (
            "seed=1",
            {
                "data": data,
                "scores": {"test": {metric: {"score": 1.5}, "loss": {"score": 1.0}}},
                "heads": {"density": {site: [[0.5]]}},
            },
        )
        for metric, data, site in (
            ("bleu", TRANSLATION, "encoder_self"),
            ("bits_per_byte", "data=text", "decoder_self"),
        )
    ],
}  # fmt: skip


def test_tables_of_fabricated_jobs(tmp_path):
    shown = []
    for name, jobs in TABLES.items():
        folder = tmp_path / f"of{len(shown)}"
        folder.mkdir()
        scores, tables = sweep_tables(make_jobs(folder, *jobs), 50)
        columns = "".join(f"- {column}\n" for column in scores.column.unique())
        texts = (table.markdown() for table in tables)
        shown.append("\n".join([f"# {name}\n", *texts, f"Columns of the scores:\n{columns}"]))
    assert_golden("studies/sweeps.md", "\n\n".join(shown).replace(str(tmp_path), "FOLDER"))


# -- sameness -------------------------------------------------------------------------------------


def of_data(key, setting, *origins):
    """Runs whose setting is a path, with the hash of its content in data.json: seed, path, hash."""
    return [
        (f"seed={seed} {setting}=/{name}", {"about": {key: content}})
        for seed, name, content in origins
    ]


SWEPT = {"about": {"swept": {"model.recompute": True}}}
SHORT = "attention=softmax trainer.max_updates=50 seed="
ONE, OF_ITS_SEED, LAST = (1, "a", "1"), (1, "b", "2"), (2, "c", "2")
VOCABULARY = ("vocabulary", "tokenizer.folder")
WEIGHTS = ("init_weights", "init_from")
ROWS = [  # jobs -> rows
    (["attention=softmax pattern=fixed", "attention=softmax"],
     "softmax, pattern fixed: 1; softmax: 1"),
    (["model=tiny model=small", "model=tiny"], "model=small: 1; model=tiny: 1"),
    (["model.d_model=64", "model.d_model=128"], "d_model=64: 1; d_model=128: 1"),
    (["seed=1 / model.d_model=64", "seed=2 / model.d_model=128"],
     "alpha_entmax, d_model=64: 1; alpha_entmax, d_model=128: 1"),
    (["attention=softmax", "model.dropout=0.2"], "softmax: 1; alpha_entmax, dropout=0.2: 1"),
    (["attention.alpha_init=1.2", "attention.alpha_init=1.3", "attention=softmax"],
     "alpha_entmax, alpha_init=1.2: 1; alpha_entmax, alpha_init=1.3: 1; softmax: 1"),
    # what decides no result, and a key of version 0.1.0
    (["experiment_name=a", "seed=2 trainer.threads=2 experiment_name=b"], "alpha_entmax: 2"),
    (["+decode.method=greedy", "seed=2 decode=greedy"], "alpha_entmax: 2"),
    # the updates that were reached: the third was continued, with another command
    ([f"{SHORT}1", f"{SHORT}2", f"{SHORT}3 / trainer.max_updates=400"],
     "max_updates=50: 2; max_updates=400: 1"),
    ([f"{SHORT}1", *((f"{SHORT}{n}", {"updates": n, "stopped_early": True}) for n in (4, 5))],
     "softmax: 3"),
    # what costs only is a row if a sweep varied it
    (["seed=1 model.recompute=false", "seed=2 model.recompute=true"], "alpha_entmax: 2"),
    ([("seed=1 model.recompute=false", SWEPT), ("seed=2 model.recompute=true", SWEPT)],
     "recompute=false: 1; recompute=true: 1"),
    # given content makes rows within a seed; of other seeds its origin may differ
    (of_data(*VOCABULARY, ONE, OF_ITS_SEED, LAST), "folder=a: 1; folder=b: 2"),
    (of_data(*VOCABULARY, OF_ITS_SEED, LAST), "alpha_entmax: 2"),
    (of_data(*VOCABULARY, ONE, LAST), "folder=a: 1; folder=c: 1"),
    (of_data(*WEIGHTS, ONE, OF_ITS_SEED, LAST), "init_from=a: 1; init_from=b: 2"),
    (of_data(*WEIGHTS, OF_ITS_SEED, LAST), "alpha_entmax: 2"),
    (of_data(*WEIGHTS, ONE, LAST), "alpha_entmax: 2"),
]  # fmt: skip


@pytest.mark.parametrize(("jobs", "rows"), ROWS)
def test_rows_are_by_what_decides_results(tmp_path, jobs, rows):
    """By settings and content, and not by typed words and paths."""
    assert counts(make_jobs(tmp_path, *jobs)) == rows


def test_a_run_counts_once(tmp_path):
    made = make_jobs(tmp_path, "seed=1", "seed=2")
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
    made = make_jobs(tmp_path, *(f"seed={n}" for n in range(6)))
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
        counts([{"run": TaskRecord(broken)}])
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
    _, (table,) = sweep_tables(make_jobs(tmp_path, *overrides.split(" | ")), 50, given)
    assert f"tokens/s, {baseline} = 1" in table.headers
    assert [baseline in note for note in table.notes] == [True] * n_notes


@pytest.mark.parametrize("given", ["softmx", "softmax"])
def test_unknown_and_ambiguous_baselines_are_refused(tmp_path, given):
    made = make_jobs(tmp_path, "attention=softmax pattern=fixed", "attention=softmax model=small")
    with pytest.raises(ConfigError, match=r"baseline.*softmax, pattern fixed"):
        sweep_tables([*made, make_job(tmp_path, "attention=entmax15")], 50, given)


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
    assert differences.title == "Difference to softmax, in BLEU"
    ((name, (ours, over_seeds, over_items, _)),) = differences.rows
    assert name == "BLEU test ↑, entmax15"
    assert re.fullmatch(r"−\d+\.\d\d \(2 of 3\)", ours)
    assert over_seeds == "[{0} to {0}]".format(ours.split()[0])  # equal in both seeds
    assert over_items.count("−") == 2

"""Tables that compare the runs of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from fabricated_runs import RECIPE, translations, write_run
from headwise.config.folders import composed
from headwise.runs.results import Results
from headwise.studies.sweep import job_names, sweep_tables

TRANSLATION = "data=files", "data.source=de", "data.target=en"
PLAIN_TEXT = ("data=text",)


def make_job(
    folder: Path, overrides: list[str], data: tuple[str, ...] = TRANSLATION, **results: Any
) -> dict[str, Any]:
    run = folder / "-".join(overrides).replace("=", "_")
    run.mkdir()
    seed = next((o for o in overrides if o.startswith("seed=")), "seed=1")
    OmegaConf.save(composed(*data, "tracker=none", seed), run / "config.yaml", resolve=True)
    Results(**results).write(run / "results.json")
    return {"overrides": overrides, "run": str(run)}


def lines_of(jobs: list[dict[str, Any]]) -> list[str]:
    """Lines of the table, without the line below its head."""
    text = sweep_tables(jobs)[1][0].markdown()
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
def jobs(tmp_path: Path) -> list[dict[str, Any]]:
    return [
        make_job(tmp_path, ["model=tiny", "variant=sparse", "seed=1"], **results(10, 50, 0.2)),
        make_job(tmp_path, ["model=tiny", "variant=sparse", "seed=2"], **results(14, 70, 0.4)),
        make_job(tmp_path, ["model=tiny", "variant=softmax", "seed=1"], **results(20, 120, 1.0)),
        {"overrides": ["model=tiny", "variant=softmax", "seed=2"], "error": "DataError: gone"},
    ]


def test_seeds_are_averaged_and_ratios_are_to_softmax(jobs: list[dict[str, Any]]) -> None:
    head, sparse, softmax = lines_of(jobs)
    named = ["BLEU test ↑", "BLEU other ↑", "runs", "tokens/s, softmax = 1"]
    assert head.split(" | ")[1:5] == named
    # sample deviation of 10 and 14; median 60 against 120; (0.3 + 1 + 0.5 + 0.5)/4
    assert sparse == "| sparse | 12.00 ± 2.83 | 24.00 ± 5.66 | 2 | 0.50 | 0.57 | – |"
    assert softmax == "| softmax | 20.00 | 40.00 | 1 (1 failed) | 1.00 | 0.75 | – |"


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (("attention=softmax pattern=fixed seed=1", "attention=softmax seed=1"), ["fixed", "all"]),
        (("model=tiny seed=1 model=small", "model=tiny seed=2 seed=1"), ["small", "tiny"]),
        # keys that decide no result are left out
        (("a=1 tracker=none paths.outputs=x", "a=2 trainer.threads=2"), ["1", "2"]),
        (("a=1 trainer.gradient_sum=flat", "a=2 +decode.external={x:y}"), ["1", "2"]),
        # only the seed itself is left out of a name
        (("seed_x=3 seeds=4 seed seed=1", "seed=2"), ["seed_x=3 seeds=4 seed", "all"]),
        (
            ("model.dropout=0.2 seed=1", "loss.label_smoothing=0.2 seed=1"),
            ["model.dropout=0.2", "loss.label_smoothing=0.2"],
        ),
    ],
)
def test_rows_are_named_by_differences(overrides: tuple[str, ...], names: list[str]) -> None:
    jobs = [{"overrides": text.split(), "error": "x"} for text in overrides]
    assert job_names(jobs) == names
    assert [line.split(" | ")[0] for line in lines_of(jobs)[1:]] == [f"| {name}" for name in names]


def test_ratios_are_of_medians(tmp_path: Path) -> None:
    speeds = {"softmax": (30.0, 500.0, 40.0, None), "x": (20.0, None), "y": (None,), "z": (0.0,)}
    jobs = [
        make_job(tmp_path, [f"a={name}", f"seed={seed}"], tokens_per_second=speed)
        for name, by_seed in speeds.items()
        for seed, speed in enumerate(by_seed)
    ]
    lines = [line.split(" | ") for line in lines_of(jobs)[1:]]
    assert [line[2] for line in lines] == ["1.00", "0.50", "–", "0.00"]


def test_mean_over_heads_includes_zeros_and_omits_missing_values(tmp_path: Path) -> None:
    jobs = [
        make_job(
            tmp_path, ["a=1", "seed=1"], heads={"density": {"cross": [[0.0, 0.6, None], [0.0]]}}
        ),
        make_job(tmp_path, ["a=1", "seed=2"]),
        make_job(tmp_path, ["a=2", "seed=1"], heads={"density": {"cross": [[0.0]]}}),
    ]
    lines = [line.split(" | ") for line in lines_of(jobs)[1:]]
    assert [line[3] for line in lines] == ["0.20", "0.00"]


def test_ratios_are_to_the_first_row_without_softmax(tmp_path: Path) -> None:
    jobs = [
        make_job(tmp_path, [f"a={name}", "seed=1"], **results(1, speed, 1.0))
        for name, speed in (("x", 50), ("y", 100))
    ]
    head, first, second = lines_of(jobs)
    assert "tokens/s, x = 1" in head
    assert [line.split(" | ")[4] for line in (first, second)] == ["1.00", "2.00"]


def test_runs_of_two_tasks_share_one_table(tmp_path: Path) -> None:
    jobs = [
        make_job(
            *(tmp_path, [f"a={name}"], data),
            scores={"test": {metric: {"score": score}, "loss": {"score": 1.0}}},
            heads={"density": {site: [[0.5]]}},
        )
        for name, score, metric, data, site in (
            ("x", 30.0, "bleu", TRANSLATION, "encoder_self"),
            ("y", 22.0, "bleu", TRANSLATION, "encoder_self"),
            ("read", 1.5, "bits_per_byte", PLAIN_TEXT, "decoder_self"),
            ("other", 3.0, "bits_per_byte", PLAIN_TEXT, "decoder_self"),
        )
    ]
    head, *rows = [[line.split(" | ")[n] for n in (1, 2, 5)] for line in lines_of(jobs)]
    assert head[:2] == ["BLEU test ↑", "bits per byte test ↓"]
    assert head[2] == "density encoder_self/decoder_self"
    assert rows == [
        ["30.00", "–", "0.50 / –"],
        ["22.00", "–", "0.50 / –"],
        ["–", "1.500", "– / 0.50"],
        ["–", "3.000", "– / 0.50"],
    ]


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

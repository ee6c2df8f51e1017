"""Run folders written without training, for commands that read runs."""

import csv
import json
import re

import yaml

from headwise.config.register import typed
from headwise.config.saved import saved_settings
from headwise.runs.folder import RunFolder
from headwise.tasks.check import resolve
from headwise.tasks.task import task_of
from headwise.tasks.translation.metrics import score_translations

REFERENCES = [
    "the dog sees the cat in the old house",
    "a child finds the red car near the tree",
    "no cat knows what the small dog wants today",
    "three houses stand near the old tree by the road",
    "the child sees a blue car and a red house",
    "what does the dog find in the small house",
]
RECIPE = (
    "data=files", "data.source=de", "data.target=en", "data.test=[test]", "tokenizer=char",
    "tracker=none",
)  # fmt: skip
ROWS = {"softmax": "softmax", "entmax15": "1.5-entmax"}
METRICS = {"bleu_tokenised": "tokenised BLEU", "bleu": "BLEU (13a)"}


MACHINE = {"platform": "Linux", "cpus": 2, "threads": 1, "gpu": None, "world_size": 1}


def write_study(folder, recipe=RECIPE, **changes):
    """Write a study of two rows and one column; returns its config folder."""
    paper = {"values": {"softmax": 30.0, "entmax15": 30.5}, "mark": "r+"}
    content = {
        "name": "tiny", "title": "A tiny study", "baseline": "softmax", "seeds": [1, 2],
        "metrics": METRICS,
        "rows": {n: {"label": label, "overrides": [f"attention={n}"]} for n, label in ROWS.items()},
        "columns": {
            "mine": {"label": "Mine", "test": "test", "overrides": [*recipe], "paper": paper}
        },
        **changes,
    }  # fmt: skip
    path = folder / "configs" / "study" / "tiny.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return str(path.parents[1])


def translations(n_wrong, seed=1):
    """The references with a wrong word in `n_wrong` of them; which word depends on the seed."""
    sentences = [line.split() for line in REFERENCES]
    for number in range(n_wrong):
        words = sentences[number % len(sentences)]
        words[(number + seed) % len(words)] = "wrong"
    return [" ".join(words) for words in sentences]


def hashed(scores, content="0" * 16):
    """Scores with a hash of their text and items; None: as of 0.1.0."""
    hashes = {} if content is None else {"content": content, "items": content}
    return {name: {**entry, **hashes} for name, entry in scores.items()}


def write_run(
    folder, make, overrides, hypotheses, test="test", text="0" * 64, content="0" * 16, **changes
):
    """A run folder with the configuration of the overrides.

    Args:
        make: overrides -> composed configuration.
        hypotheses: of the test set; None: the run is not finished.
        text: hash of the training text.
        content: hash of the scored text and its items; None: as of 0.1.0.
        changes: of results.json; `machine` of environment.json.
    """
    config = make(list(overrides))
    task = task_of(typed(config))
    resolve(task)
    container = saved_settings(task.config)
    folder.mkdir(parents=True)
    run = RunFolder(folder)
    run.describe(container, list(overrides))
    machine = {**MACHINE, **changes.pop("machine", {})}
    run.write_json("environment.json", machine)
    run.write_json("data.json", {"text": text})
    if hypotheses is None:
        return folder
    texts = folder / "hypotheses"
    texts.mkdir()
    for ending, lines in ((".txt", hypotheses), (".ref.txt", REFERENCES)):
        path = texts / f"{test}{ending}"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (texts / f"{test}.ref.sha256").write_text("of REFERENCES")
    evaluation = score_translations(hypotheses, REFERENCES, config.data.target)
    run.write_sums(test, "translation", evaluation.items)
    results = {
        "scores": {test: hashed({**evaluation.scores(), "search": {"exact": 1.0}}, content)},
        "seed": config.seed,
        "updates": container["trainer"]["max_updates"],
        "stopped_early": False,
        "tokens_per_second": 10.0,  # includes pauses
        "status": "finished",
    }
    speeds = [100.0, 1000.0, changes.pop("speed", 1000.0), 2000.0]
    run.metrics.write_text(
        "".join(json.dumps({"time/tokens_per_second": speed}) + "\n" for speed in speeds)
    )
    run.write_json("results.json", {**results, **changes})
    return folder


def csv_rows(tmp_path, part="", **values):
    """Rows of a CSV file of the table that have these values."""
    with open(tmp_path / "tables" / f"tiny{part}.csv", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def stable(text):
    """A text without versions of packages, and floats with the digits that all processors have."""
    text = re.sub(r"(version:|sacremoses-)[\d.]*\d", r"\1…", text)
    return re.sub(r"\d+\.\d{7,}(e-\d+)?", lambda digits: f"{float(digits[0]):.6f}", text)

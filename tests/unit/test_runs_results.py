"""results.json as a dataclass."""

import json
from dataclasses import fields

import pytest

from headwise.errors import RunError
from headwise.runs.folder import RunFolder
from headwise.runs.results import Results

BLEU = {"score": 30.5, "signature": "tok:13a"}


def test_written_results_are_read_back(tmp_path):
    path = tmp_path / "results.json"
    assert Results.read(path) is None
    alphas = {"cross": [[1.5, None]]}
    results = Results({"test": {"bleu": BLEU}}, alphas, updates=7, git={"commit": "c"})
    results.write(path)
    assert Results.read(path) == results
    content = json.loads(path.read_text())
    assert content["status"] == "finished"
    # 0.1.0 refuses an unknown field as "of another version"; it knows all others
    assert content.keys() - {field.name for field in fields(Results)} == {"format"}
    del content["format"]  # as 0.1.0 wrote it
    path.write_text(json.dumps(content))
    assert Results.read(path) == results
    assert (results.score("test", "bleu"), results.signature("test", "bleu")) == (30.5, "tok:13a")
    for split, metric in (("other", "bleu"), ("test", "chrf"), (None, "bleu")):
        assert results.score(split, metric) is results.signature(split, metric) is None


def test_unfinished_and_foreign_results_are_not_read(tmp_path):
    path = tmp_path / "results.json"
    Results(status="interrupted").write(path)
    assert Results.read(path) is None
    path.write_text('{"status": "finished", "bleu": 3}')
    with pytest.raises(RunError, match=r"of another version: unknown bleu"):
        Results.read(path)
    wrong = {"scores": [], "updates": "3", "heads": {"density": {"cross": 1}}, "status": 3}
    for key, value in wrong.items():
        path.write_text(json.dumps({"status": "finished", key: value}))
        with pytest.raises(RunError, match=f"{key} has a value of a wrong type"):
            Results.read(path)
    path.write_text('{"format": 3, "status": "finished", "new_field": 1}')
    with pytest.raises(RunError, match=r"has format 3, written by a newer version.* up to 2"):
        Results.read(path)
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    for saved in ({"update": [], "train_seconds": 1.0}, {"update": 3}):
        (folder.checkpoints / "last.json").write_text(json.dumps(saved))
        with pytest.raises(RunError, match=r"last\.json is broken"):
            folder.read_last()

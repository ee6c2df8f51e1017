"""Wrong input is refused with one message, the key and the cure, an exit code and no traceback.

Settings before data is read: a row of `refusals/*.txt` each.
"""

import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from command_line import (
    CommandResult,
    assert_rejected,
    break_alignment,
    read_json,
    run_folders,
    small_overrides,
    write_corpus,
)
from headwise import records
from refused_settings import refused, table

TABLES = Path(__file__).parent / "refusals"


@pytest.mark.parametrize(
    ("command", "base", "settings", "expected"),
    [*table(TABLES / "settings.txt"), *table(TABLES / "commands.txt")],
)
def test_settings_are_refused(
    command, base, settings, expected, trained, headwise, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    files = sorted(trained.parent.rglob("*"))
    places = {"RUN": str(trained), "TEXT": str(trained.parents[2] / "text"), "LONG": "ä" * 128}

    def filled(text):
        return re.sub("RUN|TEXT|LONG", lambda word: places[word[0]], text)

    arguments = filled(settings).split()
    if command == "line":
        result = headwise(*arguments)
    else:
        result = CommandResult(
            refused(command, base, arguments, tmp_path / "cache"), *capsys.readouterr()
        )
    key, cure, *code = map(filled, expected)
    assert_rejected(result, int(code[0]) if code else 2, key, cure)
    assert sorted(trained.parent.rglob("*")) == files
    assert not (tmp_path / "outputs").exists()


def test_bytes_that_are_not_utf8_are_named(headwise):
    assert_rejected(headwise("train", "seed=1\udcff"), 2, "seed=1? is not UTF-8")


def test_variables_of_jobs_are_set_in_the_shell(headwise):
    result = headwise("train", "-m", "+hydra.job.env_set.WANDB_API_KEY=secret", "seed=1,2")
    assert_rejected(result, 2, "set the variable in the shell")
    assert "=secret" not in result.out + result.err


def break_encoding(text):
    lines = (text / "train.de").read_bytes().splitlines(keepends=True)
    lines[2] = b"caf\xe9\n"
    (text / "train.de").write_bytes(b"".join(lines))
    return "train.de, line 3: not UTF-8 (byte 0xe9"


def empty_training_text(text):
    for code in ("de", "en"):
        (text / f"train.{code}").write_text("", encoding="utf-8")
    return "train"


def remove_validation_text(text):
    for code in ("de", "en"):
        (text / f"valid.{code}").unlink()
    return "valid"


def break_test_set(text):
    (text / "test_b.en").write_text("one line\n", encoding="utf-8")
    return "test_b.en"


@pytest.mark.parametrize(
    "break_text",
    [break_alignment, break_encoding, empty_training_text, remove_validation_text, break_test_set],
)
def test_invalid_text_is_rejected(break_text, headwise, tmp_path):
    message = break_text(write_corpus(tmp_path / "text"))
    assert_rejected(headwise("prepare", *small_overrides(tmp_path)), 1, message)


@pytest.mark.parametrize(
    ("split", "code", "message"),
    [
        ("valid", "en", "target line 2 of valid has"),
        ("test_b", "de", "source line 2 of test_b has"),
    ],
)
def test_line_longer_than_positions_is_rejected_before_training(
    split, code, message, headwise, tmp_path
):
    path = write_corpus(tmp_path / "text") / f"{split}.{code}"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[1] = " ".join([lines[1]] * 40)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    limited = ["positions=learned", "positions.max_positions=50"]
    arguments = small_overrides(tmp_path, *limited, "tokenizer.max_sentence_tokens=40")
    assert_rejected(headwise("train", *arguments), 1, message, "at most 50")
    (folder,) = run_folders(tmp_path / "outputs")
    assert not list((folder / "checkpoints").iterdir())


def test_target_as_long_as_positions_is_accepted(headwise, tmp_path):
    path = write_corpus(tmp_path / "text") / "valid.en"
    lines = path.read_text(encoding="utf-8").splitlines()
    (tmp_path / "text" / "test_b.en").write_text(f"{' '.join(lines[:1] * 40)}\n" * 4)
    path.write_text("\n".join([" ".join(lines[:1] * 20), *lines[1:]]) + "\n", encoding="utf-8")
    limited = ["positions=learned", "tokenizer.max_sentence_tokens=40"]
    short = headwise("train", *small_overrides(tmp_path, *limited, "positions.max_positions=50"))
    (n_tokens,) = re.findall(r"has (\d+) tokens with eos", short.err)
    long_enough = small_overrides(tmp_path, *limited, f"positions.max_positions={n_tokens}")
    logged = headwise.ok("train", *long_enough).out
    (results,) = tmp_path.glob("outputs/*/*/results.json")
    scores = read_json(results)["scores"]
    assert {name for name in scores if "loss" in scores[name]} == {"valid", "test_a"}
    note = scores["test_b"]["note"]["loss"]  # longer than the positions
    assert f"positions for {n_tokens}" in note
    assert note in logged
    assert "test_b/note" not in records(results.parent)


@pytest.fixture
def failing(headwise, monkeypatch):
    """Run a command that raises an error."""

    def run(command, error):
        monkeypatch.setattr(f"headwise.commands.{command}.{command}", Mock(side_effect=error))
        return headwise(command, *([] if command == "train" else ["run=x"]))

    return run


MEMORY = "can't allocate memory: you tried"


@pytest.mark.parametrize(
    ("command", "advice"),
    [("train", " Lower trainer.max_tokens"), ("sample", " Lower max_tokens."), ("page", "\n")],
)
def test_lack_of_memory_has_advice(command, advice, failing):
    result = failing(command, RuntimeError(MEMORY))
    assert_rejected(result, 1, f"out of memory ({MEMORY}).{advice}".strip())
    assert ("Lower" in result.err) == ("Lower" in advice)


def test_unexpected_errors_have_a_traceback(failing):
    result = failing("train", LookupError("a defect"))
    assert (result.code, "Traceback" in result.err) == (1, True)
    assert "LookupError: a defect" in result.err


def test_config_of_another_version_is_rejected(headwise, tmp_path):
    (tmp_path / "config.yaml").write_text("sed: 1\n", encoding="utf-8")
    assert_rejected(headwise("evaluate", f"run={tmp_path}"), 1, "config.yaml", "version")
    for text in ("a: [1\n", "data: 3\n"):
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        assert_rejected(headwise("evaluate", f"run={tmp_path}"), 1, "config.yaml", "broken")


def test_unwritable_output_folder_is_named(headwise, tmp_path):
    write_corpus(tmp_path / "text")
    (tmp_path / "file").touch()
    settings = [o for o in small_overrides(tmp_path) if not o.startswith("paths.outputs")]
    result = headwise("train", *settings, f"paths.outputs={tmp_path}/file")
    assert_rejected(result, 1, f"{tmp_path}/file", "paths.outputs")

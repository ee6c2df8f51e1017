"""Files of a failed run."""

from unittest.mock import Mock

import pytest

from command_line import (
    assert_rejected,
    break_alignment,
    read_json,
    small_overrides,
    write_corpus,
)
from headwise.errors import RunError


def test_failed_run_has_error_json(headwise, tmp_path, monkeypatch):
    write_corpus(tmp_path / "text")
    with monkeypatch.context() as patch:
        fail = Mock(side_effect=RunError("no figure"))
        patch.setattr("headwise.commands.train.choose_weights", fail)
        assert_rejected(headwise("train", *small_overrides(tmp_path)), 1, "no figure")
    (error_file,) = (tmp_path / "outputs").glob("*/*/error.json")
    assert read_json(error_file)["error"] == "RunError"
    headwise.ok("train", *small_overrides(tmp_path))
    assert (error_file.parent / "results.json").exists()
    assert not error_file.exists()


@pytest.mark.parametrize("failure", ["text", "train.en", "vocab_size"])
def test_failed_data_leaves_no_folder(headwise, tmp_path, failure):
    """No text; misaligned files; a vocabulary that the text does not reach."""
    if failure != "text":
        write_corpus(tmp_path / "text")
    if failure == "train.en":
        break_alignment(tmp_path / "text")
    size = 9000 if failure == "vocab_size" else 60
    result = headwise("train", *small_overrides(tmp_path, f"tokenizer.vocab_size={size}"))
    assert failure in result.err
    assert not (tmp_path / "outputs").exists()


def test_run_interrupted_at_its_figures_has_results_and_draws_them(headwise, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    write_corpus(tmp_path / "text")
    with monkeypatch.context() as patch:
        patch.setattr("headwise.commands.train.draw", interrupt)
        assert headwise("train", *small_overrides(tmp_path)).code == 130
    (results,) = (tmp_path / "outputs").glob("*/*/results.json")
    assert "this run is finished" not in headwise.ok("train", *small_overrides(tmp_path)).out
    assert (results.parent / "figures").is_dir()
    assert "this run is finished" in headwise.ok("train", *small_overrides(tmp_path)).out

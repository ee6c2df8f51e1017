"""Files of a failed run."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import (
    CommandLine,
    assert_rejected,
    break_alignment,
    read_json,
    small_overrides,
    write_corpus,
)


def test_failed_run_has_error_json(headwise: CommandLine, tmp_path: Path) -> None:
    break_alignment(write_corpus(tmp_path / "text"))
    assert_rejected(headwise("train", *small_overrides(tmp_path)), 1, "train.en")
    (error_file,) = (tmp_path / "outputs").glob("*/*/error.json")
    assert read_json(error_file)["error"] == "DataError"
    write_corpus(tmp_path / "text")
    headwise.ok("train", *small_overrides(tmp_path))
    (results_file,) = (tmp_path / "outputs").glob("*/*/results.json")
    assert not (results_file.parent / "error.json").exists()


def test_run_interrupted_before_figures_is_unfinished(
    headwise: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    write_corpus(tmp_path / "text")
    with monkeypatch.context() as patch:
        patch.setattr("headwise.commands.train.draw", interrupt)
        assert headwise("train", *small_overrides(tmp_path)).code == 130
    assert not list((tmp_path / "outputs").glob("*/*/results.json"))
    headwise.ok("train", *small_overrides(tmp_path))
    assert list((tmp_path / "outputs").glob("*/*/results.json"))


def test_folder_of_run_without_text_is_removed(headwise: CommandLine, tmp_path: Path) -> None:
    assert_rejected(headwise("train", *small_overrides(tmp_path)), 1, "text")
    (error_file,) = (tmp_path / "outputs").glob("*/*/error.json")
    write_corpus(tmp_path / "text")
    headwise.ok("train", *small_overrides(tmp_path))
    assert not error_file.parent.exists()

"""What a run that failed leaves behind."""

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


def test_a_failure_leaves_error_json_in_its_folder(headwise: CommandLine, tmp_path: Path) -> None:
    break_alignment(write_corpus(tmp_path / "text"))
    assert_rejected(headwise("train", *small_overrides(tmp_path)), 1, "train.en")
    (left,) = (tmp_path / "outputs").glob("*/*/error.json")
    assert read_json(left)["error"] == "DataError"
    write_corpus(tmp_path / "text")
    headwise.ok("train", *small_overrides(tmp_path))
    (went_well,) = (tmp_path / "outputs").glob("*/*/results.json")
    assert not (went_well.parent / "error.json").exists()


def test_a_run_without_its_figures_is_not_finished(
    headwise: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    write_corpus(tmp_path / "text")
    with monkeypatch.context() as patch:
        patch.setattr("headwise.commands.train.draw", killed)
        assert headwise("train", *small_overrides(tmp_path)).code == 130
    assert not list((tmp_path / "outputs").glob("*/*/results.json"))
    headwise.ok("train", *small_overrides(tmp_path))
    assert list((tmp_path / "outputs").glob("*/*/results.json"))


def test_a_failure_before_the_text_is_removed(headwise: CommandLine, tmp_path: Path) -> None:
    assert_rejected(headwise("train", *small_overrides(tmp_path)), 1, "text")
    (left,) = (tmp_path / "outputs").glob("*/*/error.json")
    write_corpus(tmp_path / "text")
    headwise.ok("train", *small_overrides(tmp_path))
    assert not left.parent.exists()

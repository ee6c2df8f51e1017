"""Digests of the code of the classes that a configuration names."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from headwise.train.chosen_code import changed_code, code_digests

OWN = {"_target_": "headwise.attention.softmax.Softmax"}


def test_of_every_class_that_has_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("toy_without_a_file")
    made.Thing = type("Thing", (), {"__module__": made.__name__})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setenv("HEADWISE_PLUGINS", made.__name__)
    container: dict[str, Any] = {
        "pattern": {"_target_": f"{made.__name__}.Thing"},
        "attention": OWN,
        "sites": {"cross": {"_target_": "headwise.attention.tanh.Tanh"}, "encoder_self": None},
        "optimizer": {"_target_": "torch.optim.Adam"},
        "scheduler": {"_target_": "gone.with.the.Plugin"},
        "data": {"origins": [{"_target_": "headwise.data.builtin.Builtin"}]},
        "seed": 1,
    }
    found = code_digests(container)
    assert set(found) == {OWN["_target_"], "headwise.attention.tanh.Tanh"}
    assert len(set(found.values())) == 2


def test_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_digests.py").write_text("class Thing: ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HEADWISE_PLUGINS", "toy_digests")
    container = {"attention": {"_target_": "toy_digests.Thing"}, "loss": OWN}
    before = code_digests(container)
    assert changed_code(before, container) == []
    assert changed_code({}, container) == []  # older runs have none
    (tmp_path / "toy_digests.py").write_text("class Thing: a = 1\n", encoding="utf-8")
    assert changed_code(before, container) == ["toy_digests.Thing"]

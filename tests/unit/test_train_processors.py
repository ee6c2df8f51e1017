"""A training says once that other processes take its processors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from headwise.train import processors
from headwise.train.processors import ProcessorWatch, waited


@pytest.mark.parametrize(
    ("share", "threads", "n_warnings"), [(0.05, 2, 0), (0.3, 2, 1), (0.3, 1, 0), (None, 2, 0)]
)
def test_busy_processors_are_one_warning(
    share: float | None,
    threads: int,
    n_warnings: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = {"now": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: clock["now"])
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    total = threads * (share or 0)
    monkeypatch.setattr(
        processors, "waited", lambda: None if share is None else total * clock["now"]
    )
    watch = ProcessorWatch()
    for second in range(40):
        clock["now"] = float(second)
        watch.check()
        assert len(caplog.records) == n_warnings * (second >= processors.INTERVAL)
    assert all("trainer.threads=" in record.message for record in caplog.records)


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux counts it")
def test_waited_time_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seconds = waited()
    assert seconds is not None
    assert seconds >= 0
    monkeypatch.setattr(processors, "THREADS", tmp_path / "none")
    assert waited() is None

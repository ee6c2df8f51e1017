"""A training warns once that other processes take its processors, or that it became slow."""

import math
import random
import sys

import pytest
import torch

from headwise.train import processors
from headwise.train.processors import ProcessorWatch, waited


@pytest.mark.parametrize(
    ("share", "threads", "n_warnings"), [(0.05, 2, 0), (0.3, 2, 1), (0.3, 1, 0), (None, 2, 0)]
)
def test_busy_processors_are_one_warning(share, threads, n_warnings, monkeypatch, caplog):
    clock = {"now": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: clock["now"])
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    total = threads * (share or 0)
    monkeypatch.setattr(
        processors, "waited", lambda: math.nan if share is None else total * clock["now"]
    )
    watch = ProcessorWatch()
    for second in range(40):
        clock["now"] = float(second)
        watch.check()
        assert len(caplog.records) == n_warnings * (second >= processors.INTERVAL)
    assert all("trainer.threads" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("factor", "share", "warned_at"), [(1.0, 0.0, None), (3.5, 0.0, 600), (3.5, 0.3, 600)]
)
def test_slower_updates_are_one_warning(factor, share, warned_at, monkeypatch, caplog):
    numbers = random.Random(1)
    clock = {"now": 0.0, "waited": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: clock["now"])
    monkeypatch.setattr(processors, "waited", lambda: clock["waited"])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    watch, tokens, seconds = ProcessorWatch(), 0, 0.0
    for update in range(1, 1001):
        lasts = 15.0 if update in (1, 330) else numbers.uniform(0.05, 0.15)  # two that compile
        lasts *= factor if update > 500 else 1.0
        # targets differ: rows of 100 keys, of 10, of one
        tokens, seconds = tokens + numbers.choice((10, 100, 1000)), seconds + lasts
        passed = lasts + 60 * (update % 300 == 1)  # after a validation
        clock["now"] += passed
        clock["waited"] += share * passed * (update > 500)
        if update % 50 == 0 or update < 20:
            watch.check_speed(update, tokens, seconds)
        is_warned = warned_at is not None and update >= warned_at
        assert len(caplog.records) == is_warned
    assert ("waited for processors" in caplog.text) == (share > 0)


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux counts it")
def test_waited_time_is_read(monkeypatch, tmp_path):
    seconds = waited()
    assert seconds >= 0
    monkeypatch.setattr(processors, "THREADS", tmp_path / "none")
    assert math.isnan(waited())

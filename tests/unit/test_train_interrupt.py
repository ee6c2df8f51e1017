"""Signals that ask a run to leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from headwise.train.interrupt import SIGNALS, StopRequest, stop_request


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_remembered_within_the_block_alone(number: signal.Signals) -> None:
    if number == signal.SIGHUP:  # as where the tests were not started by nohup
        signal.signal(number, signal.SIG_DFL)
    before = signal.getsignal(number)
    with stop_request() as request:
        assert not request
        signal.raise_signal(number)
        assert request
        assert request.signal_number == number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("tells", [True, False])
def test_one_rank_logs_the_first_signal(capfd: pytest.CaptureFixture[str], tells: bool) -> None:
    with stop_request(tells):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
    assert capfd.readouterr().err.count("stopping after this update") == tells


@pytest.mark.parametrize("first", ["signal.raise_signal(signal.SIGTERM)", "told.show(loss=1.0)"])
def test_nobody_has_to_read_what_is_told(first: str) -> None:
    """Ctrl-C at `headwise train 2>&1 | tee log` ends tee; the run still has to save."""
    code = f"""
import signal, sys
from headwise.train.interrupt import stop_request
from headwise.train.progress import Progress
with stop_request() as stop, Progress(0, 9, True) as told:
    {first}
    signal.raise_signal(signal.SIGTERM)
    told.show(loss=1.0)
print("stopped", file=sys.stderr)
sys.exit(stop.signal_number)
"""
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([sys.executable, "-c", code], stderr=write, check=False)
    os.close(write)
    assert ended.returncode == signal.SIGTERM


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_request() as request:
            signal.raise_signal(signal.SIGHUP)
            assert not request
    finally:
        signal.signal(signal.SIGHUP, before)


def test_only_ctrl_c_leaves_before_all_is_saved() -> None:
    """A scheduler sends SIGUSR1 and then SIGTERM, while the run is still saving."""
    request = StopRequest()
    try:
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            request.handle(number, None)
    except KeyboardInterrupt:
        pytest.fail("what was not saved is lost")
    assert request.signal_number == signal.SIGINT  # the first says how the process ends
    with pytest.raises(KeyboardInterrupt):
        request.handle(signal.SIGINT, None)

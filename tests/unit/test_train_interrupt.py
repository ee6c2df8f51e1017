"""Signals that stop a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from headwise.train.interrupt import SIGNALS, StopRequest, stop_request


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_is_recorded_within_the_block_only(number: signal.Signals) -> None:
    if number == signal.SIGHUP:  # the default, also if the tests were started by nohup
        signal.signal(number, signal.SIG_DFL)
    before = signal.getsignal(number)
    with stop_request() as request:
        assert not request
        signal.raise_signal(number)
        assert request
        assert request.signal_number == number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("logs", [True, False])
def test_one_rank_logs_the_first_signal(capfd: pytest.CaptureFixture[str], logs: bool) -> None:
    with stop_request(logs):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
    assert capfd.readouterr().err.count("stopping after this update") == logs


@pytest.mark.parametrize(
    "first", ["signal.raise_signal(signal.SIGTERM)", "progress.show(loss=1.0)"]
)
def test_closed_stderr_is_no_error(first: str) -> None:
    """Ctrl-C at `headwise train 2>&1 | tee log` ends tee; the run still has to save."""
    code = f"""
import signal, sys
from headwise.train.interrupt import stop_request
from headwise.train.progress import Progress
with stop_request() as stop, Progress(0, 9, True) as progress:
    {first}
    signal.raise_signal(signal.SIGTERM)
    progress.show(loss=1.0)
print("stopped", file=sys.stderr)
sys.exit(stop.signal_number)
"""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run([sys.executable, "-c", code], stderr=write, check=False)
    os.close(write)
    assert process.returncode == signal.SIGTERM


def test_signal_ignored_by_nohup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_request() as request:
            signal.raise_signal(signal.SIGHUP)
            assert not request
    finally:
        signal.signal(signal.SIGHUP, before)


def test_only_ctrl_c_interrupts_saving() -> None:
    """A scheduler sends SIGUSR1 and then SIGTERM, while the run is still saving."""
    request = StopRequest()
    try:
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            request.handle(number, None)
    except KeyboardInterrupt:
        pytest.fail("saving was interrupted")
    assert request.signal_number == signal.SIGINT  # the first sets the exit code
    with pytest.raises(KeyboardInterrupt):
        request.handle(signal.SIGINT, None)

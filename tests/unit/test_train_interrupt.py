"""Signals that stop a run."""

import os
import pickle
import signal
import subprocess
import sys

import pytest

from headwise.errors import Interrupted
from headwise.train.interrupt import SIGNALS, StopRequest, stop_request


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_is_raised_or_deferred_within_the_block_only(number):
    if number == signal.SIGHUP:  # the default, also if the tests were started by nohup
        signal.signal(number, signal.SIG_DFL)
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as stopped, stop_request():
        signal.raise_signal(number)
    assert stopped.value.exit_code == 128 + number
    with pytest.raises(Interrupted), stop_request() as request:  # noqa: PT012
        with request.deferred():
            assert not request
            signal.raise_signal(number)
            assert request
        pytest.fail("it is raised at the end of the block")
    assert signal.getsignal(number) is before


def test_signal_before_a_job_stops_the_next_one():
    """In a worker process, a signal may come between two jobs."""
    waiting = StopRequest(is_deferred=True)
    former = waiting.install()
    try:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM"), stop_request():
            pytest.fail("the job was started")
        with stop_request() as request:
            assert not request, "it stops one job"
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def test_interruption_can_be_pickled():
    copy = pickle.loads(pickle.dumps(Interrupted("stopped", signal.SIGTERM)))
    assert (str(copy), copy.signal_number, copy.exit_code) == ("stopped", 15, 143)


@pytest.mark.parametrize("message", ["saving", ""])
def test_one_rank_logs_the_first_signal(capfd, message):
    with stop_request(message, is_deferred=True):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
    assert capfd.readouterr().err == ("\nSIGTERM: saving\n" if message else "")


@pytest.mark.parametrize(
    "first", ["signal.raise_signal(signal.SIGTERM)", "progress.show(loss=1.0)"]
)
def test_closed_stderr_is_no_error(first):
    """Ctrl-C at `headwise train 2>&1 | tee log` ends tee; the run still has to save."""
    code = f"""
import signal, sys
from contextlib import closing
from headwise.train.interrupt import stop_request
from headwise.train.progress import Progress
with stop_request(is_deferred=True) as stop, closing(Progress(0, 9, True)) as progress:
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


def test_signal_ignored_by_nohup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_request() as request:
            signal.raise_signal(signal.SIGHUP)
            assert not request
    finally:
        signal.signal(signal.SIGHUP, before)


def test_only_ctrl_c_interrupts_saving():
    """A scheduler sends SIGUSR1 and then SIGTERM, while the run is still saving."""
    request = StopRequest(is_deferred=True)
    try:
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            request.handle(number, None)
    except KeyboardInterrupt:
        pytest.fail("saving was interrupted")
    assert request.signal_number == signal.SIGINT  # the first sets the exit code
    with pytest.raises(KeyboardInterrupt):
        request.handle(signal.SIGINT, None)

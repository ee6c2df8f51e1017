"""The process of a training: signals, memory, waits for processors, seeds."""

import json
import math
import os
import pickle
import random
import signal
import subprocess
import sys
from mmap import PAGESIZE, mmap
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from headwise.errors import Interrupted
from headwise.seed import derived_seed, seed_everything
from headwise.train.interrupt import SIGNALS, StopRequest, stop_request
from headwise.train.memory import peak_memory, resident_bytes
from headwise.train.progress import INTERVAL, ProcessorWatch, waited
from training_steps import make_trainer


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
    with pytest.raises(Interrupted), stop_request() as request:  # noqa: PT012
        with request.deferred():
            pass
        signal.raise_signal(number)
        pytest.fail("it is raised at once after the block")
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


CPU = torch.device("cpu")
N_PAGES = 20_000
SLACK = 10_000_000  # bytes
needs_peak = pytest.mark.skipif(peak_memory(CPU)() is None, reason="Linux's peak memory")


def use(n_pages):
    """Have pages of its own in memory for a moment; malloc may reuse what it keeps."""
    with mmap(-1, n_pages * PAGESIZE) as pages:
        pages[::PAGESIZE] = bytes(n_pages)


@needs_peak
def test_peak_is_that_of_the_resident_set_since_the_reset():
    use(2 * N_PAGES)
    peak_bytes, before = peak_memory(CPU), resident_bytes("VmRSS")
    use(N_PAGES)
    assert abs(peak_bytes() - before - N_PAGES * PAGESIZE) < SLACK


@pytest.fixture
def status(monkeypatch):
    """Sets the memory that Linux reports of this process; None: /proc cannot be read."""

    def set_text(text):
        def read_text(path, *arguments, **options):
            if path.parts[:2] != ("/", "proc"):
                return real(path, *arguments, **options)
            if text is None:
                raise FileNotFoundError
            return text

        real = Path.read_text
        monkeypatch.setattr(Path, "read_text", read_text)

    return set_text


def test_no_peak_without_proc_or_its_line(status, monkeypatch):
    status("VmRSS:\t12 kB\n")
    assert (resident_bytes("VmRSS"), resident_bytes("VmHWM")) == (12 * 1024, None)
    status(None)
    assert peak_memory(CPU)() is None
    status("VmHWM:\t12 kB\n")

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)  # the reset
    assert peak_memory(CPU)() is None


@needs_peak
@pytest.mark.parametrize(
    ("earlier", "read", "largest"),
    [(None, None, None), (None, 5, 5 * 1024), (7000, 5, 7000), (7000, None, 7000)],
)
def test_peak_memory_is_the_largest_of_all_processes(earlier, read, largest, tmp_path, status):
    status(f"VmHWM:\t{read} kB\n" if read else "VmRSS:\t1 kB\n")
    trainer = make_trainer(tmp_path, peak_bytes=earlier)
    trainer.run()
    last = json.loads((tmp_path / "checkpoints" / "last.json").read_text())
    assert last["peak_memory_bytes"] == trainer.peak_bytes == largest


@pytest.fixture
def machine(monkeypatch):
    """A clock, and the seconds that threads have waited for a processor."""
    made = SimpleNamespace(now=0.0, waited=0.0)
    monkeypatch.setattr("time.perf_counter", lambda: made.now)
    monkeypatch.setattr("headwise.train.progress.waited", lambda: made.waited)
    return made


@pytest.mark.parametrize(
    ("share", "threads", "n_warnings"), [(0.05, 2, 0), (0.3, 2, 1), (0.3, 1, 0), (None, 2, 0)]
)
def test_busy_processors_are_one_warning(share, threads, n_warnings, machine, set_threads, caplog):
    set_threads(threads)
    watch = ProcessorWatch()
    for second in range(40):
        machine.now = float(second)
        machine.waited = math.nan if share is None else threads * share * second
        watch.check()
        assert len(caplog.records) == n_warnings * (second >= INTERVAL)
    assert all("trainer.threads" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("factor", "share", "warned_at"), [(1.0, 0.0, None), (3.5, 0.0, 600), (3.5, 0.3, 600)]
)
def test_slower_updates_are_one_warning(factor, share, warned_at, machine, caplog):
    numbers = random.Random(1)
    watch, tokens, seconds = ProcessorWatch(), 0, 0.0
    for update in range(1, 1001):
        lasts = 15.0 if update in (1, 330) else numbers.uniform(0.05, 0.15)  # two that compile
        lasts *= factor if update > 500 else 1.0
        # targets differ: rows of 100 keys, of 10, of one
        tokens, seconds = tokens + numbers.choice((10, 100, 1000)), seconds + lasts
        passed = lasts + 60 * (update % 300 == 1)  # after a validation
        machine.now += passed
        machine.waited += share * passed * (update > 500)
        if update % 50 == 0 or update < 20:
            watch.check_speed(update, tokens, seconds)
        is_warned = warned_at is not None and update >= warned_at
        assert len(caplog.records) == is_warned
    assert ("waited for processors" in caplog.text) == (share > 0)


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux counts it")
def test_waited_time_is_read():
    assert 0 <= waited() < math.inf


def test_no_waited_time_without_its_files(monkeypatch):
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=FileNotFoundError))
    assert math.isnan(waited())


def test_seeds_are_functions_of_their_parts():
    assert derived_seed(1, 2, 0) == derived_seed(1, 2, 0)
    seeds = {
        derived_seed(seed, update, rank)
        for seed in (1, 2)
        for update in range(50)
        for rank in range(2)
    }
    assert len(seeds) == 200
    assert derived_seed(1, 23) != derived_seed(12, 3)
    assert all(0 <= seed < 2**63 for seed in seeds)
    seed_everything(3, "model")
    first = (torch.rand(3), np.random.rand(3))
    seed_everything(3, "model")
    assert torch.equal(first[0], torch.rand(3))
    assert (first[1] == np.random.rand(3)).all()

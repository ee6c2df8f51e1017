"""Peak memory of a process, and what autograd saves."""

from mmap import PAGESIZE, mmap

import pytest
import torch

from headwise.train import memory
from headwise.train.memory import peak_memory, resident_bytes

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


@pytest.mark.parametrize("name", ["_RESET", "_STATUS"])
def test_no_peak_without_proc(name, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, name, tmp_path / "absent" / "file")
    assert peak_memory(CPU)() is None


def test_no_peak_without_its_line(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("VmRSS:\t12 kB\n")
    monkeypatch.setattr(memory, "_STATUS", status)
    assert (resident_bytes("VmRSS"), resident_bytes("VmHWM")) == (12 * 1024, None)

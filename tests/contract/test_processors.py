"""The contracts of operators hold on every kind of processor that this machine can act as."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernel_marks import needs_kernels
from processors import PROCESSORS

CONTRACTS = Path(__file__).parent
# of everything that computes by kernels
FILES = [
    str(path)
    for name in ("attention", "entmax", "operator")
    for path in CONTRACTS.glob(f"test_{name}_contract.py")
]
# Not what is the same on every processor: graphs and transforms, refusals, values in float64.
LEFT_OUT = "graphs or transforms or refused or finite_differences"
REPORT = """
import torch
from headwise.ops import linear
from headwise.ops.cpp import build
print(torch.backends.cpu.get_cpu_capability().lower(), torch.bfloat16 in linear.DTYPES)
print(build.unavailable_reason())
"""


@pytest.fixture(scope="module", params=PROCESSORS, ids=lambda one: one.name)
def run(request, tmp_path_factory):
    """Run Python as on a processor; kernels are compiled once, also for pytest in `cache_dir`."""
    if missing := request.param.missing():
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("processor")
    environment = request.param.environment(folder)
    environment["HEADWISE_CACHE"] = str(folder / "cache" / "d")

    def python(*arguments):
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    python.processor, python.compiler = request.param, environment["CXX"]
    python.cache_dir = folder / "cache"
    return python


@pytest.mark.slow
@needs_kernels
def test_processor_is_forced(run):
    completed = run("-c", REPORT)
    assert completed.returncode == 0, completed.stderr
    capability, has_bfloat16, reason = completed.stdout.split(maxsplit=2)
    assert capability == run.processor.aten
    assert has_bfloat16 == str("AVX512" in run.processor.onednn)
    assert reason.strip() == "None"
    options = ["-march=native", "-dM", "-E", "-x", "c++", "/dev/null"]
    macros = subprocess.check_output([run.compiler, *options], text=True)
    assert ("__AVX512F__" in macros) == ("AVX512" in run.processor.onednn)
    assert ("__AVX2__" in macros) == ("avx2" in run.processor.flags)


@pytest.mark.slow
@needs_kernels
def test_contracts_of_operators_hold(run):
    if run.processor is [one for one in PROCESSORS if not one.missing()][-1]:
        pytest.skip("the tests of these files run as this processor anyway")
    options = ("-q", "-o", f"cache_dir={run.cache_dir}", "-p", "no:randomly", "--tb=short")
    chosen = ("-m", "not slow and not triton", "-k", f"not ({LEFT_OUT})")
    completed = run("-m", "pytest", *options, *chosen, *FILES)
    assert completed.returncode == 0, completed.stdout[-5000:] + completed.stderr

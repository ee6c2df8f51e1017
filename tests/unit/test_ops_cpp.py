"""The C++ library: compiled once, remembered, replaced by torch where there is none."""

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headwise.entmax import entmax15_loss
from headwise.ops.cpp import build
from headwise.ops.family import Power
from headwise.ops.losses import cpu as cpu_losses
from headwise.ops.maps import cpu as cpu_maps
from headwise.ops.maps import operator
from kernel_marks import needs_kernels

TESTS = Path(__file__).parents[1]
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="another kind of processor")


@pytest.fixture
def build_again(monkeypatch, tmp_path):
    """Return why kernels are unavailable to a process that starts with this environment."""
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))

    def reason(compile_timeout=build.COMPILE_TIMEOUT, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        spec = importlib.util.find_spec("headwise.ops.cpp.build")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.COMPILE_TIMEOUT = compile_timeout
        reasons = [str(module.unavailable_reason()) for _ in range(2)]
        assert reasons[0] == reasons[1]
        return reasons[0]

    return reason


@pytest.fixture
def compiler(tmp_path):
    """Return the path of a compiler that does what a line of shell does; it counts its calls."""

    def make(line):
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\necho call >> {tmp_path}/calls\n{line}\n")
        path.chmod(0o755)
        return path

    return make


def real_compiler():
    return os.environ.get("CXX") or next(filter(shutil.which, build.COMPILERS))


def test_missing_compiler_is_warned_of_once_and_kernels_can_be_disabled(
    build_again, monkeypatch, caplog
):
    monkeypatch.delenv("CXX", raising=False)
    assert build_again(PATH="").startswith("no C++ compiler")
    assert build_again(HEADWISE_NATIVE="0") == "HEADWISE_NATIVE=0"
    assert ["or set CXX" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize(
    ("line", "reason"),
    [(None, "/nowhere/c++"), ("exit 1", "exit status 1"), ("exit 0", "cannot open shared object")],
)
def test_failed_compilation_is_named_and_not_repeated(
    line, reason, build_again, compiler, tmp_path
):
    """That of a compiler that is missing or fails, and of libraries that cannot be loaded."""
    path = "/nowhere/c++" if line is None else compiler(line)
    calls = []
    for _ in range(3):
        assert reason in build_again(CXX=path)
        log = tmp_path / "calls"
        calls.append(len(log.read_text().splitlines()) if log.exists() else 0)
        if len(calls) == 2:
            next((tmp_path / "native").iterdir()).unlink()  # as the warning advises
    assert calls[0] == calls[1] <= calls[2] / 2


@pytest.mark.parametrize(("line", "reason"), [("kill $$", "status -15"), ("sleep 9", "timed out")])
def test_ended_compilation_is_repeated(line, reason, build_again, compiler, tmp_path):
    assert reason in build_again(compile_timeout=0.5, CXX=compiler(line))
    assert list((tmp_path / "native").iterdir()) == []


def test_unwritable_cache_disables_kernels(build_again, compiler, tmp_path):
    (tmp_path / "file").write_text("")
    assert "file" in build_again(CXX=compiler("exit 0"), HEADWISE_CACHE=tmp_path / "file")


@needs_kernels
def test_library_is_compiled_once_and_again_if_it_is_broken(build_again, compiler, tmp_path):
    built = build.functions()._name
    path = compiler(f'while [ "$1" != -o ]; do shift; done; cp {built} $2')
    assert build_again(CXX=path) == "None"
    (library,) = (tmp_path / "native").glob("*.so")
    broken = tmp_path / "other" / "native" / library.name
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"")
    for _ in range(2):
        assert build_again(HEADWISE_CACHE=tmp_path / "other") == "None"
    assert broken.read_bytes() == Path(built).read_bytes()
    # compiles and links, twice
    assert len((tmp_path / "calls").read_text().splitlines()) == 4


def pytest_passes(*arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *map(str, arguments)]
    completed = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout[-2000:]


@needs_kernels
@on_x86
@pytest.mark.slow  # compiles
def test_vectors_of_four_keep_the_contracts(compiler, monkeypatch, tmp_path):
    """Those of eight: `tests/contract/test_processors.py`."""
    path = compiler(f'exec {real_compiler()} "$@" -march=x86-64')
    monkeypatch.setenv("CXX", str(path))
    files = ("contract/test_entmax_contract.py", "unit/test_ops_random_calls.py")
    # limits of long rows are those of processors with fused multiply-add
    chosen = ("-k", "C++ and not (500 or hard) or operators", "-m", "not slow and not triton")
    pytest_passes(*(TESTS / file for file in files), *chosen, "-o", f"cache_dir={tmp_path}/pytest")
    assert (tmp_path / "calls").exists()


@needs_kernels
@on_x86
@pytest.mark.slow
def test_kernels_compile_for_processors_with_native_bfloat16():
    options = (*build.OPTIONS, "-march=x86-64-v4", "-mavx512bf16", "-fsyntax-only")
    command = [*shlex.split(real_compiler()), *options, str(build.SOURCES / "kernels.cpp")]
    subprocess.run(command, check=True)


@needs_kernels
@pytest.mark.parametrize("n_keys", [30, 130])
@pytest.mark.parametrize("power", list(Power))
def test_nonfinite_gradients_stay_in_their_row_and_off_masked_keys(power, n_keys):
    """Long rows store only keys with a weight, next to those stored for earlier rows."""
    generator = torch.Generator().manual_seed(7)
    scores = torch.randn(1, 1, 40, n_keys, generator=generator) * 3
    scores[..., ::3] = -torch.inf
    beta = torch.full((1, 1, 1, 1), 0.4) if power is Power.ANY else None
    weights = cpu_maps.forward(scores, beta, power)
    grad = torch.randn(scores.shape, generator=generator)
    with_alpha = beta is not None
    expected = cpu_maps.backward(weights, grad, beta, power, with_alpha)
    for value in (torch.nan, torch.inf):
        grad[..., ::3] = value  # gradients of the weights of masked keys
        grad[:, :, ::7] = value
        grads = cpu_maps.backward(weights, grad, beta, power, with_alpha)
        is_finite_row = torch.arange(40) % 7 != 0
        assert torch.equal(grads[0][:, :, is_finite_row], expected[0][:, :, is_finite_row])
        if with_alpha:
            assert torch.equal(grads[1][:, :, is_finite_row], expected[1][:, :, is_finite_row])
        assert (grads[0][..., ::3] == 0).all()
        assert grads[0][:, :, ~is_finite_row].isnan().any(-1).all()


@needs_kernels
def test_threads_do_not_change_bits(set_threads):
    scores = torch.randn(8, 4, 50, 70, generator=torch.Generator().manual_seed(2))
    alpha = torch.rand(4, 1, 1).add(1)[None]
    results = []
    for n_threads in (1, 2, 3):
        set_threads(n_threads)
        results.append(operator.weights(scores, alpha, None, Power.ANY))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@needs_kernels
def test_every_nan_stays_nan_in_bfloat16():
    bits = torch.tensor([0x7FC00000, 0x7FFFFFFF, 0x7F800001, -1], dtype=torch.int32)
    scores, scale = torch.zeros(4, 50, dtype=torch.bfloat16), bits.view(torch.float32)
    threshold, target = cpu_losses.read(scores, 1.0, False)[-1], torch.arange(4)
    gradient = torch.empty_like(scores)
    cpu_losses.write_gradient(scores, threshold, gradient, scale, target, 1.0, 0.1, 0.1 / 50)
    assert gradient.isnan().all()


@needs_kernels
def test_unsupported_tensors_are_refused():
    scores = torch.randn(1, 2, 3, 4)
    with pytest.raises(TypeError, match="float64"):
        cpu_maps.forward(scores, torch.zeros(1, 1, 1, 1, dtype=torch.float64), Power.ANY)
    with pytest.raises(TypeError, match="strides"):
        cpu_maps.forward(scores.transpose(1, 2), None, Power.EXP)


@needs_kernels
def test_default_dtype_does_not_change_results():
    scores = torch.randn(2, 2, 5, 30, generator=torch.Generator().manual_seed(1))
    alpha = torch.tensor([1.2, 1.7]).view(1, 2, 1, 1)
    results = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            leaves = [values.clone().requires_grad_() for values in (scores, alpha)]
            operator.weights(*leaves, None, Power.ANY)[..., 0].sum().backward()
            loss = entmax15_loss(scores[0, 0], torch.arange(5))
        finally:
            torch.set_default_dtype(torch.float32)
        results.append([*(leaf.grad for leaf in leaves), loss])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)

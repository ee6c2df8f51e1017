"""The compiled kernels equal torch, which replaces them where they are unavailable."""

import itertools
import math
import os
import platform
import shlex
import shutil
import subprocess
from unittest.mock import Mock

import pytest
import torch

from headwise.entmax import entmax15, entmax15_loss
from headwise.entmax.losses import log_softmax
from headwise.ops.attention.cpu_few import attention_of_few
from headwise.ops.cpp import build
from headwise.ops.family import Power
from headwise.ops.losses import cpu as cpu_losses
from headwise.ops.maps import cpu as cpu_maps
from headwise.ops.maps import operator
from headwise.ops.visible import Visible
from kernel_marks import needs_kernels
from triton_cases import assert_near_float64


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


@pytest.fixture
def cleared_library_cache():
    build._library.cache_clear()
    yield
    build._library.cache_clear()


def reason_without(patch, **environment):
    """Return why kernels are unavailable in this environment; the maps must still work."""
    for name, value in environment.items():
        patch.setenv(name, value)
    assert entmax15(torch.tensor([1.0, 0.0]))[0] > 0.8
    return str(build.unavailable_reason())


@pytest.mark.usefixtures("cleared_library_cache")
def test_missing_compiler_is_warned_of_once_and_kernels_can_be_disabled(monkeypatch, caplog):
    monkeypatch.delenv("CXX", raising=False)
    assert [reason_without(monkeypatch, PATH="")[:15] for _ in range(2)] == ["no C++ compiler"] * 2
    build._library.cache_clear()
    assert reason_without(monkeypatch, HEADWISE_NATIVE="0") == "HEADWISE_NATIVE=0"
    assert ["or set CXX" in message for message in caplog.messages] == [True]


@pytest.mark.usefixtures("cleared_library_cache")
@pytest.mark.parametrize("compiler", ["/nowhere/c++", "false", "true"])
def test_failed_compilation_is_named_and_not_repeated(monkeypatch, tmp_path, compiler):
    """That of a compiler that is missing or fails, and of libraries that cannot be loaded."""
    monkeypatch.setattr(build, "_build", Mock(wraps=build._build))
    expected = compiler if compiler != "true" else "cannot open shared object"
    assert expected in reason_without(monkeypatch, CXX=compiler, HEADWISE_CACHE=str(tmp_path))
    for n_builds in (1, 2):
        build._library.cache_clear()
        assert expected in reason_without(monkeypatch)
        assert build._build.call_count == n_builds
        next((tmp_path / "native").iterdir()).unlink()  # as the warning advises


@pytest.mark.usefixtures("cleared_library_cache")
def test_ended_compilation_is_repeated(monkeypatch, tmp_path):
    killed, slow = subprocess.CalledProcessError(-15, "c++"), subprocess.TimeoutExpired("c++", 300)
    for error, message in (killed, "status -15"), (slow, "timed out"):
        build._library.cache_clear()
        monkeypatch.setattr(build, "_call", Mock(side_effect=error))
        assert message in reason_without(monkeypatch, HEADWISE_CACHE=str(tmp_path))
        assert list((tmp_path / "native").iterdir()) == []


@pytest.mark.usefixtures("cleared_library_cache")
def test_unwritable_cache_disables_kernels(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    assert "file" in reason_without(monkeypatch, HEADWISE_CACHE=str(tmp_path / "file"))


@pytest.mark.slow
@pytest.mark.usefixtures("cleared_library_cache")
@needs_kernels
def test_broken_library_is_rebuilt(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "OPTIONS", tuple(o.replace("-O3", "-O0") for o in build.OPTIONS))
    compiler = os.environ.get("CXX") or next(filter(shutil.which, build.COMPILERS))
    broken = tmp_path / "native" / f"{build._digest(compiler)}.so"
    broken.parent.mkdir()
    broken.write_bytes(b"")
    assert build.unavailable_reason() is None
    assert broken.stat().st_size > 0


@pytest.mark.slow
@pytest.mark.usefixtures("cleared_library_cache")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="another kind of processor")
@pytest.mark.parametrize("processor", ["x86-64-v3", "x86-64"], ids=["eight lanes", "four lanes"])
@needs_kernels
def test_narrow_vectors(monkeypatch, tmp_path, processor):
    scores = torch.randn(2, 3, 7, 300, generator=torch.Generator().manual_seed(1)) * 2
    mask = torch.rand(2, 1, 1, 300, generator=torch.Generator().manual_seed(2)) > 0.2
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "OPTIONS", (*build.OPTIONS, f"-march={processor}"))
    for power, n_keys in itertools.product(Power, (5, 30, 130, 300)):
        alpha = torch.tensor([1.0, 1.4, 2.0]).view(1, 3, 1, 1) if power is Power.ANY else None
        part, visible = scores[..., :n_keys].contiguous(), mask[..., :n_keys]
        assert_near_float64(part, alpha, visible, power)
        beta = None if alpha is None else alpha - 1
        half = cpu_maps.forward(part.bfloat16(), beta, power)
        assert torch.equal(half, cpu_maps.forward(part.bfloat16().float(), beta, power).bfloat16())
        keys = part[..., :20]  # keys and values that do not fill whole vectors
        expected = cpu_maps.forward((keys @ keys.mT).contiguous(), beta, power) @ keys
        context = attention_of_few(keys, keys, keys, alpha, power, Visible(), 1.0)
        assert (context - expected).abs().max() <= 1e-5


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="another kind of processor")
@needs_kernels
def test_kernels_compile_for_processors_with_native_bfloat16():
    compiler = os.environ.get("CXX") or next(filter(shutil.which, build.COMPILERS))
    options = (*build.OPTIONS, "-march=x86-64-v4", "-mavx512bf16", "-fsyntax-only")
    build._call([*shlex.split(compiler), *options, str(build.SOURCES / "kernels.cpp")])


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


def test_chunks_of_rows_use_the_alpha_of_their_head(monkeypatch):
    """Without kernels, rows are computed in chunks, here of a few heads."""
    monkeypatch.setattr("headwise.ops.maps.reference.CHUNK", 300)
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 4, 5, 30, generator=generator, dtype=torch.float64)
    grad = torch.randn(scores.shape, generator=generator, dtype=torch.float64)
    alpha = torch.tensor([1.1, 1.4, 1.7, 2.0], dtype=torch.float64).view(1, 4, 1, 1)

    def results(scores, alpha, grad):
        scores, alpha = scores.clone().requires_grad_(), alpha.clone().requires_grad_()
        weights = operator.weights(scores, alpha, None, Power.ANY)
        return [weights.detach(), *torch.autograd.grad(weights, (scores, alpha), grad)]

    together = results(scores, alpha, grad)
    for head in range(4):
        head_slice = slice(head, head + 1)
        alone = results(scores[:, head_slice], alpha[:, head_slice], grad[:, head_slice])
        for together_tensor, alone_tensor in zip(together, alone, strict=True):
            torch.testing.assert_close(together_tensor[:, head_slice], alone_tensor)


@needs_kernels
def test_default_dtype_does_not_change_results():
    scores = torch.randn(2, 2, 5, 30, generator=torch.Generator().manual_seed(1))
    alpha = torch.tensor([1.2, 1.7]).view(1, 2, 1, 1)
    results = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            scores_leaf, alpha_leaf = (
                scores.clone().requires_grad_(),
                alpha.clone().requires_grad_(),
            )
            operator.weights(scores_leaf, alpha_leaf, None, Power.ANY)[..., 0].sum().backward()
            loss = entmax15_loss(scores[0, 0], torch.arange(5))
        finally:
            torch.set_default_dtype(torch.float32)
        results.append([scores_leaf.grad, alpha_leaf.grad, loss])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_log_softmax_equals_torch(dtype, scale):
    generator = torch.Generator().manual_seed(1)
    logits = (scale * torch.randn(2, 5, 1003, generator=generator)).to(dtype)
    logits[0, 1, 4], logits[1, 0, 5] = -torch.inf, scale * 2
    logits[0, 2, 7], logits[0, 3, 9] = math.nan, torch.inf
    log_probs = log_softmax(logits)
    assert log_probs.dtype == torch.promote_types(dtype, torch.float32)
    expected = logits.double().log_softmax(-1)
    assert log_probs[0, 2].isnan().all()
    assert log_probs[0, 3].isnan().all()
    torch.testing.assert_close(log_probs.double(), expected, rtol=1e-6, atol=1e-5, equal_nan=True)
    strided = logits.transpose(1, 2)[:, ::2].transpose(1, 2)
    expected, log_probs = strided.double().log_softmax(-1), log_softmax(strided).double()
    torch.testing.assert_close(log_probs, expected, rtol=1e-6, atol=1e-5, equal_nan=True)
    assert log_softmax(logits[:0]).shape == (0, 5, 1003)
    leaf = logits[1].float().requires_grad_()
    (gradient,) = torch.autograd.grad(log_softmax(leaf)[:, 3].sum(), leaf)
    assert gradient.isfinite().all()
    assert (gradient != 0).any()

"""Broken kernels are detected before use, reported, and replaced by torch."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import entmax
from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.config.folders import group_node
from headwise.entmax import alpha_entmax, entmax15
from headwise.entmax.losses import log_entmax, log_softmax
from headwise.losses.loss import Entmax15Loss
from headwise.ops import checks, dispatch, verification
from headwise.ops.attention import cpu as cpu_attention
from headwise.ops.attention import cpu_few
from headwise.ops.attention.layout import Columns
from headwise.ops.checks import Case
from headwise.ops.cpp import build, call
from headwise.ops.cpp.call import DTYPES
from headwise.ops.dropout import cpu as cpu_dropout
from headwise.ops.dropout.operator import dropout
from headwise.ops.family import Power
from headwise.ops.maps import cpu as cpu_maps
from headwise.ops.maps import triton as triton_maps
from headwise.ops.maps.operator import REFERENCE
from headwise.ops.triton import device as triton_device
from kernel_marks import needs_kernels
from triton_marks import DEVICE, needs_triton

WIDTHS = ((5, 5), (64, 64), (16, 32), (16, 5))  # of queries and keys, of values
MAPS = Case("C++ maps", "cpu", torch.float32, Power.SQUARE)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Start without verdicts and cache new ones in a temporary folder; compiled kernels stay."""
    monkeypatch.setattr(verification, "_VERDICTS", {})
    monkeypatch.setattr(verification, "machine_cache_dir", lambda: tmp_path)
    return tmp_path / "verified"


@pytest.fixture
def scores() -> Tensor:
    return torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def broken_cpp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """C++ kernels whose maps give every key too large a weight."""
    sources = tmp_path / "csrc"
    shutil.copytree(build.SOURCES, sources)
    path = sources / "forward.h"
    text = path.read_text()
    assert BREAK[0] in text
    path.write_text(text.replace(*BREAK))
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "OPTIONS", tuple(o.replace("-O3", "-O1") for o in build.OPTIONS))
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    build._library.cache_clear()
    yield
    build._library.cache_clear()


BREAK = ("rows.shift, rows.correction);", "rows.shift, rows.correction + 0.01f);")


def assert_entmax15_is_exact(scores: Tensor) -> None:
    """Compare 1.5-entmax and its gradient with float64."""
    single = scores.clone().requires_grad_()
    double = scores.double().requires_grad_()
    for values in (single, double):
        entmax15(values)[..., 0].square().sum().backward()
    torch.testing.assert_close(entmax15(single).double(), entmax15(double), rtol=0, atol=1e-6)
    torch.testing.assert_close(single.grad.double(), double.grad, rtol=0, atol=1e-5)


@needs_kernels
@pytest.mark.slow  # compiles
@pytest.mark.usefixtures("broken_cpp")
def test_broken_cpp_kernel_is_reported(scores: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    assert (cpu_maps.forward(scores[None], None, Power.SQUARE).sum(-1) - 1).abs().max() > 1e-3
    assert_entmax15_is_exact(scores)
    assert_entmax15_is_exact(scores)
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        caplog.messages[-1]  # one warning for several calls
    ]
    assert "C++ maps (float32, SQUARE): replaced by torch" in caplog.text
    assert "weights differ from float64" in caplog.text
    assert dispatch.maps(scores, Power.SQUARE).kernel == dispatch.TORCH


class TestTriton:
    pytestmark = needs_triton

    def test_broken_kernel_is_reported_and_replaced(
        self, scores: Tensor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        forward = triton_maps.forward
        monkeypatch.setattr(triton_maps, "forward", lambda *arguments: forward(*arguments) + 0.01)
        monkeypatch.setattr(call, "supports", lambda values: False)
        monkeypatch.setattr(triton_device, "supports", lambda v: v.dtype in triton_device.DTYPES)
        alpha = torch.tensor([1.2], device=DEVICE)
        weights = alpha_entmax(scores.to(DEVICE), alpha)
        torch.testing.assert_close(
            weights.cpu().double(), alpha_entmax(scores.double(), 1.2), rtol=0, atol=1e-5
        )
        assert "Triton maps (float32, ANY): replaced by torch" in caplog.text

    def test_attention_is_verified_with_and_without_dropout(self) -> None:
        for has_dropout in (False, True):
            case = Case(
                "Triton attention", DEVICE, torch.float32, Power.SQUARE, 16, 16, has_dropout
            )
            verification.verify(case, REFERENCE)
            assert verification.verdict(case) is None


@needs_kernels
def test_error_of_a_kernel_is_not_cached(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    values = torch.ones(100)

    def fail(*arguments: Any) -> Tensor:
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(cpu_dropout, "drop", fail)
        dropped = dropout(values, 0.5)
    assert set(dropped.tolist()) == {0.0, 2.0}
    assert "C++ dropout (float32, EXP): replaced by torch" in caplog.text
    assert "it raised MemoryError: no memory" in caplog.text
    assert not cache.exists()


@needs_kernels
def test_verdict_is_cached_per_build(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verification.verify(MAPS, REFERENCE)
    (file,) = cache.iterdir()
    assert json.loads(file.read_text()) == {str(MAPS): None}
    verification._VERDICTS.clear()
    with monkeypatch.context() as patch:
        patch.setitem(checks.CHECKS, MAPS.kernel, None)  # type: ignore[arg-type]
        verification.verify(MAPS, REFERENCE)
    assert verification.verdict(MAPS) is None
    verification._VERDICTS.clear()
    file.write_text(json.dumps({str(MAPS): "it was wrong"}))
    verification.verify(MAPS, REFERENCE)
    assert verification.verdict(MAPS) == "it was wrong"
    verification._VERDICTS.clear()
    monkeypatch.setattr(build, "build_digest", lambda: "another build")
    verification.verify(MAPS, REFERENCE)
    assert verification.verdict(MAPS) is None


@needs_kernels
def test_every_cpp_kernel_passes_without_using_the_generator(scores: Tensor) -> None:
    state = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        for kernel in checks.CHECKS:
            for power in Power if kernel.startswith("C++") else ():
                for dtype in DTYPES:
                    for widths in WIDTHS if "attention" in kernel else ((0, 0),):
                        case = Case(kernel, "cpu", dtype, power, *widths, kernel == "C++ attention")
                        verification.verify(case, REFERENCE)
                        assert verification.verdict(case) is None, case
    assert torch.equal(torch.get_rng_state(), state)


@needs_kernels
@pytest.mark.parametrize(
    ("kernel", "name", "position"),
    [("C++ attention", "forward", 7), ("C++ attention of few queries", "attend", 6)],
)
def test_kernel_without_bias_fails(
    kernel: str, name: str, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = cpu_attention if name == "forward" else cpu_few
    original = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *a: original(*a[:position], None, *a[position + 1 :]))
    case = Case(kernel, "cpu", torch.float32, Power.SQUARE, 16, 16)
    verification.verify(case, REFERENCE)
    assert "contexts differ" in str(verification.verdict(case))


@needs_kernels
def test_sparse_kernel_without_far_keys_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Columns, "products", lambda *_: iter(()))
    case = Case("C++ sparse attention", "cpu", torch.float32, Power.SQUARE, 16, 16)
    verification.verify(case, REFERENCE)
    assert "contexts differ" in str(verification.verdict(case))


@needs_kernels
def test_kernel_refused_by_another_rank_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    verification.verify(MAPS, REFERENCE)
    assert not verification.rejected()
    verification.reject({MAPS: "rank 1 differs"})
    verification.reject({MAPS: "rank 2 differs"})
    assert verification.rejected() == {MAPS: "rank 1 differs"}
    assert len(caplog.records) == 1


def attend(scores: Tensor) -> Tensor:
    states = scores[:, :1].repeat(1, dispatch.MIN_KEYS, 1)
    return ATTENTION(states, states, states, Mask())


TARGET = torch.arange(6).view(2, 3)
ATTENTION = AttentionFactory({"attention": {**group_node("attention", "alpha_entmax")}})(
    Place("encoder_self", 1, 2, 10)
)
FIRST_CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": entmax.softmax,
    "alpha_entmax": lambda scores: alpha_entmax(scores, torch.tensor([[1.3], [1], [2]])),
    "entmax15_loss": lambda scores: entmax.entmax15_loss(scores, TARGET, 0.1),
    "Entmax15Loss": lambda scores: Entmax15Loss()(scores, TARGET).loss,
    "log_entmax": lambda scores: log_entmax(scores, 1.5),
    "attention": attend,
}


@needs_kernels
@pytest.mark.parametrize("name", FIRST_CALLS)
def test_first_call_of_a_process_may_be_compiled(name: str, scores: Tensor) -> None:
    """It verifies its kernels while it is traced, and uses them."""
    torch._dynamo.reset()
    compiled = torch.compile(FIRST_CALLS[name], backend="eager", fullgraph=True)
    values = compiled(scores)
    verdicts = dict(verification._VERDICTS)
    assert set(verdicts.values()) == {None}
    torch.testing.assert_close(values, FIRST_CALLS[name](scores), rtol=0, atol=0)
    assert verdicts == verification._VERDICTS


@needs_kernels
def test_log_softmax_may_be_compiled_after_a_call(scores: Tensor) -> None:
    """Its kernel is not an operator."""
    expected = log_softmax(scores)
    assert verification._VERDICTS
    compiled = torch.compile(log_softmax, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), expected)


@needs_kernels
def test_compiled_graph_does_not_use_broken_kernels(
    scores: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = cpu_maps.forward
    monkeypatch.setattr(cpu_maps, "forward", lambda *arguments: forward(*arguments) + 0.01)
    compiled = torch.compile(entmax15, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), entmax15(scores.double()).float())
    assert "weights differ" in next(iter(verification.rejected().values()))


DOUBLE = "no kernels for float64 on cpu"
FEW, MANY = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 200, 8)


@needs_kernels
@pytest.mark.parametrize(
    ("query", "key", "power", "dropout", "padded_bias", "expected"),
    [
        (FEW, MANY, Power.ANY, 0.0, False, (dispatch.CPP_FEW, "verified")),
        (FEW, MANY, Power.ANY, 0.1, False, (dispatch.CPP, "verified")),
        (FEW, MANY[:, :, :12], Power.EXP, 0.1, False, (dispatch.CPP, "verified")),
        (MANY, MANY, Power.ANY, 0.0, False, (dispatch.CPP, "verified")),
        (MANY, MANY, Power.EXP, 0.0, False, (dispatch.TORCH, dispatch.SHORT_ROWS)),
        (MANY, MANY, Power.EXP, 0.0, True, (dispatch.CPP, "verified")),
        (MANY, MANY[:, :, :20], Power.ANY, 0.0, False, (dispatch.WEIGHTS, dispatch.SHORT_ROWS)),
        (MANY.double(), MANY.double(), Power.ANY, 0.0, False, (dispatch.WEIGHTS, DOUBLE)),
        (*[MANY.to("meta")] * 2, Power.EXP, 0.0, True, (dispatch.WEIGHTS, dispatch.PADDED_BIAS)),
    ],
)
def test_attention_kernel_choice_has_a_reason(
    query: Tensor, key: Tensor, power: Power, dropout: float, padded_bias: bool,
    expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    settings = (power, dropout, False, False, padded_bias, REFERENCE)
    with torch.no_grad():
        assert dispatch.attention(query, key, key, *settings) == expected

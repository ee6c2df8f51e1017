"""Wrong kernels are found before use, reported, and replaced by torch."""

import errno
import logging
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from headwise import entmax
from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.config.folders import group_node
from headwise.entmax import alpha_entmax, entmax15
from headwise.entmax.losses import log_entmax, log_softmax
from headwise.losses.loss import Entmax15Loss
from headwise.ops import check, dispatch
from headwise.ops.attention import cpu_few, triton_blocks
from headwise.ops.attention.layout_parts import Columns
from headwise.ops.cpp import build
from headwise.ops.dropout import cpu as cpu_dropout
from headwise.ops.dropout.operator import dropout
from headwise.ops.family import Power
from headwise.ops.library import Library
from headwise.ops.linear import FewRows
from headwise.ops.losses import cpu as cpu_losses
from headwise.ops.losses import triton as triton_losses
from headwise.ops.maps import cpu as cpu_maps
from headwise.ops.maps import triton as triton_maps
from kernel_marks import needs_kernels
from triton_marks import DEVICE as DEVICE_NAME
from triton_marks import needs_triton

CPP = Library(dispatch.CPP)
DEVICE = torch.device(DEVICE_NAME, 0) if DEVICE_NAME == "cuda" else torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Start without checks and remember new ones in a temporary folder; compiled kernels stay."""
    monkeypatch.setattr(dispatch, "_FAILURES", {})
    monkeypatch.setattr(check, "machine_cache_dir", lambda: tmp_path)
    return tmp_path / "checked"


@pytest.fixture
def scores():
    return torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def broken_cpp(monkeypatch, tmp_path):
    """C++ kernels whose maps give every key too large a weight."""
    sources = tmp_path / "csrc"
    shutil.copytree(build.SOURCES, sources)
    path = sources / "forward.h"
    text = path.read_text()
    assert BREAK[0] in text
    path.write_text(text.replace(*BREAK))
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "OPTIONS", tuple(o.replace("-O3", "-O0") for o in build.OPTIONS))
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    build._library.cache_clear()
    yield
    build._library.cache_clear()


BREAK = ("shift, correction));", "shift, correction + 0.01f));")


def assert_entmax15_is_exact(scores):
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
def test_broken_cpp_kernel_is_reported(scores, caplog):
    assert (cpu_maps.forward(scores[None], None, Power.SQUARE).sum(-1) - 1).abs().max() > 1e-3
    assert_entmax15_is_exact(scores)
    assert_entmax15_is_exact(scores)
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        caplog.messages[-1]  # one warning for several calls
    ]
    assert "C++ kernels are off, torch computes instead: weights" in caplog.text
    assert dispatch.maps(scores, Power.SQUARE).kernel == dispatch.TORCH


@needs_kernels
@pytest.mark.parametrize(
    ("module", "name", "differs"),
    [
        (cpu_maps, "forward", "weights (float32, EXP) differ"),
        (cpu_maps, "backward", "gradients of scores"),
        (cpu_few, "attention_of_few", "contexts of few queries"),
        (cpu_losses, "read", "values of losses"),
        (cpu_dropout, "drop", "entries after dropout"),
        (FewRows, "__call__", "linear maps of few rows"),
    ],
)
def test_wrong_python_half_of_a_kernel_is_found(module, name, differs, monkeypatch):
    original = getattr(module, name)

    def wrong(*arguments):
        result = original(*arguments)
        first, *rest = result if isinstance(result, tuple) else (result,)
        return (first + 0.01, *rest) if rest else first + 0.01

    monkeypatch.setattr(module, name, wrong)
    assert differs in str(check.failure(CPP))


@needs_kernels
def test_sparse_attention_without_far_keys_is_found(monkeypatch):
    monkeypatch.setattr(Columns, "products", lambda *_: iter(()))
    assert "contexts" in str(check.failure(CPP))


class TestTriton:
    pytestmark = needs_triton

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "library",
        [
            Library(dispatch.TRITON, DEVICE, torch.float32, Power.ANY),
            Library(dispatch.TRITON, DEVICE, torch.bfloat16, Power.SQUARE, 16),
            Library(dispatch.TRITON, DEVICE, torch.float32, Power.EXP, 16, True),
        ],
        ids=str,
    )
    def test_kernels_pass(self, library):
        assert check.failure(library) is None

    @pytest.mark.parametrize("module", [triton_maps, triton_losses])
    def test_wrong_kernel_of_long_rows_is_found(self, module, monkeypatch):
        name = "forward" if module is triton_maps else "read"
        original = getattr(module, name)

        def wrong(scores, *rest):
            return original(scores * (1.01 if scores.shape[-1] > 2048 else 1), *rest)

        monkeypatch.setattr(module, name, wrong)
        library = Library(dispatch.TRITON, DEVICE, torch.float32, Power.SQUARE)
        assert "differ" in str(check.failure(library))

    def test_missing_block_of_a_pattern_is_found(self, monkeypatch):
        original = triton_blocks._marks

        def without_first_keys(*arguments):
            marks = original(*arguments)
            marks[:, :, 1:, 0] = 0
            return marks

        monkeypatch.setattr(triton_blocks, "_marks", without_first_keys)
        monkeypatch.setattr(check, "RATE", 0.0)  # the interpreter is slow
        library = Library(dispatch.TRITON, DEVICE, torch.float32, Power.SQUARE, 16, True)
        assert "contexts" in str(check.failure(library))


def test_each_gpu_type_map_and_width_is_checked_apart(monkeypatch):
    checked = []
    monkeypatch.setattr(check, "failure", checked.append)
    one, other = torch.device("cuda", 0), torch.device("cuda", 1)
    settings = [
        (one, torch.float32, Power.ANY, 16), (other, torch.float32, Power.ANY, 16),
        (one, torch.bfloat16, Power.ANY, 16), (one, torch.float32, Power.SQUARE, 16),
        (one, torch.float32, Power.ANY, 64), (one, torch.float32, Power.ANY, 16),
    ]  # fmt: skip
    for setting in settings:
        assert dispatch._checked(dispatch.TORCH, dispatch.TRITON, *setting).kernel == "Triton"
    assert [library[1:5] for library in checked] == settings[:-1]


@needs_kernels
def test_error_of_a_check_is_not_remembered(cache, monkeypatch, caplog):
    def fail(*arguments):
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(cpu_dropout, "drop", fail)
        dropped = dropout(torch.ones(100), 0.5)
    assert set(dropped.tolist()) == {0.0, 2.0}
    assert "off, torch computes instead: the check raised MemoryError: no memory" in caplog.text
    assert not cache.exists()


@needs_kernels
def test_check_is_remembered_per_build_and_source(cache, monkeypatch):
    assert check.failure(CPP) is None
    assert len(list(cache.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(check, "_differences", None)
        assert check.failure(CPP) is None
    for module, name in ((build, "build_digest"), (check, "_sources")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda: "others")
            assert check.failure(CPP) is None


@needs_kernels
def test_precision_may_be_set_by_backend(scores, monkeypatch):
    monkeypatch.setattr(check, "failure", lambda built: None)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert (entmax15(scores).sum(-1) - 1).abs().max() < 1e-6
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


@needs_kernels
def test_check_is_remembered_per_setting(monkeypatch):
    """Those that choose other code for products of matrices, or for Triton's kernels."""
    monkeypatch.setattr(check, "_triton_facts", lambda device: "facts")
    built = Library(dispatch.TRITON)
    digests = {check._digest(built)}
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    digests |= {check._digest(built), check._digest(built._replace(precision="high"))}
    with torch.backends.mkldnn.flags(enabled=False):
        digests.add(check._digest(built))
    for name in ("TRITON_DEFAULT_FP_FUSION", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.setenv(name, "0")
        digests.add(check._digest(built))
    assert len(digests) == 5


@needs_kernels
def test_failure_is_not_remembered(cache, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(check, "_differences", lambda library: list("abcde"))
        assert check.failure(CPP) == "a; b; c; and 2 other results"
    assert not cache.exists()
    assert check.failure(CPP) is None


@needs_kernels
def test_full_disk_is_no_error(monkeypatch, caplog):
    def touch(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "touch", touch)
    with caplog.at_level(logging.INFO, logger="headwise"):
        assert check.failure(CPP) is None
    assert "cannot remember the check of the kernels" in caplog.text


@needs_kernels
def test_other_threads_that_draw_do_not_disturb_the_check(scores):
    stop = threading.Event()

    def draw():
        while not stop.is_set():
            torch.randperm(100)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(entmax15, [scores] * 3))
    finally:
        stop.set()
        thread.join()
    assert dispatch._FAILURES == {CPP: None}


@needs_kernels
def test_kernels_pass_in_any_mode_without_using_the_generator():
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("meta"):
            assert check.failure(CPP) is None
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)


def attend(scores):
    states = scores[:, :1].repeat(1, dispatch.MIN_KEYS, 1)
    return ATTENTION(states, states, states, Mask())


TARGET = torch.arange(6).view(2, 3)
ATTENTION = AttentionFactory({"attention": {**group_node("attention", "alpha_entmax")}})(
    Place("encoder_self", 1, 2, 10)
)
FIRST_CALLS = {
    "softmax": entmax.softmax,
    "alpha_entmax": lambda scores: alpha_entmax(scores, torch.tensor([[1.3], [1], [2]])),
    "entmax15_loss": lambda scores: entmax.entmax15_loss(scores, TARGET, label_smoothing=0.1),
    "Entmax15Loss": lambda scores: Entmax15Loss()(scores, TARGET).loss,
    "log_entmax": lambda scores: log_entmax(scores, 1.5),
    "attention": attend,
}


@needs_kernels
@pytest.mark.parametrize("name", FIRST_CALLS)
def test_first_call_of_a_process_may_be_compiled(name, scores):
    """The kernels are checked while it is traced, and used."""
    torch._dynamo.reset()
    compiled = torch.compile(FIRST_CALLS[name], backend="eager", fullgraph=True)
    values = compiled(scores)
    assert ({CPP: None} if name != "log_softmax" else {}) == dispatch._FAILURES
    torch.testing.assert_close(values, FIRST_CALLS[name](scores), rtol=0, atol=0)


@needs_kernels
def test_log_softmax_may_be_compiled_after_a_call(scores):
    """Its kernel is not an operator."""
    expected = log_softmax(scores)
    assert dispatch._FAILURES
    compiled = torch.compile(log_softmax, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), expected)


@needs_kernels
def test_compiled_graph_does_not_use_wrong_kernels(scores, monkeypatch):
    forward = cpu_maps.forward
    monkeypatch.setattr(cpu_maps, "forward", lambda *arguments: forward(*arguments) + 0.01)
    compiled = torch.compile(entmax15, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), entmax15(scores.double()).float())
    assert "weights" in dispatch.failures()[CPP]


def on_gpu(tensor):
    """Return a tensor without values, as if on a GPU."""
    with FakeTensorMode():
        return torch.empty(tensor.shape, device=torch.device("cuda", 0))


DOUBLE = "no kernels for float64 on cpu"
FEW, MANY, LONG = (torch.zeros(1, 2, n, 8) for n in (3, 200, 1024))


@needs_kernels
@pytest.mark.parametrize(
    ("query", "key", "power", "dropout", "bias", "expected"),
    [
        (FEW, MANY, Power.ANY, 0.0, "", (dispatch.CPP_FEW, "checked")),
        (FEW, MANY, Power.ANY, 0.1, "", (dispatch.CPP, "checked")),
        (FEW, MANY[:, :, :12], Power.EXP, 0.1, "", (dispatch.CPP, "checked")),
        (MANY, MANY, Power.ANY, 0.0, "", (dispatch.CPP, "checked")),
        (MANY, MANY, Power.EXP, 0.0, "", (dispatch.TORCH, dispatch.SHORT_ROWS)),
        (MANY, MANY, Power.EXP, 0.0, "padded", (dispatch.CPP, "checked")),
        (MANY, MANY, Power.EXP, 0.0, "equal", (dispatch.TORCH, dispatch.SHORT_ROWS)),
        (LONG, LONG, Power.EXP, 0.0, "equal", (dispatch.CPP, "checked")),
        (LONG, LONG, Power.EXP, 0.0, "", (dispatch.TORCH, dispatch.SHORT_ROWS)),
        (MANY, MANY[:, :, :20], Power.ANY, 0.0, "", (dispatch.WEIGHTS, dispatch.SHORT_ROWS)),
        (MANY.double(), MANY.double(), Power.ANY, 0.0, "", (dispatch.WEIGHTS, DOUBLE)),
        (*[on_gpu(MANY)] * 2, Power.EXP, 0.0, "padded", (dispatch.WEIGHTS, dispatch.PADDED_BIAS)),
    ],
)
def test_attention_kernel_choice_has_a_reason(
    query, key, power, dropout, bias,
    expected, monkeypatch
):  # fmt: skip
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    settings = (power, dropout, False, False, bool(bias), bias == "padded")
    with torch.no_grad():
        assert dispatch.attention(query, key, key, *settings) == expected

"""Wrong kernels are found before use, reported, and replaced by torch."""

import importlib.util
import logging
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from headwise import entmax
from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.config.register import group_node
from headwise.entmax import alpha_entmax, entmax15
from headwise.entmax.losses import log_entmax, log_softmax
from headwise.losses.loss import Entmax15Loss
from headwise.ops import check, dispatch
from headwise.ops.attention import cpu_few, triton_blocks
from headwise.ops.attention.layout import Part
from headwise.ops.attention.pattern_rule import COLUMN
from headwise.ops.cpp import build
from headwise.ops.dropout import cpu as cpu_dropout
from headwise.ops.family import Power
from headwise.ops.library import Library
from headwise.ops.linear import FewRows
from headwise.ops.losses import cpu as cpu_losses
from headwise.ops.losses import triton as triton_losses
from headwise.ops.maps import cpu as cpu_maps
from headwise.ops.maps import triton as triton_maps
from headwise.ops.visible import EVERYTHING, Visible
from kernel_marks import needs_kernels
from triton_marks import DEVICE as DEVICE_NAME
from triton_marks import needs_triton

CPP = Library(dispatch.CPP)
DEVICE = torch.device(DEVICE_NAME, 0) if DEVICE_NAME == "cuda" else torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Return the folder of remembered checks, empty; libraries are of a new precision."""
    build.unavailable_reason()  # compiled kernels stay
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(dispatch, "matmul_precision", lambda: f"of {tmp_path}")
    return tmp_path / "checked"


@pytest.fixture
def scores():
    return torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def break_kernel(monkeypatch):
    """Replace functions; those that raise no error are wrong by 0.01 once, or always."""

    def replace(module, name, error=None, always=False):
        original, calls = getattr(module, name), []

        def wrong(*arguments):
            calls.append(arguments)
            if error is not None:
                raise error
            result = original(*arguments)
            if len(calls) > 1 and not always:
                return result
            first, *rest = result if isinstance(result, tuple) else (result,)
            return (first + 0.01, *rest) if rest else first + 0.01

        monkeypatch.setattr(module, name, wrong)

    return replace


# Maps give every key too large a weight.
BREAK = ("shift, correction));", "shift, correction + 0.01f));")
BROKEN = """
import logging, pathlib, sys, torch
from headwise.entmax import entmax15
from headwise.ops import dispatch
from headwise.ops.cpp import build
from headwise.ops.family import Power
from headwise.ops.maps import cpu
logging.basicConfig(level="WARNING", format="%(message)s", stream=sys.stdout)
build.SOURCES = pathlib.Path("csrc")
build.OPTIONS = tuple(option.replace("-O3", "-O0") for option in build.OPTIONS)
scores = torch.randn(1, 2, 3, 20)
assert (cpu.forward(scores, None, Power.SQUARE).sum(-1) - 1).abs().max() > 1e-3
for _ in range(2):
    leaves = [scores.to(dtype).requires_grad_() for dtype in (torch.float32, torch.float64)]
    weights = [entmax15(leaf) for leaf in leaves]
    grads = [torch.autograd.grad(p[..., 0].square().sum(), z)[0] for p, z in zip(weights, leaves)]
    for single, double in (weights, grads):
        torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-5)
assert dispatch.maps(scores, Power.SQUARE).kernel == dispatch.TORCH
"""


@needs_kernels
@pytest.mark.slow  # compiles
def test_broken_cpp_kernel_is_reported_once_and_not_used(tmp_path):
    shutil.copytree(build.SOURCES, tmp_path / "csrc")
    path = tmp_path / "csrc" / "forward.h"
    text = path.read_text()
    assert BREAK[0] in text
    path.write_text(text.replace(*BREAK))
    command = [sys.executable, "-c", BROKEN]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("C++ kernels are off, torch computes instead: weights") == 1
    assert run.stdout.count("\n") == 1


@needs_kernels
@pytest.mark.parametrize(
    "broken",
    [
        {
            (cpu_maps, "forward"): "weights (float32, EXP) differ",
            (cpu_maps, "backward"): "gradients of scores",
            (cpu_few, "attention_of_few"): "contexts of few queries",
        },
        {
            (cpu_losses, "read"): "values of losses",
            (FewRows, "__call__"): "linear maps of few rows",
        },
        {(cpu_dropout, "drop"): "entries after dropout"},
    ],
    ids=["maps and attention", "losses and linear maps", "dropout"],
)
def test_wrong_python_halves_of_kernels_are_found(broken, break_kernel, cache):
    for module, name in broken:
        break_kernel(module, name)
    found = str(check.failure(CPP))
    assert [words for words in broken.values() if words not in found] == []
    assert not cache.exists()


@needs_kernels
def test_sparse_attention_without_far_keys_is_found(monkeypatch):
    keys = Part.keys
    without = lambda part, states: keys(part, states) * (part.kind != COLUMN)  # noqa: E731
    monkeypatch.setattr(Part, "keys", without)
    found = str(check.failure(CPP))
    assert "contexts" in found
    assert " other results" in found


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

    @pytest.mark.parametrize(
        ("module", "name", "width", "differ"),
        [
            (triton_maps, "forward", 0, "differ"),
            (triton_losses, "read", 0, "differ"),
            (triton_blocks, "block_lists", 16, "contexts"),
        ],
    )
    def test_wrong_kernel_is_found(self, module, name, width, differ, monkeypatch):
        """Of long rows, and one that misses a block of a pattern."""
        original = getattr(module, name)

        def wrong(values, *rest, **options):
            if name == "block_lists":
                values[:, :, 1:, 0] = 0
            elif values.shape[-1] > 2048:
                values = values * 1.01
            return original(values, *rest, **options)

        monkeypatch.setattr(module, name, wrong)
        fields = (DEVICE, torch.float32, Power.SQUARE, width, width > 0)
        assert differ in str(check.failure(Library(dispatch.TRITON, *fields)))


def test_each_gpu_type_map_and_width_is_checked_apart(on_gpu, monkeypatch):
    checked = []
    monkeypatch.setattr(check, "failure", checked.append)
    heads = torch.zeros(1, 2, 30, 16)
    one, other = on_gpu(heads), on_gpu(heads, 1)
    half, wide = on_gpu(heads.bfloat16()), on_gpu(torch.zeros(1, 2, 30, 64))
    calls = [(one, Power.ANY), (other, Power.ANY), (half, Power.ANY), (one, Power.SQUARE)]
    for values, power in (*calls, (wide, Power.ANY), (one, Power.ANY)):
        choice = dispatch.attention(values, values, values, power, EVERYTHING)
        assert choice.kernel == dispatch.TRITON, choice
    expected = [(x.device, x.dtype, power, 16) for x, power in calls]
    wide_fields = (wide.device, torch.float32, Power.ANY, 64)
    assert [library[1:5] for library in checked] == [*expected, wide_fields]


@needs_kernels
def test_check_is_remembered_per_setting(break_kernel, monkeypatch, cache, tmp_path):
    """Settings choose other code for products of matrices, or for Triton's kernels."""
    assert check.failure(CPP) is None
    assert len(list(cache.iterdir())) == 1
    break_kernel(cpu_dropout, "drop", MemoryError("no memory"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    assert check.failure(CPP) is None
    raised = "the check raised MemoryError: no memory"
    assert check.failure(CPP._replace(precision="high")) == raised
    with torch.backends.mkldnn.flags(enabled=False):
        assert check.failure(CPP) == raised
    spec = importlib.util.find_spec("headwise.ops.check")
    other_sources = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other_sources)
    other_sources.__file__ = str(tmp_path / "check.py")
    assert other_sources.failure(CPP) == raised
    for name in ("TRITON_DEFAULT_FP_FUSION", "ONEDNN_MAX_CPU_ISA"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "0")
            assert check.failure(CPP) == raised
    with monkeypatch.context() as patch:
        patch.setattr(build, "build_digest", lambda: "others")
        assert check.failure(CPP) == raised
    assert len(list(cache.iterdir())) == 1


@needs_kernels
def test_kernels_pass_in_any_mode_without_a_cache(cache, caplog):
    """Nor do they use torch's generator."""
    caplog.set_level(logging.INFO, logger="headwise")
    cache.write_text("not a folder")
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("meta"):
            assert check.failure(CPP) is None
    finally:
        torch.set_default_dtype(torch.float32)
    assert "cannot remember the check of the kernels" in caplog.text
    assert torch.equal(torch.get_rng_state(), state)


@needs_kernels
def test_precision_may_be_set_by_backend(scores, monkeypatch):
    monkeypatch.undo()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert (entmax15(scores).sum(-1) - 1).abs().max() < 1e-6
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


@needs_kernels
def test_other_threads_that_draw_do_not_disturb_the_check(scores, cache):
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
    assert len(list(cache.iterdir())) == 1


def attend(scores):
    states = scores[:, :1].repeat(1, dispatch.MIN_KEYS, 1)
    node = {"attention": {**group_node("attention", "alpha_entmax")}}
    return AttentionFactory(node)(Place("encoder_self", 1, 2, 10)), states


TARGET = torch.arange(6).view(2, 3)
FIRST_CALLS = {
    "softmax": entmax.softmax,
    "alpha_entmax": lambda scores: alpha_entmax(scores, torch.tensor([[1.3], [1], [2]])),
    "entmax15_loss": lambda scores: entmax.entmax15_loss(scores, TARGET, label_smoothing=0.1),
    "Entmax15Loss": lambda scores: Entmax15Loss()(scores, TARGET).loss,
    "log_entmax": lambda scores: log_entmax(scores, 1.5),
    "attention": None,
}


@needs_kernels
@pytest.mark.parametrize("name", FIRST_CALLS)
def test_first_call_of_a_process_may_be_compiled(name, scores, cache):
    """The kernels are checked while it is traced, and used."""
    call = FIRST_CALLS[name]
    if name == "attention":
        layer, states = attend(scores)
        call = lambda scores: layer(states, states, states, Mask())  # noqa: E731
    torch._dynamo.reset()
    values = torch.compile(call, backend="eager", fullgraph=True)(scores)
    assert len(list(cache.iterdir())) == 1
    torch.testing.assert_close(values, call(scores), rtol=0, atol=0)


@needs_kernels
def test_log_softmax_may_be_compiled_after_a_call(scores, cache):
    """Its kernel is not an operator."""
    expected = log_softmax(scores)
    assert cache.exists()
    compiled = torch.compile(log_softmax, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), expected)


@needs_kernels
def test_compiled_graph_does_not_use_wrong_kernels(scores, break_kernel):
    break_kernel(cpu_maps, "forward", always=True)
    compiled = torch.compile(entmax15, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), entmax15(scores.double()).float())
    choice = dispatch.maps(scores, Power.SQUARE)
    assert choice.kernel == dispatch.TORCH
    assert choice.reason.startswith("weights")
    assert choice.reason in dispatch.failures().values()


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
        (None, MANY, Power.EXP, 0.0, "padded", (dispatch.WEIGHTS, dispatch.PADDED_BIAS)),
    ],
)
def test_attention_kernel_choice_has_a_reason(
    query, key, power, dropout, bias,
    expected, on_gpu
):  # fmt: skip
    if query is None:
        query = key = on_gpu(key)
    visible = Visible(torch.tensor([9])) if bias == "padded" else EVERYTHING
    settings = {"dropout": dropout, "has_bias": bool(bias)}
    with torch.no_grad():
        assert dispatch.attention(query, key, key, power, visible, **settings) == expected

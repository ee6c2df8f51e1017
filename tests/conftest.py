"""Setup of every test: one thread, no network, no files outside temporary folders."""

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

# Before any import that reads them; subprocesses that a test starts inherit them.
_CACHE = tempfile.mkdtemp(prefix="headwise-tests-")
os.environ.update(
    HEADWISE_CACHE=os.path.join(_CACHE, "headwise"),
    HF_HOME=os.path.join(_CACHE, "huggingface"),
    HF_HUB_OFFLINE="1",
    MPLBACKEND="Agg",
    OMP_NUM_THREADS="1",
    WANDB_MODE="disabled",
)
os.environ.pop("HEADWISE_DATA", None)  # corpora on this machine
# Otherwise gloo looks up this machine's host name, which not every resolver knows.
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")

import pytest  # noqa: E402
import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import command_line  # noqa: E402
import triton_marks  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def make():
    """Compose a configuration from overrides."""
    with command_line.composer() as compose:
        yield compose


@pytest.fixture
def set_threads():
    """Set the number of torch's threads; it is restored after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def pytest_configure(config):
    """Compile the C++ kernels once: for this session, its workers and the next one."""
    cache = getattr(config, "cache", None)  # missing with -p no:cacheprovider
    if cache is not None:
        native = Path(_CACHE, "headwise", "native")
        native.parent.mkdir()
        native.symlink_to(cache.mkdir("native"), target_is_directory=True)


def pytest_ignore_collect(collection_path, config):
    """Leave out files that import Transformers, for seconds, and have slow tests alone."""
    is_fast = "not slow" in config.option.markexpr
    return True if is_fast and collection_path.name.startswith("test_hf_") else None


def pytest_unconfigure():
    shutil.rmtree(_CACHE, ignore_errors=True)


class NetworkBlockedError(RuntimeError):
    """A test used the network.

    Not an OSError, which libraries retry or ignore.
    """


LOCAL = (None, "", "localhost", "0.0.0.0", "::", "::1", socket.gethostname())


def _refuse_remote(host):
    host = host.decode() if isinstance(host, bytes) else host
    if host not in LOCAL and not host.startswith("127."):
        raise NetworkBlockedError(f"tests run without a network, but this one reached for {host!r}")


@pytest.fixture(autouse=True, scope="session")
def _no_network():
    """Refuse connections and name look-ups beyond this machine; gloo and workers need loopback."""
    families = (socket.AF_INET, socket.AF_INET6)
    real_getaddrinfo = socket.getaddrinfo

    def guarded(real):
        def call(sock, *args):
            address = args[-1]  # connect(address), sendto(data, [flags,] address)
            if sock.family in families and isinstance(address, tuple):
                _refuse_remote(address[0])
            return real(sock, *args)

        return call

    def getaddrinfo(host, *args, **kwargs):
        _refuse_remote(host)
        return real_getaddrinfo(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for method in ("connect", "connect_ex", "sendto"):
            patch.setattr(socket.socket, method, guarded(getattr(socket.socket, method)))
        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield


@pytest.fixture(autouse=True, scope="session")
def _prepared_interpreter():
    with pytest.MonkeyPatch.context() as patch:
        if triton_marks.HAS_TRITON and triton_marks.IS_INTERPRETED:
            triton_marks.prepare_interpreter(patch)
        yield


OPERATOR_TESTS = (
    "test_ops_",
    "test_entmax_",
    "test_operator_",
    "test_attention_contract",
    "test_attention_kernels",
)


@pytest.fixture(autouse=True)
def _poisoned_memory(request):
    """In tests of operators, torch fills new memory with NaN: a value that is not written is seen.

    It does so while deterministic algorithms are demanded (`fill_uninitialized_memory`).
    """
    is_poisoned = request.path.name.startswith(OPERATOR_TESTS)
    if is_poisoned:
        torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    if is_poisoned:
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def headwise(capsys, monkeypatch):
    """The commands, in this process."""
    return command_line.CommandLine(capsys, monkeypatch)


@pytest.fixture
def kernels_for_short_rows(monkeypatch):
    """Attention kernels are used for rows of any length."""
    monkeypatch.setattr("headwise.ops.dispatch.MIN_KEYS", 1)


IMPLEMENTATIONS = ["kernels", "torch"]
if triton_marks.HAS_TRITON and triton_marks.IS_INTERPRETED:  # the tests' tensors are on a CPU
    IMPLEMENTATIONS.append(pytest.param("triton", marks=triton_marks.needs_triton))


@pytest.fixture(params=IMPLEMENTATIONS)
def every_implementation(request, monkeypatch):
    """Run a test with the C++ kernels of the maps and losses, with torch alone, with Triton."""
    triton_marks.choose_implementation(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture
def on_gpu(monkeypatch):
    """Return a function that makes a tensor without values, as if on a GPU with Triton."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("headwise.ops.triton.device.HAS_TRITON", True)
    monkeypatch.setattr("headwise.ops.triton.device.MISSING_TOOL", None)

    def make(tensor, index=0):
        with FakeTensorMode():
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=torch.device("cuda", index))

    return make


@pytest.fixture
def fresh_graphs():
    """Compile anew: no graph of an earlier test, none left for a later one."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()

"""A stand-in for a GPU: `cuda` for torch and headwise on a machine without one.

Its tensors report the device `cuda:0`; their numbers are in CPU memory and the CPU computes. Mixed
devices and numpy are errors, as on a GPU. This tests everything that depends on the device alone:
transfers, the choice of implementations, and whether the host waits for the device. Triton's
kernels run in its interpreter if that is enabled. Not simulated: torch's fused attention, streams
and time.

Import it before torch, which reads its registry of devices once, in a separate process, and call
`load` first.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import subprocess
import traceback
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")


def folder_of(package):
    """Folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent


HEADWISE = folder_of("headwise")


def build(folder, compiler):
    """Compile the library that `load` takes."""
    torch_folder, library = folder_of("torch"), folder / "standin_gpu.so"
    command = [compiler, "-std=c++20", "-O0", "-shared", "-fPIC", str(SOURCE), "-o", str(library)]
    command += [
        f"-I{torch_folder / 'include'}",
        f"-L{torch_folder / 'lib'}",
        "-lc10",
        "-ltorch_cpu",
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def load(library):
    """Register the device with torch."""
    for path in (folder_of("torch") / "lib" / "libtorch_cpu.so", library):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


class Device:
    """The stand-in, as a context manager.

    Attributes:
        waits: how often each line of headwise made the host wait for the device, as `file:line`.
    """

    def __init__(self):
        self.waits = Counter()
        self._entered = contextlib.ExitStack()

    def __enter__(self):
        import torch
        import torch._dynamo.trace_rules as rules
        from torch.utils._python_dispatch import TorchDispatchMode

        rules.get_torch_obj_rule_map()  # reads torch.cuda's functions before they are replaced
        self._tensor_type = _tensor_type(self)
        run = self._run

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return run(func, args, kwargs or {})

        torch.__future__.set_swap_module_params_on_conversion(True)
        _stand_in(torch)
        _interpret_kernels(self._tensor_type)
        self._entered.enter_context(Mode())
        return self

    def __exit__(self, *_):
        self._entered.close()

    def wait(self):
        """Count a wait of the host."""
        stack = traceback.extract_stack()
        inside = [one for one in stack if Path(one.filename).is_relative_to(HEADWISE)]
        where = f"{inside[-1].filename}:{inside[-1].lineno}" if inside else str(stack[0].filename)
        self.waits[where.removeprefix(f"{HEADWISE}/")] += 1

    def _run(self, func, args, kwargs):
        import torch
        from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

        aten, tensor_type = torch.ops.aten, self._tensor_type
        flat, spec = tree_flatten((args, kwargs))
        on_device = [one for one in flat if isinstance(one, tensor_type)]
        others = [
            one
            for one in flat
            if isinstance(one, torch.Tensor) and not isinstance(one, tensor_type)
        ]
        if on_device and any(one.dim() for one in others) and func not in _may_mix(aten):
            raise RuntimeError(f"expected all tensors to be on the same device: {func}")
        device = kwargs.get("device")
        is_on_device = bool(on_device) if device is None else torch.device(device).type == "cuda"
        if func is aten.copy_.default:
            is_on_device = isinstance(args[0], tensor_type)
        if on_device and func is aten._fused_sdp_choice.default:
            return 0  # plain products; other choices are kernels
        if _has_host_wait(aten, func, args, kwargs, bool(on_device), is_on_device):
            self.wait()
        wrapped = {id(one.numbers): one for one in on_device}
        cpu = torch.device("cpu")
        plain = [
            one.numbers
            if isinstance(one, tensor_type)
            else cpu
            if isinstance(one, torch.device)
            else one
            for one in flat
        ]
        plain_args, plain_kwargs = tree_unflatten(plain, spec)
        if is_on_device:
            plain_kwargs.pop("pin_memory", None)

        def wrap(one):
            if id(one) in wrapped:  # changed in place
                return wrapped[id(one)]
            return tensor_type(one) if is_on_device and isinstance(one, torch.Tensor) else one

        return tree_map(wrap, func(*plain_args, **plain_kwargs))


def _has_host_wait(aten, func, args, kwargs, reads_device, writes_device):
    """Whether an operator makes the host wait for the device."""
    if func in (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default):
        masks = [one for one in args[1] if one is not None and str(one.dtype) == "torch.bool"]
        is_filled = func is not aten.index.Tensor and args[2].numel() == 1
        return reads_device and bool(masks) and not is_filled
    if func in (
        aten._local_scalar_dense.default,
        aten.nonzero.default,
        aten.masked_select.default,
        aten.bincount.default,
        aten._unique2.default,
        aten.repeat_interleave.Tensor,
    ):
        return reads_device
    if func is aten._to_copy.default:
        return reads_device != writes_device and not (writes_device and kwargs.get("non_blocking"))
    if func is aten.copy_.default:
        is_non_blocking = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        return args[0].device != args[1].device and not is_non_blocking
    return False


def _may_mix(aten):
    """Operators that also take tensors of both devices on a real GPU."""
    return (
        aten.copy_.default, aten._to_copy.default, aten.index.Tensor, aten.index_put.default,
        aten.index_put_.default, aten._index_put_impl_.default,
    )  # fmt: skip


def _tensor_type(device):
    import torch

    class OnDevice(torch.Tensor):
        numbers: torch.Tensor

        @staticmethod
        def __new__(cls, numbers):
            result = torch.Tensor._make_wrapper_subclass(
                cls, numbers.size(), strides=numbers.stride(),
                storage_offset=numbers.storage_offset(), dtype=numbers.dtype,
                device=torch.device("cuda", 0),
            )  # fmt: skip
            result.numbers = numbers
            return result

        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return device._run(func, args, kwargs or {})

        def __repr__(self, **_):
            return f"on cuda: {self.numbers}"

        def __reduce_ex__(self, protocol):
            return self.numbers.__reduce_ex__(protocol)

        def tolist(self):
            device.wait()
            return self.numbers.tolist()

        def numpy(self, **_):
            raise TypeError("can't convert a tensor on cuda to numpy")

        __array__ = numpy

    return OnDevice


def _stand_in(torch):
    """Replace torch.cuda's functions, and those that create tensors without dispatch."""

    def returning(value):
        return lambda *_, **__: value

    values = {
        "is_available": True, "device_count": 1, "current_device": 0,
        "get_device_name": "stand-in", "get_device_properties": "stand-in",
        "get_device_capability": (9, 0), "is_bf16_supported": True, "max_memory_allocated": 2,
        "memory_allocated": 1, "device": contextlib.nullcontext(), "_is_in_bad_fork": False,
    }  # fmt: skip
    nothing = ("set_device", "empty_cache", "synchronize", "manual_seed", "manual_seed_all")
    for name in (*nothing, "reset_peak_memory_stats", "_lazy_init", "_sleep"):
        values[name] = None
    for name, value in values.items():
        setattr(torch.cuda, name, returning(value))
    torch.cuda.Event = _Event
    import torch.cuda.amp.common as common

    common.amp_definitely_not_available = returning(False)
    for name in ("tensor", "as_tensor"):
        setattr(torch, name, _then_moved(getattr(torch, name)))

    class Generator(torch.Generator):
        def __new__(cls, device="cpu"):
            return super().__new__(cls, "cpu")

    torch.Generator = Generator


class _Event:
    """A CUDA event; any two are a millisecond apart."""

    def __init__(self, enable_timing=False):
        self.is_recorded = False

    def record(self):
        self.is_recorded = True

    def elapsed_time(self, end):
        assert self.is_recorded
        assert end.is_recorded
        return 1.0


def _interpret_kernels(tensor_type):
    """Let Triton's interpreter, if enabled, read and write the numbers."""
    if os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None:
        return
    from torch.utils._pytree import tree_map
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def launch_on_cpu(self, *args, **kwargs):
        plain = tree_map(
            lambda one: one.numbers if isinstance(one, tensor_type) else one, [args, kwargs]
        )
        launch(self, *plain[0], **plain[1])

    GridExecutor.__call__ = launch_on_cpu


def _then_moved(make):
    def make_and_move(*args, device=None, **kwargs):
        tensor = make(*args, **kwargs)
        return tensor if device is None else tensor.to(device)

    return make_and_move

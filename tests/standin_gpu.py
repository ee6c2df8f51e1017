"""A stand-in for a GPU: `cuda` as torch and headwise see it, on a machine that has none.

Its tensors say that they are on `cuda:0` and hold their numbers in the memory of the CPU, which
computes; what torch refuses on a GPU is refused here: mixed devices, and numpy. So whatever depends
on the device alone can be run: what moves where, which way is taken, and whether the host waits for
the device. Triton's kernels run in its interpreter, where that is on; not stood in for are torch's
own fused attention, streams, and time.

To be imported before torch, whose registry of devices is read once, in a process of its own:
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_suffix(".cpp")


def folder_of(package: str) -> Path:
    """Where a package is installed, without importing it."""
    found = importlib.util.find_spec(package)
    return Path(found.origin).parent


HEADWISE = folder_of("headwise")


def build(folder: Path, compiler: str) -> Path:
    """Compile what `load` takes."""
    torch_at, library = folder_of("torch"), folder / "standin_gpu.so"
    command = [compiler, "-std=c++20", "-O0", "-shared", "-fPIC", str(SOURCE), "-o", str(library)]
    command += [f"-I{torch_at / 'include'}", f"-L{torch_at / 'lib'}", "-lc10", "-ltorch_cpu"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def load(library: Path) -> None:
    """Register the device with torch."""
    for path in (folder_of("torch") / "lib" / "libtorch_cpu.so", library):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


class Device:
    """The stand-in, while it is entered.

    Attributes:
        waits: how often a line of headwise had the host wait for the device, as `file:line`.
    """

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> Device:
        import torch
        import torch._dynamo.trace_rules as rules
        from torch.utils._python_dispatch import TorchDispatchMode

        rules.get_torch_obj_rule_map()  # reads torch.cuda's functions before they are others
        self._tensor_type = _tensor_type(self)
        run = self._run

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
            ) -> Any:
                return run(func, args, kwargs or {})

        torch.__future__.set_swap_module_params_on_conversion(True)
        _stand_in(torch)
        _interpret_kernels(self._tensor_type)
        self._entered.enter_context(Mode())
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def wait(self) -> None:
        """Note that the host waits."""
        stack = traceback.extract_stack()
        inside = [one for one in stack if Path(one.filename).is_relative_to(HEADWISE)]
        where = f"{inside[-1].filename}:{inside[-1].lineno}" if inside else str(stack[0].filename)
        self.waits[where.removeprefix(f"{HEADWISE}/")] += 1

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        import torch
        from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

        aten, ours = torch.ops.aten, self._tensor_type
        flat, spec = tree_flatten((args, kwargs))
        here = [one for one in flat if isinstance(one, ours)]
        others = [
            one for one in flat if isinstance(one, torch.Tensor) and not isinstance(one, ours)
        ]
        if here and any(one.dim() for one in others) and func not in _may_mix(aten):
            raise RuntimeError(f"expected all tensors to be on the same device: {func}")
        device = kwargs.get("device")
        is_ours = bool(here) if device is None else torch.device(device).type == "cuda"
        if func is aten.copy_.default:
            is_ours = isinstance(args[0], ours)
        if here and func is aten._fused_sdp_choice.default:
            return 0  # the way of plain products: the others are kernels
        if _has_host_wait(aten, func, args, kwargs, bool(here), is_ours):
            self.wait()
        wrapped = {id(one.numbers): one for one in here}
        cpu = torch.device("cpu")
        plain = [
            one.numbers if isinstance(one, ours) else cpu if isinstance(one, torch.device) else one
            for one in flat
        ]
        plain_args, plain_kwargs = tree_unflatten(plain, spec)
        if is_ours:
            plain_kwargs.pop("pin_memory", None)

        def given(one: Any) -> Any:
            if id(one) in wrapped:  # changed in place
                return wrapped[id(one)]
            return ours(one) if is_ours and isinstance(one, torch.Tensor) else one

        return tree_map(given, func(*plain_args, **plain_kwargs))


def _has_host_wait(aten: Any, func: Any, args: Any, kwargs: Any, given: bool, made: bool) -> bool:
    """Whether an operator ends only when the device has done all that it was asked before."""
    if func in (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default):
        masks = [one for one in args[1] if one is not None and str(one.dtype) == "torch.bool"]
        is_filled = func is not aten.index.Tensor and args[2].numel() == 1
        return given and bool(masks) and not is_filled
    if func in (
        aten._local_scalar_dense.default,
        aten.nonzero.default,
        aten.masked_select.default,
        aten.bincount.default,
        aten._unique2.default,
        aten.repeat_interleave.Tensor,
    ):
        return given
    if func is aten._to_copy.default:
        return given != made and not (made and kwargs.get("non_blocking"))
    if func is aten.copy_.default:
        is_beside = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        return args[0].device != args[1].device and not is_beside
    return False


def _may_mix(aten: Any) -> tuple[Any, ...]:
    """Operators that take tensors of both devices on a real GPU, too."""
    return (
        aten.copy_.default, aten._to_copy.default, aten.index.Tensor, aten.index_put.default,
        aten.index_put_.default, aten._index_put_impl_.default,
    )  # fmt: skip


def _tensor_type(device: Device) -> Any:
    import torch

    class OnDevice(torch.Tensor):
        numbers: torch.Tensor

        @staticmethod
        def __new__(cls: Any, numbers: torch.Tensor) -> Any:
            made = torch.Tensor._make_wrapper_subclass(
                cls, numbers.size(), strides=numbers.stride(),
                storage_offset=numbers.storage_offset(), dtype=numbers.dtype,
                device=torch.device("cuda", 0),
            )  # fmt: skip
            made.numbers = numbers
            return made

        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            return device._run(func, args, kwargs or {})

        def __repr__(self, **_: Any) -> str:
            return f"on cuda: {self.numbers}"

        def __reduce_ex__(self, protocol: Any) -> Any:
            return self.numbers.__reduce_ex__(protocol)

        def tolist(self) -> Any:
            device.wait()
            return self.numbers.tolist()

        def numpy(self, **_: Any) -> Any:
            raise TypeError("can't convert a tensor on cuda to numpy")

        __array__ = numpy

    return OnDevice


def _stand_in(torch: Any) -> None:
    """Answers of torch.cuda, and what makes tensors behind the back of a dispatch mode."""

    def always(answer: object) -> Callable[..., Any]:
        return lambda *_, **__: answer

    answers = {
        "is_available": True, "device_count": 1, "current_device": 0,
        "get_device_name": "stand-in", "get_device_properties": "stand-in",
        "get_device_capability": (9, 0), "is_bf16_supported": True, "max_memory_allocated": 2,
        "memory_allocated": 1, "device": contextlib.nullcontext(), "_is_in_bad_fork": False,
    }  # fmt: skip
    nothing = ("set_device", "empty_cache", "synchronize", "manual_seed", "manual_seed_all")
    for name in (*nothing, "reset_peak_memory_stats", "_lazy_init", "_sleep"):
        answers[name] = None
    for name, answer in answers.items():
        setattr(torch.cuda, name, always(answer))
    torch.cuda.Event = _Event
    import torch.cuda.amp.common as common

    common.amp_definitely_not_available = always(False)
    for name in ("tensor", "as_tensor"):
        setattr(torch, name, _then_moved(getattr(torch, name)))

    class Generator(torch.Generator):  # type: ignore[misc, name-defined]
        def __new__(cls, device: object = "cpu") -> Any:
            return super().__new__(cls, "cpu")

    torch.Generator = Generator


class _Event:
    """A moment in the queue of the device; between any two of them passes a millisecond."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.is_recorded = False

    def record(self) -> None:
        self.is_recorded = True

    def elapsed_time(self, end: _Event) -> float:
        assert self.is_recorded
        assert end.is_recorded
        return 1.0


def _interpret_kernels(ours: Any) -> None:
    """Let Triton's interpreter, where it is on, read and write the numbers."""
    if os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None:
        return
    from torch.utils._pytree import tree_map
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def plainly(self: Any, *args: Any, **kwargs: Any) -> None:
        plain = tree_map(lambda one: one.numbers if isinstance(one, ours) else one, [args, kwargs])
        launch(self, *plain[0], **plain[1])

    GridExecutor.__call__ = plainly


def _then_moved(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        found = make(*args, **kwargs)
        return found if device is None else found.to(device)

    return made

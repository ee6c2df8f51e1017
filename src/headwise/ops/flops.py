"""Formulas of FLOPs for torch's counter, `torch.utils.flop_counter.FlopCounterMode`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

COUNTER = "torch.utils.flop_counter"
_FORMULAS: dict[Any, Callable[..., int]] = {}  # by operator


def register_flops(operator: Any, formula: Callable[..., int]) -> None:
    """Register a formula, as `torch.utils.flop_counter.register_flop_formula`.

    If the counter is not imported yet, the formula is registered when it is: it imports Triton,
    which takes longer than all of headwise.
    """
    _FORMULAS[operator] = formula
    if COUNTER in sys.modules:
        _register_all(sys.modules[COUNTER])


def _register_all(counter: ModuleType) -> None:
    for operator, formula in _FORMULAS.items():
        if operator not in counter.flop_registry:
            counter.register_flop_formula(operator)(formula)


class _CounterFinder:
    """Finds the module of the counter, and registers the formulas after its import."""

    is_searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != COUNTER or self.is_searching:
            return None
        self.is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.is_searching = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register_all(module)

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


if COUNTER not in sys.modules:
    sys.meta_path.insert(0, _CounterFinder())

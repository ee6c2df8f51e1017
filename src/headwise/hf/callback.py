"""α, density and entropy per head in the logs of Transformers' `Trainer`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from headwise.hf.heads import heads


class AlphaCallback(TrainerCallback):  # type: ignore[misc]
    """Log α of every head, as `alpha/<site>/layer<i>/head<j>`, to every tracker of a Trainer.

    Trackers log before the callbacks that a Trainer is constructed with, so this one is added in
    front of them: `AlphaCallback(batches).add_to(trainer)`. What a Trainer prints stays as it is.

    Args:
        batches: inputs of the model on which density and entropy of every head are measured at
            evaluations, as for `headwise.hf.record`.
    """

    def __init__(self, batches: Sequence[Mapping[str, Any]] = ()) -> None:
        self.batches = tuple(batches)
        self.values: dict[str, float] = {}  # of this log

    def add_to(self, trainer: Trainer) -> AlphaCallback:
        """Add the callback to a Trainer, in front of its trackers; return the callback.

        Those that print, or draw the progress bar, are put last.

        Raises:
            ValueError: the model of the Trainer has no sparse heads.
        """
        heads(trainer.model)
        handler, printers = trainer.callback_handler, (PrinterCallback, ProgressCallback)
        last = [x for x in handler.callbacks if isinstance(x, printers)]
        trackers = [x for x in handler.callbacks if x not in last]
        handler.callbacks = [self, *trackers, _AfterTrackers(self), *last]
        return self

    def on_log(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None,
        logs: dict[str, Any] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Add α, and at evaluations density and entropy, to the logs and their history."""
        if model is None or logs is None:
            return
        tables: list[tuple[Any, tuple[str, ...]]] = [(heads(model), ("alpha",))]
        if self.batches and any(name.startswith("eval_") for name in logs):
            from headwise.hf.survey import record  # it loads the analysis

            tables.append((record(model, self.batches)["heads"], ("density", "entropy")))
        self.values = {
            f"{name}/{row['site']}/layer{row['layer']}/head{row['head']}": row[name]
            for table, names in tables
            for row in table.to_dict("records")
            for name in names
            if row[name] is not None and math.isfinite(row[name])
        }
        logs.update(self.values)
        state.log_history[-1].update(self.values)


class _AfterTrackers(TrainerCallback):  # type: ignore[misc]
    """Takes α out of the logs again: they are also the metrics that `Trainer.evaluate` returns."""

    def __init__(self, alphas: AlphaCallback) -> None:
        self.alphas = alphas

    def on_log(self, *args: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        for name in self.alphas.values:
            (logs or {}).pop(name, None)

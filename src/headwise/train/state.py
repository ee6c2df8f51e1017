"""Training state besides weights and optimizer: counters, data position, best score."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TrainState:
    """Numbers that are saved with every checkpoint.

    Attributes:
        update: updates done.
        tokens: target tokens so far, over all ranks.
        data: position of the batch loader.
        metrics_lines, heads_lines: lengths of the records; resuming truncates to them.
        window_loss, window_measure, window_tokens: sums since the last logged update.
        best_score: of the monitored metric; None before the first validation.
        best_update: update of the best validation.
        bad_validations: number of validations since then.
        stopped_early: `patience` validations brought no better score.
    """

    update: int = 0
    tokens: int = 0
    data: dict[str, int] = field(default_factory=dict)
    metrics_lines: int = 0
    heads_lines: int = 0
    window_loss: float = 0.0
    window_measure: float = 0.0
    window_tokens: int = 0
    best_score: float | None = None
    best_update: int = 0
    bad_validations: int = 0
    stopped_early: bool = False

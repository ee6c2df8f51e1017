"""The loss of a model of any task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headwise.data.batch import Batch
from headwise.losses.loss import Loss
from headwise.metrics.metric import Measured
from headwise.model.family import Model, evaluating
from headwise.progress import progress_bar
from headwise.train.distributed import Ranks


@torch.no_grad()
def measure_losses(
    model: Model,
    loss: Loss,
    batches: Sequence[Batch],
    ranks: Ranks,
    extra: Callable[[Tensor, Tensor], Tensor] | None = None,
    progress: bool = False,
    n_extra: int = 1,
) -> Measured:
    """Loss, its measure and target tokens of every row of a split, with the metrics of the loss.

    Args:
        batches: the whole split; each rank evaluates its share and gets all items.
        extra: logits (R, V) and targets (R,) of the scored positions -> more statistics (R, S),
            or (R,) if S is 1.
        n_extra: S.
        progress: show a bar on a terminal.
    """
    n_statistics = 3 if extra is None else 3 + n_extra
    items_NS = torch.zeros(
        sum(map(len, batches)), n_statistics, dtype=torch.float64, device=ranks.device
    )
    with evaluating(model), progress_bar("evaluating", progress, len(items_NS), " rows") as bar:
        for index in range(ranks.rank, len(batches), ranks.world_size):
            batch = batches[index].to(ranks.device)
            states_BND = model.states(**model.inputs(batch))
            states_RD, targets_R = batch.scored(states_BND), batch.targets_R
            statistics = [*model.output.rows(states_RD, targets_R, loss)]
            statistics.append(torch.ones_like(statistics[0]))
            statistics_RS = torch.stack(statistics, 1).double()
            if extra is not None:
                extra_RS = extra(model.output(states_RD), targets_R).double().view(-1, n_extra)
                statistics_RS = torch.cat((statistics_RS, extra_RS), 1)
            rows_B = torch.tensor(batch.rows, device=ranks.device)
            rows_R = rows_B[batch.scored_R // states_BND.shape[1]]
            items_NS.index_add_(0, rows_R, statistics_RS)
            bar.update(len(batch))
    return Measured(ranks.sum(items_NS).cpu().numpy(), loss.metrics)

"""Kinds of heads by the places that they attend to (Child et al. 2019).

The paper, on learned attention patterns, shows local, row, column, and global and data-dependent
heads as examples; the rule is ours. It needs the places of the values: rows, columns and channels
of an image, or the positions of a sequence, whose rows are as long as the stride of its pattern.
Every visible value is in the first of these regions that contains it:

- local: at most one row and one column away; in a sequence at most `NEAR` positions;
- row: in the same row; in a sequence at most a row length - 2 away;
- column: in the same column or one next to it; in a sequence a multiple of a row length, ± 1;
- global: elsewhere, also in another image of the window.

The first key of a window, a start token or the value before it, and the start token of an image are
in the region start.

A head is of the kind of the region with at least half of its weight, in the mean over the queries
of the second half of a window, which see all regions. It is also data-dependent if its variation,
see `Variations`, is at least a half.

Axes: B batch, H heads, Q queries, K keys, N positions, S selected queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.analysis.collect import Measures, head_table
from headwise.analysis.observe import Observation

if TYPE_CHECKING:
    from headwise.data.batch import Batch
    from headwise.model.family import Model
    from headwise.track.base import HeadValues

REGIONS = ("local", "row", "column", "global", "start")
GLOBAL, START = 3, 4
NEAR = 8
# Kind -> the statistic of its heads, which is at least `MIN_VALUE`.
KINDS = {**{name: name for name in REGIONS[:START]}, "data_dependent": "variation"}
MIN_VALUE = 0.5
N_SELECTED = 16  # queries of a window whose variation is measured


@dataclass(frozen=True)
class Places:
    """Places of the values of a column; query q is at value q.

    Attributes:
        window: number of positions of the column.
        row: number of values of a row; None: a sequence without rows.
        channels: number of values of a pixel; 0: a sequence.
        n_start: number of start tokens: key k is value k - n_start.
        image: number of values of an image, which follows start tokens; 0: a sequence.
    """

    window: int
    row: int | None = None
    channels: int = 0
    n_start: int = 0
    image: int = 0

    def regions(self, queries_Q: Tensor, n_keys: int) -> Tensor:
        """Return the number of the region of every key for each query, (Q, K)."""
        keys_K = torch.arange(n_keys, device=queries_Q.device) - self.n_start
        is_start_K = keys_K < 0
        distance_QK = (queries_Q[:, None] - keys_K).abs()
        if self.row and self.channels:
            rows_QK = (queries_Q[:, None] // self.row - keys_K // self.row).abs()
            columns_Q, columns_K = (n % self.row // self.channels for n in (queries_Q, keys_K))
            near_QK = (columns_Q[:, None] - columns_K).abs() <= 1
            near_QK &= queries_Q[:, None] // self.image == keys_K // self.image
            is_start_K |= (keys_K + self.n_start) % self.image < self.n_start
            inside = [near_QK & (rows_QK <= 1), rows_QK == 0, near_QK]
        else:
            inside = [distance_QK <= NEAR]
        if self.row and not self.channels:
            inside += [distance_QK < self.row - 1, (distance_QK + 1) % self.row <= 2]
        regions_QK = torch.full_like(distance_QK, GLOBAL)
        for number, is_inside_QK in reversed(list(enumerate(inside))):
            regions_QK = regions_QK.where(~is_inside_QK, number)
        return regions_QK.where(~is_start_K, START)


def region_shares(batch: Batch, obs: Observation, places: Places) -> Measures:
    """Yield the share of the weight of each head in every region, by its name."""
    n_queries, device = obs.shares_BHQK.shape[2], obs.shares_BHQK.device
    queries_Q = torch.arange(n_queries, device=device) + obs.first
    is_late_BQ = 2 * queries_Q >= batch.columns[obs.queries].lengths_B[:, None]
    counted_BHQ = (is_late_BQ & obs.queries_BQ)[:, None] & (obs.shares_BHQK != 0).any(-1)
    regions_QK = places.regions(queries_Q, obs.shares_BHQK.shape[3])
    for number, name in enumerate(REGIONS):
        if places.row is None and name in ("row", "column"):
            continue
        share_BHQ = obs.shares_BHQK.where(regions_QK == number, 0.0).sum(-1)
        yield {name: obs.measured(share_BHQ)}, counted_BHQ


class Variations:
    """How much the weights of a query differ between inputs, at `N_SELECTED` places of a window.

    With p the weights of one of n inputs, 1 - |E p|² / E |p|², multiplied by n / (n - 1): 0 if
    they are equal for all inputs, about 1 if no two inputs share a key.

    Args:
        window: number of positions.
    """

    def __init__(self, window: int) -> None:
        self._window, n = window, min(window, N_SELECTED)
        self._selected = [(i + 1) * window // n - 1 for i in range(n)]
        # (site, layer) -> sums of p (S, H, N) and |p|² (S, H), and number of inputs (S,)
        self._sums: dict[tuple[str, int], list[Tensor]] = {}

    def add(self, obs: Observation) -> None:
        """Add a block of queries of self-attention."""
        n_heads, n_queries, n_keys = obs.shares_BHQK.shape[1:]
        sizes = (n_heads, self._window), (n_heads,), ()
        zeros = [obs.shares_BHQK.new_zeros(len(self._selected), *s).double() for s in sizes]
        p_SHN, squares_SH, n_S = self._sums.setdefault((obs.site, obs.layer), zeros)
        for s, query in enumerate(self._selected):
            row = query - obs.first
            if 0 <= row < n_queries:
                p_BHK = obs.measured(obs.shares_BHQK[:, :, row])  # 0 in shorter windows
                p_SHN[s, :, :n_keys] += p_BHK.sum(0)
                squares_SH[s] += p_BHK.square().sum((0, 2))
                n_S[s] += obs.queries_BQ[:, row].sum()

    def table(self, model: Model) -> HeadValues:
        """Return site -> layers -> heads, the mean over the selected queries."""
        return head_table(model, {place: _variation(*sums) for place, sums in self._sums.items()})


def _variation(p_SHN: Tensor, squares_SH: Tensor, n_S: Tensor) -> Tensor:
    """Return the variation of each head (H,); NaN with fewer than two inputs."""
    n_S1 = n_S[:, None]
    squared_mean_SH = (p_SHN / n_S1[..., None]).square().sum(-1)
    share_SH = 1 - squared_mean_SH * n_S1 / squares_SH
    variation_H: Tensor = (share_SH * n_S1 / (n_S1 - 1))[n_S > 1].mean(0)
    return variation_H


def kinds(head: Mapping[str, float]) -> list[str]:
    """Return the kinds of a head, from its shares of weight by region and its variation."""
    return [kind for kind, name in KINDS.items() if head.get(name, 0.0) >= MIN_VALUE]

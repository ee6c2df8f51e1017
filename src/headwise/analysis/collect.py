"""Looking at the heads of a model: what each learned, and how it spreads its weights.

Letters: B batch, H heads, Q queries, K keys, S source length, T target length.

Results are `site -> one list a layer -> one number a head`. What cannot be measured is absent,
never zero: a layer without the statistic is an empty list, a site without it is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from headwise.data.batching import Batch
    from headwise.model.transformer import Transformer

HeadTable = dict[str, list[list[float]]]


def alphas(model: Transformer) -> HeadTable:
    """α of every head that has one (Correia et al. 2019, section 3)."""
    table: HeadTable = {}
    for site, _, attention in model.attentions():
        alpha_H = attention.stats().get("alpha")
        values: list[float] = [] if alpha_H is None else alpha_H.tolist()
        table.setdefault(site, []).append(values)
    return _without_empty_sites(table)


def head_statistics(
    model: Transformer, batches: Iterable[Batch], device: torch.device
) -> dict[str, HeadTable]:
    """Density and entropy of every head, averaged over the queries of all batches.

    Density is the share of the keys a query may see that get a weight above exactly 0
    (Correia et al. 2019, section 5). A query of the decoder's self-attention may see the
    positions up to its own; the other sites see the whole source. Entropy is
    -sum(w log w) of a query's weights, in nats. Padding takes part neither as a query nor as a
    key. Layers that form no weights, or whose weights are negative or not finite, are absent.

    Args:
        model: left as it was found, training flags included.
        batches: sources with their references, which the decoder reads.
        device: where `model` is.

    Returns:
        {"density": site -> layers -> heads, "entropy": the same}.
    """
    sums: dict[tuple[str, int], _LayerSums] = {}
    with _evaluating(model), torch.no_grad():
        for batch in batches:
            batch = batch.to(device)
            output = model(
                batch.source_BS, batch.source_lengths_B, batch.target_in_BT, need_weights=True
            )
            for site, layers in (output.weights or {}).items():
                queries_BQ, keys_BQK = _real_positions(batch, site)
                for layer, weights_BHQK in enumerate(layers, start=1):
                    layer_sums = sums.setdefault((site, layer), _LayerSums())
                    layer_sums.add(weights_BHQK, queries_BQ, keys_BQK)
    statistics: dict[str, HeadTable] = {"density": {}, "entropy": {}}
    for (site, _), layer_sums in sums.items():
        density, entropy = layer_sums.means()
        statistics["density"].setdefault(site, []).append(density)
        statistics["entropy"].setdefault(site, []).append(entropy)
    return {name: _without_empty_sites(table) for name, table in statistics.items()}


class _LayerSums:
    """Running sums over queries of one layer of one site, in float64."""

    def __init__(self) -> None:
        self.n_queries = 0
        self.density_H: Tensor | None = None
        self.entropy_H: Tensor | None = None
        self.is_measurable = True

    def add(self, weights_BHQK: Tensor | None, queries_BQ: Tensor, keys_BQK: Tensor) -> None:
        """Take in the weights of a batch; both masks are True at what is real."""
        if weights_BHQK is None or not self.is_measurable:
            self.is_measurable = False
            return
        is_real_BHQK = keys_BQK[:, None] & queries_BQ[:, None, :, None]
        real_BHQK = weights_BHQK.double().masked_fill(~is_real_BHQK, 0.0)
        if not bool((torch.isfinite(real_BHQK) & (real_BHQK >= 0)).all()):
            self.is_measurable = False
            return
        n_used_BHQ = (real_BHQK > 0).sum(-1)
        n_seen_BQ = keys_BQK.sum(-1).clamp(min=1)
        density_H = (n_used_BHQ.double() / n_seen_BQ[:, None]).sum((0, 2))
        entropy_H = torch.special.entr(real_BHQK).sum((0, 2, 3))
        self.n_queries += int(queries_BQ.sum())
        self.density_H = density_H if self.density_H is None else self.density_H + density_H
        self.entropy_H = entropy_H if self.entropy_H is None else self.entropy_H + entropy_H

    def means(self) -> tuple[list[float], list[float]]:
        """Density and entropy a head; empty where they could not be measured."""
        if not self.is_measurable or self.density_H is None or self.entropy_H is None:
            return [], []
        if self.n_queries == 0:
            return [], []
        density_H, entropy_H = self.density_H / self.n_queries, self.entropy_H / self.n_queries
        return density_H.tolist(), entropy_H.tolist()


def _real_positions(batch: Batch, site: str) -> tuple[Tensor, Tensor]:
    """Queries (B, Q) that are no padding, and keys (B, Q, K) that each of them may see."""
    source_BS = _is_real(batch.source_lengths_B, batch.source_BS.shape[1])
    target_BT = _is_real(batch.target_lengths_B, batch.target_in_BT.shape[1])
    queries_BQ = source_BS if site == "encoder_self" else target_BT
    if site == "decoder_self":
        positions = torch.arange(target_BT.shape[1], device=target_BT.device)
        keys_BQK = target_BT[:, None, :] & (positions <= positions[:, None])
    else:
        keys_BQK = source_BS[:, None, :].expand(-1, queries_BQ.shape[1], -1)
    return queries_BQ, keys_BQK


def _is_real(lengths_B: Tensor, n_positions: int) -> Tensor:
    positions = torch.arange(n_positions, device=lengths_B.device)
    return positions < lengths_B[:, None]


def _without_empty_sites(table: HeadTable) -> HeadTable:
    return {site: layers for site, layers in table.items() if any(layers)}


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each module in the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode

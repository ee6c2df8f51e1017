"""Classifiers: an encoder, whose states are pooled to one vector per row.

Axes: B batch, N positions, M CLS tokens, D width, C classes, R rows to score.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headwise.attention.place import Site
from headwise.config.schema import ModelConfig
from headwise.errors import refuse, require
from headwise.losses.loss import Loss, LossSum
from headwise.model.family import Output
from headwise.model.parts import DEFAULT, Parts
from headwise.model.single import OneStack
from headwise.model.stack import MakeAttention
from headwise.ops.dropout.operator import Dropout

POOLS = ("concat", "mean", "first")


def pool_of(config: ModelConfig) -> str:
    """Return how the states are pooled: `model.pool`, or its default for this model."""
    pool = config.pool or ("concat" if config.cls_tokens else "mean")
    if pool not in POOLS:
        raise refuse("model.pool", pool, POOLS)
    allowed = "at least 1 with model.pool=concat, which joins the CLS tokens"
    fits = pool != "concat" or config.cls_tokens > 0
    require(fits, "model.cls_tokens", allowed, config.cls_tokens)
    return pool


class Classes(Output):
    """Logits of classes, with a bias.

    Args:
        width: of pooled states.
        n_classes: C.
        weights: (C,), factors of the loss of each class; None: 1.
    """

    weights: Tensor | None

    def __init__(self, width: int, n_classes: int, weights: Sequence[float] | None = None) -> None:
        super().__init__(width, n_classes, bias=True)
        factors = None if weights is None else torch.tensor(weights, dtype=torch.float32)
        self.register_buffer("weights", factors, persistent=False)

    def loss(self, states_RD: Tensor, targets_R: Tensor, loss: Loss) -> LossSum:
        loss_R, measure_R = loss.rows(self(states_RD), targets_R)
        if self.weights is not None:
            loss_R = loss_R * self.weights[targets_R]
        return LossSum(loss_R.sum(), measure_R.detach().sum())

    def rows(self, states_RD: Tensor, targets_R: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """See `Output.rows`; without the weights of classes."""
        return loss.rows(self(states_RD), targets_R)


class Classifier(OneStack):
    """Maps ids to logits of classes, one per row.

    Without CLS tokens, `pool=mean` is the mean of the states of all positions, and `first` is the
    first one; with CLS tokens, `mean` and `first` are theirs, and `concat` joins them.

    Args:
        config: sizes and kinds.
        table: embeds ids.
        n_classes: C.
        site: of the self-attention, which is not causal.
        make_attention: place -> attention module.
        seed: of the initial weights.
        parts: of the stack.
        class_weights: see `Classes`.
    """

    new_weights = ("output.",)

    def __init__(
        self,
        config: ModelConfig,
        table: nn.Module,
        n_classes: int,
        site: Site,
        make_attention: MakeAttention,
        seed: int,
        parts: Parts = DEFAULT,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        pool = pool_of(config)
        width = config.d_model * (config.cls_tokens if pool == "concat" else 1)
        output = Classes(width, n_classes, class_weights)
        super().__init__(config, table, output, site, make_attention, seed, parts)
        self.pool, self.dropout = pool, Dropout(config.dropout)
        self.lr_factors: dict[nn.Parameter, float] = {}  # for `build_optimizer`

    def states(self, ids_BN: Tensor, lengths_B: Tensor) -> Tensor:
        """Return pooled states (B, 1, M·D) or (B, 1, D)."""
        states_BPD, n_cls = self.all_states(ids_BN, lengths_B), self.embedding.n_prefix
        pooled: Tensor = self.dropout(self.pooled(states_BPD, lengths_B, n_cls))
        return pooled[:, None]

    def pooled(self, states_BPD: Tensor, lengths_B: Tensor, n_cls: int) -> Tensor:
        """Return pooled states (B, M·D) or (B, D) of the CLS tokens and all positions."""
        if self.pool == "first":
            return states_BPD[:, 0]
        if self.pool == "concat":
            return states_BPD[:, :n_cls].flatten(1)
        if n_cls:
            return states_BPD[:, :n_cls].mean(1)
        is_real_BN = torch.arange(states_BPD.shape[1], device=lengths_B.device) < lengths_B[:, None]
        sums_BD = (states_BPD * is_real_BN[..., None].to(states_BPD.dtype)).sum(1)
        return sums_BD / lengths_B[:, None].to(states_BPD.dtype)

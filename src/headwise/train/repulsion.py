"""Forces between heads: a transform of the gradients before the optimizer's step."""

from __future__ import annotations

from headwise.model.transformer import Transformer


class Repulsion:
    """Changes the gradients of the heads' projections (An et al. 2020)."""

    def __call__(self, model: Transformer, update: int, seed: int) -> None:
        """Overwrite gradients in place.

        Called once an update, after the gradients of all batches and ranks were summed and
        before they are clipped, on every rank alike: what is random depends on (seed, update).
        """
        raise NotImplementedError


class NoRepulsion(Repulsion):
    """Gradients as they are."""

    def __call__(self, model: Transformer, update: int, seed: int) -> None:
        """Nothing."""

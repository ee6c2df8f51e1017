"""Initial weights.

The generator is set anew before the common weights are drawn, so that two variants with the same
seed start from the same projections, whatever each drew for parameters of its own.
"""

from __future__ import annotations

import torch
from torch import nn


def initialise(model: nn.Module, seed: int) -> None:
    """Glorot-uniform linear maps, zero biases, embeddings N(0, 1/D); others as they were made."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            deviation = module.embedding_dim**-0.5
            nn.init.normal_(module.weight, std=deviation, generator=generator)

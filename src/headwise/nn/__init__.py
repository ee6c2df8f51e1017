"""Modules and functions for models of your own, beside those of `torch.nn`."""

from __future__ import annotations

from headwise.nn import functional
from headwise.nn.alpha import HeadAlpha
from headwise.nn.multihead import MultiheadAttention

__all__ = ["HeadAlpha", "MultiheadAttention", "functional"]

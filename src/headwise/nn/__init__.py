"""Modules and functions for models of your own, beside those of `torch.nn`."""

from __future__ import annotations

from headwise.nn import functional
from headwise.nn.alpha import HeadAlpha

__all__ = ["HeadAlpha", "functional"]

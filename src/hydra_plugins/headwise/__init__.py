"""Hydra plugins of headwise: launchers."""

from __future__ import annotations

"""Logging of a run: files in its folder (the record), and trackers that mirror them."""

from __future__ import annotations

from headwise.track.base import NullTracker, Tracker
from headwise.track.jsonl import JsonlWriter, read_jsonl
from headwise.track.wandb_tracker import check_tracker, make_tracker

__all__ = [
    "JsonlWriter",
    "NullTracker",
    "Tracker",
    "check_tracker",
    "make_tracker",
    "read_jsonl",
]

"""`python scripts/prune.py …`; see the README."""

from __future__ import annotations

from headwise.cli import prune

if __name__ == "__main__":
    prune()

"""`python scripts/analyze.py …`; see the README."""

from __future__ import annotations

from headwise.cli import analyze

if __name__ == "__main__":
    analyze()

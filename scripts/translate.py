"""`python scripts/translate.py …`; see the README."""

from __future__ import annotations

from headwise.cli import translate

if __name__ == "__main__":
    translate()

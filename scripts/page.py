"""`python scripts/page.py …`; see the README."""

from __future__ import annotations

from headwise.cli import main

if __name__ == "__main__":
    main("page")

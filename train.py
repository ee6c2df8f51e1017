"""`python train.py attention=alpha_entmax data=multi30k …`; see the README."""

from __future__ import annotations

from headwise.cli import main

if __name__ == "__main__":
    main("train")

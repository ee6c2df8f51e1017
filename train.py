"""`python train.py attention=alpha_entmax data=multi30k …`; see the README."""

from __future__ import annotations

from headwise.cli import train

if __name__ == "__main__":
    train()

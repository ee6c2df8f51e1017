"""Encoding processes and `prepare` start at once: what they import loads no torch."""

from __future__ import annotations

import subprocess
import sys


def test_text_is_encoded_without_torch() -> None:
    modules = ("builtin", "corpus", "corpora.archive", "corpora.hub", "encoded", "encoding")
    modules = (*("data." + name for name in modules), "commands.prepare")
    program = "".join(f"import headwise.{name}\n" for name in modules)
    program += "import sys; print(sorted({'torch', 'hydra', 'wandb'} & sys.modules.keys()))"
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "[]"

"""Output that is compared whole with a file, such as those of `tests/golden/`.

After a change of the output that is meant, write the files again, and read what has changed:

    WRITE_TABLES=1 .venv/bin/python -m pytest -n 0 FILE
"""

import difflib
import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def assert_golden(file, text):
    """Compare a text with a file, whose path is below `tests/golden/` unless it is absolute."""
    path = GOLDEN / file
    if os.environ.get("WRITE_TABLES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    before = path.read_text(encoding="utf-8")
    lines = (before.splitlines(keepends=True), text.splitlines(keepends=True))
    changes = [*difflib.unified_diff(*lines, "before", "now", n=0)]
    assert not changes, f"{path.name}:\n" + "".join(changes)

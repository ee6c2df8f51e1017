"""Write the page of heads that `live-page.md` shows, from the record beside this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from headwise.page.document import page_text


def on_files(files: Files, *, config: Any) -> Files:
    """Add `live/heads.html` to the files of the site."""
    record = json.loads(Path(__file__).with_name("heads.json").read_text(encoding="utf-8"))
    files.append(File.generated(config, "live/heads.html", content=page_text(record)))
    return files

"""The text of a page: one html file that holds all it needs, and asks for nothing.

Everything that comes from a run (names, sentences, settings) is data of the page, a block of JSON;
its own script puts it in as text, never as markup. The parts lie in `assets/` as they are: a frame,
a style sheet and scripts without a build step.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from headwise.config.schema import SITE_NAMES
from headwise.tasks.reading import Items

SCRIPTS = ("state", "weights", "heads", "attention", "texts", "findings", "page")


def page_text(
    contents: Sequence[Mapping[str, Any]],
    pictures: Sequence[tuple[str, bytes]],
    items: Items,
) -> str:
    """The whole page.

    Args:
        contents: of one run, or of two to be shown side by side: what `page.run.run_content`
            gives, and under `readings` what `page.readings.reading_contents` does.
        pictures: title and svg of each.
        items: that the contents are of.
    """
    labels = _labels(contents)
    data = {
        "runs": [{**run, "label": label} for run, label in zip(contents, labels, strict=True)],
        "items": asdict(items),
        "sites": SITE_NAMES,
    }
    return filled(
        _asset("page.html"),
        {
            "title": html.escape(" and ".join(content["name"] for content in contents)),
            "style": _asset("page.css"),
            "pictures": "\n".join(_picture(title, svg) for title, svg in pictures),
            "data": as_script_data(data),
            "script": "\n".join(_asset(f"{name}.js") for name in SCRIPTS),
        },
    )


def _picture(title: str, svg: bytes) -> str:
    """An image element that holds its picture; what is in it cannot load anything."""
    source = base64.b64encode(svg).decode("ascii")
    return f'<img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{source}">'


def as_script_data(data: Any) -> str:
    """JSON that can stand in a script element, whatever its texts hold.

    Raises:
        ValueError: a number is not finite.
    """
    # "<" begins all that could end the element or begin a comment in it
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def filled(frame: str, parts: Mapping[str, str]) -> str:
    """The frame with `{{name}}` replaced; what is put in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], frame)


def _asset(name: str) -> str:
    return (resources.files("headwise.page") / "assets" / name).read_text(encoding="utf-8")


def _labels(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each run is called beside the other: its attention, where that tells them apart."""
    for key in ("attention", "name"):
        labels = [str(content[key]) for content in contents]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{label} ({number})" for number, label in enumerate(labels, start=1)]

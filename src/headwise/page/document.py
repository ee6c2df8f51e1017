"""The text of a page: one self-contained HTML file that loads nothing else.

Everything that comes from a run (names, sentences, settings) is in a block of JSON; the script
inserts it as text, never as markup. The template, style sheet and scripts are in `assets/`, without
a build step.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import resources
from typing import Any

from headwise.config.schema import SITE_NAMES
from headwise.tasks.inspection import Items

SCRIPTS = ("state", "weights", "heads", "view", "attention", "texts", "findings", "page")


def page_record(
    contents: Sequence[Mapping[str, Any]],
    pictures: Sequence[tuple[str, bytes]],
    items: Items,
) -> dict[str, Any]:
    """Return all that a page shows, as values of JSON.

    Args:
        contents: of one run, or of two to compare: the result of `page.run.run_content`, with that
            of `page.readings.reading_contents` under `readings`.
        pictures: title and svg of each.
        items: the texts of the readings.
    """
    labels = _labels(contents)
    return {
        "title": " and ".join(content["name"] for content in contents),
        "pictures": [(title, svg.decode("utf-8")) for title, svg in pictures],
        "data": {
            "runs": [{**run, "label": label} for run, label in zip(contents, labels, strict=True)],
            "items": {
                **asdict(replace(items, chosen=[])),
                "chosen": [{"number": item.number, "texts": item.texts} for item in items.chosen],
            },
            "sites": SITE_NAMES,
        },
    }


def page_text(record: Mapping[str, Any]) -> str:
    """Return the HTML of a page from the result of `page_record`."""
    return fill_template(
        _asset("page.html"),
        {
            "title": html.escape(record["title"]),
            "style": _asset("page.css"),
            "pictures": "\n".join(_picture(title, svg) for title, svg in record["pictures"]),
            "data": script_json(record["data"]),
            "script": "\n".join(_asset(f"{name}.js") for name in SCRIPTS),
        },
    )


def _picture(title: str, svg: str) -> str:
    """Return an image element with the embedded svg, which cannot load other files."""
    source = base64.b64encode(svg.encode("utf-8")).decode("ascii")
    return f'<img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{source}">'


def script_json(data: Any) -> str:
    """Return JSON that is safe in a script element.

    Raises:
        ValueError: a number is not finite.
    """
    # only "<" can end the element or start a comment in it
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def fill_template(template: str, parts: Mapping[str, str]) -> str:
    """Replace every `{{name}}` of the template once, without recursion."""
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], template)


def _asset(name: str) -> str:
    return (resources.files("headwise.page") / "assets" / name).read_text(encoding="utf-8")


def _labels(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return unique labels of the runs: attention or name, else numbered names."""
    for key in ("attention", "name"):
        labels = [str(content[key]) for content in contents]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{label} ({number})" for number, label in enumerate(labels, start=1)]

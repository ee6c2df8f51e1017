"""HTML of a page: texts of a run are escaped, no external addresses, labels."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headwise.analysis.kinds import KINDS
from headwise.analysis.roles import OFFSET_NAMES
from headwise.page import document
from headwise.page.document import fill_template, page_record, page_text, script_json
from headwise.tasks.reading import Item, Items

NASTY = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "{{script}} {{data}} \\1 \\g<0>",
    "\"quotes\" 'and' & ampersands",
    "\u2028 line separator, \u202e right to left \u0000",
    "شكرا 🙂",
]


def content(texts):
    """Content of a run with one head and a reading for each text."""
    return {
        "name": "run",
        "attention": "alpha_entmax",
        "corpus": "corpus, de → en",
        "languages": ["de", "en"],
        **{name: [] for name in ("facts", "scores", "findings", "others")},
        "heads": [{"site": "cross", "layer": 1, "head": 1, "alpha": 1.234}],
        "readings": [{"texts": {"translation": text}, "axes": texts} for text in texts],
    }


def items(*texts):
    chosen = [Item(n, {"source": text}) for n, text in enumerate(texts, start=1)]
    return Items("test", "sentences", chosen, len(chosen))


class Outline(HTMLParser):
    """Elements of a page, and the text of its scripts and title."""

    def __init__(self):
        super().__init__()
        self.tags = []
        self.text = {}
        self._within = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._within = dict(attrs).get("id") or tag

    def handle_data(self, data):
        self.text[self._within] = self.text.get(self._within, "") + data


@pytest.fixture(scope="module")
def nasty():
    """A run with markup in every text, and its parsed page."""
    run = content(NASTY)
    run.update(
        name=NASTY[0],
        findings=[{"finding": text, "outcome": text, "reason": text} for text in NASTY],
    )
    outline = Outline()
    record = page_record([run], [(text, b"<svg/>") for text in NASTY], items(*NASTY))
    outline.feed(page_text(json.loads(script_json(record))))  # also a saved one
    return run, outline


def test_text_of_a_run_is_data_and_not_markup(nasty):
    run, outline = nasty
    data = json.loads(outline.text["data"])
    assert [item["texts"] for item in data["items"]["chosen"]] == [{"source": t} for t in NASTY]
    assert data["items"]["n_all"] == len(NASTY)
    assert data["runs"][0]["readings"] == run["readings"]
    assert data["runs"][0]["findings"] == run["findings"]
    assert outline.text["title"].strip() == NASTY[0]
    assert [tag for tag, _ in outline.tags].count("script") == 2  # data and the script of the page
    pictures = [attributes for tag, attributes in outline.tags if tag == "img"]
    assert [picture["alt"] for picture in pictures] == NASTY
    assert {picture["src"] for picture in pictures} == {"data:image/svg+xml;base64,PHN2Zy8+"}


def test_page_has_no_external_addresses(nasty):
    _, outline = nasty
    addresses = {
        value
        for _, attributes in outline.tags
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action")
    }
    external = {address for address in addresses if not str(address).startswith("data:")}
    assert external == {"#attention"}
    policy = next(a["content"] for t, a in outline.tags if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert not re.search(r"https?:", policy)
    # styles and scripts request nothing
    assets = [text for name, text in outline.text.items() if name in ("style", "script")]
    assert assets
    assert not any(re.search(r"https?:|url\(|@import|fetch\(|XMLHttp", text) for text in assets)


def test_nan_is_rejected():
    with pytest.raises(ValueError, match="Out of range"):
        script_json({"loss": float("nan")})


def test_inserted_text_is_not_substituted_again():
    assert fill_template("{{a}} {{b}}", {"a": "{{b}}", "b": r"\1"}) == r"{{b}} \1"


def test_runs_of_one_attention_are_labelled_by_folder():
    runs = [content(["text"]) for _ in range(2)]
    runs[1]["name"] = "other"
    outline = Outline()
    outline.feed(page_text(page_record(runs, [], items("text"))))
    assert [run["label"] for run in json.loads(outline.text["data"])["runs"]] == ["run", "other"]


def test_page_has_a_label_for_every_role():
    script = (Path(document.__file__).parent / "assets" / "heads.js").read_text(encoding="utf-8")
    (table,) = re.findall(r"const ROLES = \{\n(.*?)\n\};", script, re.DOTALL)
    roles = re.findall(r"^  (\w+):", table, re.MULTILINE)
    expected = {*OFFSET_NAMES.values(), "merging", "interrogation", "rare", *KINDS}
    assert expected == set(roles)

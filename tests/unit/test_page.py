"""Pages of runs: texts are escaped, no external addresses, chosen sentences and their weights.

The data of a page are in `integration/test_cli_heads.py`.
"""

import base64
import json
import re
import shutil
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.analysis.kinds import KINDS
from headwise.analysis.roles import OFFSET_NAMES
from headwise.config.schema import TokenizerConfig
from headwise.data.tokenizer import TokenizerPair
from headwise.data.tokenizer_training import train_tokenizer
from headwise.errors import DataError
from headwise.page import document
from headwise.page.document import fill_template, page_record, page_text, script_json
from headwise.page.run import packed, rounded, weight_contents
from headwise.runs.folder import RunFolder
from headwise.tasks.inspection import Items
from headwise.tasks.inspection import items as items_to_show
from headwise.tasks.shown import Item, Picture
from headwise.tasks.translation.run import TranslationRun
from headwise.tasks.translation.task import Translation
from weights_by_hand import observation

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
    chosen = [Item(n, text, {"source": text}) for n, text in enumerate(texts, start=1)]
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


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([{}, {"attention": "softmax"}], ["alpha_entmax", "softmax"]),
        ([{}, {"name": "other"}], ["run", "other"]),
        ([{}, {}], ["run (1)", "run (2)"]),
    ],
)
def test_runs_have_different_labels(runs, labels):
    contents = [{**content(["text"]), **run} for run in runs]
    record = page_record(contents, [], items("text"))
    assert [run["label"] for run in record["data"]["runs"]] == labels


def test_page_has_a_label_for_every_role():
    script = (Path(document.__file__).parent / "assets" / "heads.js").read_text(encoding="utf-8")
    (table,) = re.findall(r"const ROLES = \{\n(.*?)\n\};", script, re.DOTALL)
    roles = re.findall(r"^  (\w+):", table, re.MULTILINE)
    expected = {*OFFSET_NAMES.values(), "merging", "interrogation", "rare", *KINDS}
    assert expected == set(roles)


# -- sentences ------------------------------------------------------------------------------------


def run(folder, n_lines, others=None):
    """A run whose folder holds a test set only; line 3 is empty."""
    others = {3: "", **(others or {})}
    (folder / "hypotheses").mkdir()
    for side in ("src", "ref"):
        lines = "".join(f"{others.get(line, f'{side} {line}')}\n" for line in range(1, n_lines + 1))
        (folder / "hypotheses" / f"news.{side}.txt").write_text(lines, encoding="utf-8")
    data = SimpleNamespace(test=["news"], valid="valid", dir=None, source="de")
    tokenizer = train_tokenizer(iter(["ab"] * 9), TokenizerConfig(kind="byte"))
    TokenizerPair(tokenizer, tokenizer, joint=True).save(folder)
    config = SimpleNamespace(data=data, paths=SimpleNamespace(cache="cache"))
    task, none = Translation(config), None
    return TranslationRun(RunFolder(folder), task, none, {}, folder, torch.device("cpu"))


def lines_of(items):
    return [(item.number, item.input, item.texts.get("reference")) for item in items.chosen]


@pytest.mark.parametrize(
    ("n_lines", "n_sentences", "expected"), [(11, 3, [1, 5, 8]), (4, 20, [1, 2, 4])]
)
def test_lines_of_the_test_set_are_evenly_spaced_and_not_empty(
    tmp_path, n_lines, n_sentences, expected
):
    items = items_to_show(run(tmp_path, n_lines), n_sentences)
    assert items.origin == "news"
    assert lines_of(items) == [(line, f"src {line}", f"ref {line}") for line in expected]


def test_test_set_is_detected_if_not_configured(tmp_path):
    """`data=files`: every test* of the folder; without any, the validation set."""
    trained = run(tmp_path, 4)
    trained.config.data.test = []
    texts = list((tmp_path / "hypotheses").iterdir())
    for path in texts:
        shutil.copy(path, path.with_name(path.name.replace("news", "valid")))
    assert items_to_show(trained, 2).origin == "news"
    for path in texts:
        path.unlink()
    assert items_to_show(trained, 2).origin == "valid"


def test_up_to_a_quarter_of_the_lines_are_questions(tmp_path):
    questions = dict.fromkeys((12, 19, 26, 33, 40), "Wo ist „der Hund“?")
    # an interrogative word and no question, and a question without such a word
    others = {11: "Der Ort, wo er ist.", 18: "Ist er da?"}
    items = items_to_show(run(tmp_path, 41, others={**questions, **others}), 8)
    lines = [item.number for item in items.chosen]
    assert lines == sorted(lines)
    assert len(lines) == 8
    assert [line for line in lines if line in questions] == [12, 26]  # of five, evenly spaced
    assert (items.n_all, items.note) == (40, "some of them questions")
    # the others are spaced over the whole set
    assert lines[0] == 1
    assert max(lines) > 33


def test_user_sentences_keep_their_order_and_may_have_references(tmp_path):
    path = tmp_path / "mine.de"
    path.write_text("Ein Hund.\n\n  Zwei. \tTwo.\nDrei.\n", encoding="utf-8")
    trained = run(tmp_path, 4)
    items = items_to_show(trained, 2, path)
    assert items.origin == "mine.de"
    assert lines_of(items) == [(1, "Ein Hund.", None), (3, "Zwei.", "Two.")]
    path.write_text("\n \n", encoding="utf-8")
    with pytest.raises(DataError, match=r"mine\.de has no text to show"):
        items_to_show(trained, 2, path)


@pytest.mark.parametrize(
    ("shape", "grid", "number", "value", "name"),
    [
        ((9,), (9,), 8, 8, "sample 9"),
        ((4, 6, 3), (4, 6, 3), 7, 7, "row 1, column 3, green"),
        ((4, 6, 1), (4, 6, 1), 7, 7, "row 2, column 2"),
        ((4, 6, 3), (2, 3, 1), 4, 63, "row 3, column 3"),  # its patch has the middle (4, 4)
        ((4, 6, 3), (4, 6, 1), 7, 21, "row 2, column 2"),  # a patch of one pixel
    ],
)
def test_keys_of_a_picture_have_places_and_names(shape, grid, number, value, name):
    picture = Picture(shape, bytes(np.prod(shape)), grid, 1)
    assert (picture.value(number), picture.name(number)) == (value, name)


# -- weights --------------------------------------------------------------------------------------


def unpacked(text):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<f4")


@given(st.lists(st.floats(-8, 8, width=32, allow_subnormal=True), min_size=1, max_size=20))
def test_rounding_keeps_the_sign_and_nearly_the_value(values):
    weights_HQK = torch.tensor(values).view(1, 1, -1)
    result = rounded(weights_HQK, torch.ones_like(weights_HQK, dtype=torch.bool)).ravel()
    # the smallest float32 numbers have few digits themselves
    np.testing.assert_allclose(result, values, rtol=0.004, atol=2e-45)
    assert (np.sign(result) == np.sign(values)).all()


def test_masked_weights_are_nan_and_heads_are_packed_in_order():
    weights_HQK = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.25, 0.75], [0.5, -4.0]]])
    allowed_HQK = torch.tensor([[[True, False], [True, True]], [[True, True], [True, True]]])
    result = rounded(weights_HQK, allowed_HQK)
    expected = [1, np.nan, 0, 1, 0.25, 0.75, 0.5, -4, 0.25, 0.75]
    np.testing.assert_array_equal(unpacked(packed([result, result[1:, :1]])), expected)


def test_heads_with_nan_are_omitted():
    weights = torch.full((3, 1, 2), 0.5)
    weights[1, 0, 0] = torch.nan
    of_one = observation("cross", [[[0.5, 0.5]]], [2])
    obs = replace(
        of_one, head_numbers=(1, 4, 5), weights_BHQK=weights[None],
        allowed_BHQK=torch.ones(1, 3, 1, 2, dtype=torch.bool), distribution_heads=(True,) * 3,
    )  # fmt: skip
    content = weight_contents([obs])
    assert [(b["heads"], b["shape"]) for b in content["blocks"]] == [([1, 5], [1, 2])]
    assert unpacked(content["weights"]).tolist() == [0.5] * 4

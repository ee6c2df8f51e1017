"""Sentences chosen for a page of translation, and the weights that the page holds."""

import shutil
from types import SimpleNamespace

import pytest
import torch

from headwise.analysis.observe import Observation
from headwise.config.schema import TokenizerConfig
from headwise.data.tokenizer import TokenizerPair
from headwise.data.tokenizer_training import train_tokenizer
from headwise.errors import DataError
from headwise.page.readings import weight_contents
from headwise.runs.folder import RunFolder
from headwise.tasks.inspection import items as items_to_show
from headwise.tasks.translation.run import TranslationRun
from headwise.tasks.translation.task import Translation


def run(folder, n_lines, source="de", others=None):
    """A run whose folder holds a test set only; line 3 is empty."""
    others = {3: "", **(others or {})}
    (folder / "hypotheses").mkdir()
    for side in ("src", "ref"):
        lines = "".join(f"{others.get(line, f'{side} {line}')}\n" for line in range(1, n_lines + 1))
        (folder / "hypotheses" / f"news.{side}.txt").write_text(lines, encoding="utf-8")
    data = SimpleNamespace(test=["news"], valid="valid", dir=None, source=source)
    tokenizer = train_tokenizer(iter(["ab"] * 9), TokenizerConfig(kind="byte"))
    TokenizerPair(tokenizer, tokenizer, joint=True).save(folder)
    config = SimpleNamespace(data=data, paths=SimpleNamespace(cache="cache"))
    none = None
    task = Translation(config)
    return TranslationRun(RunFolder(folder), task, none, {}, folder, torch.device("cpu"))


def lines_of(items):
    return [(item.number, item.text, item.texts.get("reference")) for item in items.chosen]


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


def test_heads_with_nan_are_omitted():
    weights_BHQK = torch.full((1, 3, 1, 2), 0.5)
    weights_BHQK[0, 1, 0, 0] = torch.nan
    observation = Observation(
        "cross", "target", "source", 2, torch.ones(1, 1, dtype=torch.bool),
        head_numbers=(1, 4, 5), weights_BHQK=weights_BHQK,
        allowed_BHQK=torch.ones_like(weights_BHQK, dtype=torch.bool),
        distribution_heads=(True, True, True),
    )  # fmt: skip
    (block,) = weight_contents([observation])["blocks"]
    assert block["heads"] == [1, 5]
    assert block["shape"] == [1, 2]

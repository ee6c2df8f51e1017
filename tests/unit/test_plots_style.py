"""Style of all figures: readable without colours, sized for print, reproducible bytes."""

import itertools
import logging
import textwrap

import numpy as np
import pandas as pd
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

from figures_drawn import FIGURES, attention, score_rows, table
from headwise.plots import runs as plots
from headwise.plots.style import (
    RULES,
    TWO_COLUMNS,
    display_name,
    drawable,
    figure_bytes,
    save,
    series_style,
)
from headwise.tasks.classification.confusion import confusion_matrix


def test_styles_are_the_same_in_every_figure_and_distinct():
    names = ["softmax", *(f"row {number}" for number in range(20))]
    style = series_style(names)
    parts = [style[part] for part in ("palette", "markers", "dashes")]
    assert len({tuple(part[name] for part in parts) for name in names}) == 21
    other = series_style(["x", "softmax", "alpha_entmax"])
    assert all(other[part]["softmax"] == style[part]["softmax"] for part in ("palette", "markers"))
    for one, two in itertools.combinations([*RULES, "x"], 2):  # also without any colour
        few = series_style([*RULES, "x"])
        assert few["markers"][one] != few["markers"][two]
        assert few["dashes"][one] != few["dashes"][two]


def test_names_are_those_of_the_papers():
    assert display_name("alpha_entmax") == "α-entmax"
    assert display_name("entmax15, pattern fixed") == "1.5-entmax, pattern fixed"
    assert display_name("softmax (cross entmax15)") == "softmax (cross 1.5-entmax)"
    assert display_name("loss_entmax15 entmax15b") == "loss_entmax15 entmax15b"


@pytest.mark.slow
def test_figures_are_reproducible(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    first = save(FIGURES["attention_small"](), tmp_path / "a" / "maps.png")
    assert [path.name for path in first] == ["maps.png", "maps.svg", "maps.pdf"]
    second = save(FIGURES["attention_small"](), tmp_path / "b" / "maps")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert one.stat().st_size > 2000
    assert b"CreationDate" not in first[2].read_bytes()
    assert len(list((tmp_path / "a").iterdir())) == 3, "temporary files remain"
    assert not caplog.records, "only commands log this"


def test_figures_named_by_numbers_do_not_replace_each_other(tmp_path):
    names = [
        save(FIGURES["attention_small"](), tmp_path / name, ["svg"])[0].name
        for name in ("alpha_init_1.05", "alpha_init_1.5", "maps.png")
    ]
    assert names == ["alpha_init_1.05.svg", "alpha_init_1.5.svg", "maps.svg"]


def test_failed_figure_is_a_warning_and_keeps_the_old_file(tmp_path, caplog):
    (tmp_path / "f.png").write_text("before")
    figure = Figure(figsize=(1, 1))
    figure.text(0, 0, "$\\nonsense$", parse_math=True)
    assert save(figure, tmp_path / "f.png", ["png"]) == []
    assert [path.name for path in tmp_path.iterdir()] == ["f.png"]
    assert (tmp_path / "f.png").read_text() == "before"
    (record,) = caplog.records
    assert record.getMessage().startswith("the figure f.png is left out (ValueError: ")


def drawn_texts(figure):
    figure_bytes(figure, "svg")
    return {text.get_text() for text in figure.findobj(Text)}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        *((name, name) for name in ("a $\\frac$ b $5 and $6", "a_b^c \\alpha %שלום 😀", "")),
        ("x" * 400, f"{'x' * 79}…{'x' * 40}"),
    ],
    ids=["mathematics", "right to left", "empty", "long"],
)
def test_names_are_drawn_as_text(name, shown):
    """Whatever they contain; a warning of a layout without space would be an error here."""
    counts = pd.DataFrame([[1, 2], [3, 4]], [name, "b"], [name, "b"])
    assert drawable(name, 24) in drawn_texts(confusion_matrix(counts, name))
    scores = table(score_rows, [f"softmax {name}", "b"], 1).assign(corpus=name)
    legend = drawn_texts(plots.score_curves(scores))
    assert textwrap.fill(display_name(f"softmax {name}"), 40) in legend
    title = " ".join(attention("cross", 1, 2, 3, name).get_suptitle().split())
    assert title.startswith(f"cross-attention: {shown[:20]}".strip(": "))
    assert display_name(name) == shown


def test_figures_do_not_have_the_style_of_the_user():
    with rc_context({"text.usetex": True, "figure.facecolor": "red"}):  # LaTeX may be missing
        figure = attention("cross", 1, 1, 2, "text")
        assert figure_bytes(figure, "png")
    assert figure.get_facecolor() == (1, 1, 1, 1)


def test_characters_without_a_font_are_one_warning(monkeypatch, caplog):
    monkeypatch.setattr("headwise.plots.style.FONTS", ("DejaVu Sans",))
    monkeypatch.setattr("headwise.plots.style._MISSING", set())
    figure = Figure(figsize=(1, 1))
    figure.text(0, 0, "日本語 🤖 x")
    for kind in ("png", "svg"):
        figure_bytes(figure, kind)
    (message,) = caplog.messages
    assert "日本語🤖, which no font has: install Noto Sans CJK JP" in message


@pytest.mark.parametrize("n_classes", [3, 51, 1500])
def test_the_most_confused_classes_are_drawn(n_classes):
    """Above 50, in their order, with their share of all examples of the label."""
    cells = np.eye(n_classes, dtype=int) * 6
    cells[n_classes - 1, 0] = cells[1, n_classes - 1] = 2
    names = [f"class {number}" for number in range(n_classes)]
    figure = confusion_matrix(pd.DataFrame(cells, names, names), "Predictions")
    drawn = figure.axes[0].collections[0].get_array()
    n_drawn = min(n_classes, 50)
    assert drawn.shape == (n_drawn, n_drawn)
    assert drawn[-1, 0] == drawn[1, -1] == pytest.approx(0.25)
    assert drawn[0, 0] == 1
    some = f": the 50 most confused of {n_classes:,} classes" if n_classes > 50 else ""
    assert figure.axes[0].get_title() == f"Predictions{some}"
    assert len(figure_bytes(figure, "svg")) < 3_000_000


@pytest.mark.parametrize(("n_layers", "n_tokens"), [(2, 300), (200, 3), (1, 61)])
def test_maps_of_long_texts_and_deep_models_are_bounded(n_layers, n_tokens, monkeypatch):
    monkeypatch.setattr("headwise.plots.attention_maps.MAX_MAPS", 4)
    figure = attention("encoder_self", n_layers, 2, n_tokens, "text")
    maps = [axes for axes in figure.axes if axes.images]
    assert len(maps) == 2 * min(n_layers, 2)
    assert maps[0].images[1].get_array().shape == (min(n_tokens, 60),) * 2
    assert maps[-1].get_title().startswith(f"layer {n_layers} head 2")
    note = " ".join(figure.get_supxlabel().split())
    assert ("the first 60 are drawn" in note) == (n_tokens > 60)
    assert ("Of 200 layers" in note) == (n_layers == 200)


def test_large_figures_have_fewer_dots():
    data = figure_bytes(Figure(figsize=(4, 625)), "png")
    width, height = (int.from_bytes(data[at : at + 4]) for at in (16, 20))
    assert (width, height) == (400, 62_500)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_fits_the_page(name):
    """At most two columns wide, no text outside of the page, and pyplot is not used."""
    from matplotlib import pyplot
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = FIGURES[name]()
    width, height = figure.get_size_inches()
    assert width <= TWO_COLUMNS
    FigureCanvasAgg(figure).draw()
    box = figure.get_tightbbox()
    assert box.x0 > -0.01
    assert box.y0 > -0.01
    assert box.x1 < width + 0.01
    assert box.y1 < height + 0.01
    assert pyplot.get_fignums() == []

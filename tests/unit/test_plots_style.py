"""Style of all figures: readable without colours, sized for print, reproducible bytes."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from figures_drawn import FIGURES
from headwise.plots.style import RULES, TWO_COLUMNS, display_name, save, series_style


def test_styles_are_the_same_in_every_figure_and_distinct() -> None:
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


def test_names_are_those_of_the_papers() -> None:
    assert display_name("alpha_entmax") == "α-entmax"
    assert display_name("entmax15, pattern fixed") == "1.5-entmax, pattern fixed"
    assert display_name("softmax (cross entmax15)") == "softmax (cross 1.5-entmax)"
    assert display_name("loss_entmax15 entmax15b") == "loss_entmax15 entmax15b"


def test_figures_are_reproducible(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


def test_failed_figure_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "f.png").write_text("before")
    figure = Figure(figsize=(1, 1))
    figure.text(0, 0, "$\\nonsense$")
    with pytest.raises(ValueError, match="nonsense"):
        save(figure, tmp_path / "f.png")
    assert [path.name for path in tmp_path.iterdir()] == ["f.png"]
    assert (tmp_path / "f.png").read_text() == "before"


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_fits_the_page(name: str) -> None:
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

"""What all figures share: told apart without colours, fit to print, the same bytes each time."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from figures_drawn import FIGURES
from headwise.analysis.figure_style import (
    DOUBLE,
    OF_RULES,
    OF_SITES,
    STYLES,
    known_sites,
    layer_colours,
    new_figure,
    save,
    shown,
    styles_of,
    typeset,
)

# Linear RGB as seen without the middle cones (Machado, Oliveira and Fernandes 2009).
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)


def lab(colour: Any, seen_through: Any = None) -> Any:
    """CIE L*a*b* of an sRGB colour, D65."""
    from matplotlib.colors import to_rgb

    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    if seen_through is not None:
        linear = np.clip(seen_through @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ linear / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_series_differ_without_any_colour() -> None:
    for one, other in itertools.combinations(STYLES, 2):
        assert one.dash != other.dash
        assert one.marker != other.marker
        assert one.hatch != other.hatch


def test_colours_differ_for_the_colour_blind_and_the_usual_ones_in_grey() -> None:
    for one, other in itertools.combinations(STYLES, 2):
        seen = [lab(style.colour, DEUTERANOPIA) for style in (one, other)]
        assert np.linalg.norm(seen[0] - seen[1]) > 10, (one, other)
    lightness = sorted(lab(style.colour)[0] for style in OF_RULES.values())
    assert min(np.diff(lightness)) > 10
    assert max(lightness) < 70, "too light to stand on white"


@pytest.mark.parametrize("n_layers", [1, 2, 6, 24])
def test_layers_go_from_dark_to_light(n_layers: int) -> None:
    colours = layer_colours(n_layers)
    lightness = [lab(colours(layer)[:3])[0] for layer in range(n_layers)]
    assert all(np.diff(lightness) > 0)
    assert max(lightness) < 86


def test_a_rule_looks_alike_in_every_figure_and_no_two_rows_alike() -> None:
    assert styles_of(["x", "softmax", "alpha_entmax"])["softmax"] == OF_RULES["softmax"]
    many = styles_of(["softmax", *(f"row {place}" for place in range(20))])
    looks = {(style.colour, style.dash, style.marker) for style in many.values()}
    assert len(looks) == 21
    assert len(set(OF_SITES.values())) == 3


def test_names_are_those_of_the_papers() -> None:
    assert shown("alpha_entmax") == "α-entmax"
    assert shown("entmax15, pattern fixed") == "1.5-entmax, pattern fixed"
    assert shown("softmax (cross entmax15)") == "softmax (cross 1.5-entmax)"
    assert shown("loss_entmax15 entmax15b") == "loss_entmax15 entmax15b"
    assert known_sites(["other", "cross", "encoder_self"]) == ["encoder_self", "cross", "other"]


def test_the_same_figure_gives_the_same_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = save(FIGURES["attention_small"](), tmp_path / "a" / "maps.png")
    assert [path.name for path in first] == ["maps.png", "maps.svg", "maps.pdf"]
    second = save(FIGURES["attention_small"](), tmp_path / "b" / "maps")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert one.stat().st_size > 2000
    assert b"CreationDate" not in first[2].read_bytes()
    assert len(list((tmp_path / "a").iterdir())) == 3, "something temporary was left"
    assert not caplog.records, "a command would tell this"


def test_a_figure_that_cannot_be_drawn_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "f.png").write_text("before")
    figure = new_figure(1, 1)
    figure.text(0, 0, "$\\nonsense$")
    with pytest.raises(ValueError, match="nonsense"):
        save(figure, tmp_path / "f.png")
    assert [path.name for path in tmp_path.iterdir()] == ["f.png"]
    assert (tmp_path / "f.png").read_text() == "before"


def test_names_without_a_font_are_told_by_their_place(caplog: pytest.LogCaptureFixture) -> None:
    families, (latin, unknown) = typeset([["▁Straße", "α"], ["good", "\ue5f1x"]])
    assert families[0] == "DejaVu Sans"
    assert latin == ["▁Straße", "α"]
    assert unknown == ["good", "#2"]
    typeset([["\ue5f1"]])
    (told,) = caplog.messages  # once
    assert "no font here has \ue5f1: " in told


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_fits_a_paper(name: str) -> None:
    """Not wider than two columns, legible without scaling, and no word outside of the page."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    figure = FIGURES[name]()
    assert figure.get_size_inches()[0] <= DOUBLE
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = figure.get_size_inches()
    drawn = figure.get_tightbbox()
    assert drawn.x0 > -0.01
    assert drawn.y0 > -0.01
    assert drawn.x1 < width + 0.01
    assert drawn.y1 < height + 0.01
    texts = [text for text in figure.findobj(Text) if text.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) >= 4.99


def test_drawing_leaves_pyplot_alone(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from figures_drawn import FIGURES\n"
        "from headwise.analysis.figure_style import save\n"
        f"save(FIGURES['attention_small'](), Path({str(tmp_path / 'f')!r}), ('png',))\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"

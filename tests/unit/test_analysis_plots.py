"""Figures show what the records hold: a panel a site, a line a head."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwise.analysis.figure_style import save
from headwise.analysis.plots import (
    alpha_figure,
    alpha_table,
    curves_figure,
    diversity_figure,
)

RECORDS: list[dict[str, Any]] = [
    {
        "update": update,
        "alpha": {
            "cross": [[1.2, 1.3, 1.4], [1.5, 1.6, 1.7 + update / 1000]],
            "encoder_self": [[1.1, 1.9, 1.5], [], [1.0, 2.0, None]],
        },
    }
    for update in (0, 50, 100)
] + [{"update": 100, "density": {"cross": [[0.5]]}}]


def drawn(figure: Any) -> Any:
    assert figure is not None
    return figure


def panels(figure: Any) -> dict[str, Any]:
    return {axes.get_title(): axes for axes in figure.axes if axes.get_title()}


def head_lines(axes: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axes.lines if line.get_label().startswith("layer")}


def test_a_panel_a_site_and_a_line_a_head_coloured_by_layer() -> None:
    by_title = panels(alpha_figure(RECORDS))
    assert list(by_title) == ["encoder self-attention", "cross-attention"]
    encoder = head_lines(by_title["encoder self-attention"])
    cross = head_lines(by_title["cross-attention"])
    assert list(encoder) == [
        *(f"layer 1, head {head}" for head in (1, 2, 3)),
        *(f"layer 3, head {head}" for head in (1, 2)),  # what is absent is not drawn
    ]
    assert len(cross) == 6
    assert list(cross["layer 2, head 3"].get_xdata()) == [0, 50, 100]
    assert list(cross["layer 2, head 3"].get_ydata()) == pytest.approx([1.7, 1.75, 1.8])
    colours = {label: line.get_color() for label, line in (encoder | cross).items()}
    for first, one in colours.items():
        for second, other in colours.items():
            assert (one == other) == (first.split(",")[0] == second.split(",")[0])


def test_the_range_holds_every_alpha_and_the_named_rules() -> None:
    figure = alpha_figure(RECORDS)
    axes = panels(figure)["cross-attention"]
    low, high = axes.get_ylim()
    assert low == pytest.approx(1.0, abs=0.05)
    assert high == pytest.approx(2.0, abs=0.05)
    names = {text.get_text(): text.xy[1] for text in axes.texts}
    assert names == {"softmax": 1.0, "1.5-entmax": 1.5, "sparsemax": 2.0}
    assert axes.get_xlabel() == "update"
    assert figure.axes[-1].get_ylabel() == "layer"


def test_diversity_has_a_panel_a_site_and_a_line_a_layer(tmp_path: Path) -> None:
    records = [
        {"update": 50, "alpha": {"cross": [[1.2]]}},
        {"update": 50, "diversity": {"cross": [[0.2], [0.4]], "encoder_self": [[], [0.1]]}},
        {"update": 100, "diversity": {"cross": [[0.3], []], "encoder_self": [[], [0.5]]}},
    ]
    figure = diversity_figure(records)
    by_title = panels(figure)
    assert list(by_title) == ["encoder self-attention", "cross-attention"]
    encoder = head_lines(by_title["encoder self-attention"])
    cross = head_lines(by_title["cross-attention"])
    assert list(encoder) == ["layer 2"]
    assert list(cross) == ["layer 1", "layer 2"]
    assert list(cross["layer 1"].get_xdata()) == [50, 100]
    assert list(cross["layer 1"].get_ydata()) == [0.2, 0.3]
    assert list(cross["layer 2"].get_xdata()) == [50]
    assert cross["layer 2"].get_color() == encoder["layer 2"].get_color()
    assert cross["layer 1"].get_color() != cross["layer 2"].get_color()
    assert by_title["cross-attention"].get_ylim()[0] == 0
    label = by_title["encoder self-attention"].get_ylabel()
    assert label.endswith("/ log(number of heads)")
    assert diversity_figure(records[:1]) is None


def test_files_are_written_and_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (
        save(drawn(alpha_figure(RECORDS)), tmp_path / folder / "alpha.png", ("png", "svg"))
        for folder in ("figures", "again")
    )
    assert [path.name for path in first] == ["alpha.png", "alpha.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.stat().st_size > 2000
        assert one.read_bytes() == other.read_bytes()


def test_a_name_stands_in_the_title_and_no_marker_on_an_edge() -> None:
    metrics = [{"update": update, "valid/loss": 1.0} for update in (500, 1000)]
    diversity = [{"update": update, "diversity": {"cross": [[0.2]]}} for update in (0, 1000)]
    for draw, records in (
        (alpha_figure, RECORDS),
        (diversity_figure, diversity),
        (curves_figure, metrics),
    ):
        figure = draw(records, "softmax, a corpus")
        assert figure is not None
        title = " ".join(figure.get_suptitle().split())  # long ones are wrapped
        assert title.endswith(" (softmax, a corpus)")
        plain = draw(records)
        assert plain is not None
        assert "(" not in plain.get_suptitle()
        axes = figure.axes[0]
        left, right = axes.get_xlim()
        assert left < 0
        assert right > max(axes.lines[0].get_xdata())
    assert list(axes.get_xticks()) == [0, 500, 1000]


def test_without_alpha_nothing_is_drawn() -> None:
    softmax = [{"update": 1, "density": {"cross": [[1.0]]}}, {"update": 2, "alpha": {}}]
    assert alpha_figure(softmax) is None
    assert curves_figure([{"update": 1}]) is None


def test_heads_that_pruning_left_keep_their_numbers() -> None:
    kept = {"cross": [[2, 3, 8], [1, 4, 7]]}
    figure = drawn(alpha_figure(RECORDS, kept=kept))
    lines = head_lines(panels(figure)["cross-attention"])
    assert list(lines)[:6] == [
        *(f"layer 1, head {head}" for head in (2, 3, 8)),
        *(f"layer 2, head {head}" for head in (1, 4, 7)),
    ]
    assert len(head_lines(panels(figure)["encoder self-attention"])) == 5  # all are there
    table = alpha_table({"cross": [[1.25, 1.75], [], [1.0, 2.0]]}, {"cross": [[2, 5], [], [1, 5]]})
    assert [line.split() for line in table.splitlines()] == [
        ["site", "layer", "head1", "head2", "head5", "mean"],
        ["cross", "1", "-", "1.250", "1.750", "1.500"],
        ["3", "1.000", "-", "2.000", "1.500"],
    ]


def test_curves_of_loss_and_bleu() -> None:
    records = [
        {"update": 50, "train/loss": 5.0, "train/rate": 0.1},
        {"update": 100, "train/loss": 4.0},
        {"update": 100, "valid/loss": 4.5, "valid/bleu": 3.0},
        {"update": 150, "nonfinite": ["train/loss"]},
    ]
    figure = curves_figure(records)
    assert figure is not None
    loss, bleu = figure.axes
    assert [list(line.get_xdata()) for line in loss.lines] == [[50, 100], [100]]
    assert [line.get_label() for line in loss.lines] == ["training", "validation"]
    assert [list(line.get_ydata()) for line in bleu.lines] == [[3.0]]
    only_loss = curves_figure(records[:2])
    assert only_loss is not None
    assert len(only_loss.axes) == 1


def test_the_table_has_a_row_a_layer_and_a_column_a_head() -> None:
    table = alpha_table({"cross": [[1.25, 1.75], [1.0, None]], "encoder_self": [[2.0, 1.5]]})
    rows = [line.split() for line in table.splitlines()]
    assert rows == [
        ["site", "layer", "head1", "head2", "mean"],
        ["encoder_self", "1", "2.000", "1.500", "1.750"],
        ["cross", "1", "1.250", "1.750", "1.500"],
        ["2", "1.000", "-", "1.000"],
    ]
    assert len({len(line) for line in table.splitlines()}) == 1  # columns stand under each other
    assert "no head" in alpha_table({})


def test_heavy_packages_are_not_imported_before_they_are_used() -> None:
    program = "import sys, headwise.analysis.plots, headwise.track; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"matplotlib", "wandb", "torch"} & set(modules)

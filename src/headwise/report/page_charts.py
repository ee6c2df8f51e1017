"""The charts of a page, made by plotly: a figure is plain data that plotly.js draws in a browser.

Colours, fonts and sizes are the page's own, which knows whether it is dark; what a line stands
for it finds in the line's `meta`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwise.report.page_run import thinned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

REFERENCES = ((1.0, "softmax"), (1.5, "1.5-entmax"), (2.0, "sparsemax"))
N_POINTS = 500  # at most, of a line
CURVES = {"loss": "loss per target token", "bleu": "BLEU of the validation set"}
SPLITS = {"train": "training", "valid": "validation"}


def alpha_chart(trajectory: Mapping[str, Any], site: str) -> dict[str, Any] | None:
    """How the α of every head of a site went; None where no head has one.

    Args:
        trajectory: of α, from `page_run.trajectories`.
        site: encoder_self, decoder_self or cross.
    """
    from plotly import graph_objects

    lines = [line for line in trajectory["lines"] if line["site"] == site]
    if not lines:
        return None
    figure = graph_objects.Figure()
    for line in lines:
        place = {"layer": line["layer"], "head": line["head"]}
        figure.add_scatter(
            x=trajectory["updates"],
            y=line["values"],
            mode="lines" if len(trajectory["updates"]) > 1 else "markers",
            meta=place,
            hovertemplate=(
                f"layer {line['layer']}, head {line['head']}<br>"
                "α %{y:.2f} at update %{x:,}<extra></extra>"
            ),
        )
    for alpha, name in REFERENCES:
        figure.add_hline(alpha, line={"width": 1, "dash": "dot"}, name=name)
    highest = max(value for line in lines for value in line["values"] if value is not None)
    figure.update_layout(
        showlegend=False,
        hovermode="closest",
        xaxis={"title": {"text": "update"}, "rangemode": "tozero"},
        yaxis={
            "range": [0.97, max(2.0, highest) + 0.04],
            "tickvals": [alpha for alpha, _ in REFERENCES],
            "ticktext": [name for _, name in REFERENCES],
        },
    )
    return _plain(figure)


def curve_charts(records_of: Sequence[tuple[str, Iterable[Mapping[str, Any]]]]) -> list[Any]:
    """Loss and BLEU over the updates, one chart each, with a line a run and split.

    Args:
        records_of: of every run its name on the page and the records of metrics.jsonl.

    Returns:
        {"title", "figure"} of what was measured.
    """
    from plotly import graph_objects

    known = [(name, list(records)) for name, records in records_of]
    charts = []
    for metric, title in CURVES.items():
        figure = graph_objects.Figure()
        for number, (name, records) in enumerate(known):
            for split, shown in SPLITS.items():
                key = f"{split}/{metric}"
                points = thinned([r for r in records if r.get(key) is not None], N_POINTS)
                if not points:
                    continue
                label = f"{shown}, {name}" if len(known) > 1 else shown
                figure.add_scatter(
                    x=[point["update"] for point in points],
                    y=[float(f"{point[key]:.5g}") for point in points],
                    mode="lines" if split == "train" else "lines+markers",
                    name=label,
                    meta={"run": number, "split": split},
                    hovertemplate=f"{label}<br>%{{y:.3f}} at update %{{x:,}}<extra></extra>",
                )
        if figure.data:
            figure.update_layout(
                showlegend=len(figure.data) > 1,
                hovermode="closest",
                xaxis={"title": {"text": "update"}, "rangemode": "tozero"},
                yaxis={"rangemode": "nonnegative"},
            )
            charts.append({"title": title, "figure": _plain(figure)})
    return charts


def _plain(figure: Figure) -> dict[str, Any]:
    """As plotly.js takes it, without the template, which the page does not use."""
    figure.update_layout(template="none")
    content: dict[str, Any] = json.loads(figure.to_json())
    content["layout"].pop("template", None)
    return content

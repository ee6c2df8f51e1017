"""A table of the α of every head for the terminal."""

from __future__ import annotations

import math

from headwise.track.base import HeadNumbers, HeadValues, head_numbers


def alpha_table(alphas: HeadValues, heads: HeadNumbers | None = None) -> str:
    """Return α of every head as plain text, one row per site and layer, one column per head.

    Args:
        alphas: site -> layers -> heads, as in `results.json`; empty if no head has an α.
        heads: numbers of the heads (`model.heads`); None: all heads.
    """
    rows = [
        (
            site,
            layer,
            dict(zip(head_numbers(heads, site, layer, len(row)), row, strict=False)),
        )
        for site, layers in alphas.items()
        for layer, row in enumerate(layers, start=1)
        if row
    ]
    if not rows:
        return "no head of this model has an α"
    numbers = sorted({number for _, _, values in rows for number in values})
    width = max(len("site"), *(len(site) for site, _, _ in rows))
    header = "".join(f"{f'head{i}':>8}" for i in numbers)
    lines = [f"{'site':<{width}}  layer{header}{'mean':>8}"]
    previous = ""
    for site, layer, values in rows:
        finite = [v for v in values.values() if v is not None and math.isfinite(v)]
        mean = sum(finite) / len(finite) if finite else None
        shown = [*(values.get(number) for number in numbers), mean]
        cells = "".join(f"{_number(value):>8}" for value in shown)
        lines.append(f"{site if site != previous else '':<{width}}  {layer:>5}{cells}")
        previous = site
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"

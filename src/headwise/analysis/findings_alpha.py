"""The findings on α: how it went, where it ended, and what goes with it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from headwise.analysis.correlations import by_chance, spearman
from headwise.analysis.trajectories import ROSE, came_back, sarle
from headwise.analysis.wording import (
    Row,
    head_place,
    known,
    listed,
    number,
    plural,
    short_name,
)
from headwise.markdown import markdown_table
from headwise.schema import SITE_NAMES, SITES

LOW_ALPHA, HIGH_ALPHA = 1.25, 1.75  # the outer quarters of softmax to sparsemax
BIMODAL = 5 / 9
MOST_NAMED = 5
PLAIN = {  # said in words
    "density": "density",
    "entropy": "entropy",
    "confidence": "confidence",
    "importance_normalised": "importance",
    "merge_score": "merge score",
    "previous_weight": "weight on the token before",
    "output_norm": "output norm",
}


def trajectories_text(heads: Sequence[Row], rows: Sequence[Row]) -> str:
    """How the α went; `rows` are of the table of trajectories."""
    if not known(heads, "alpha"):
        return "No head has an α of its own."
    moved = known(rows, "fell_first")
    if not rows or rows[0]["first_update"] == rows[0]["last_update"]:
        return "The record of the training is not here, so nothing can be said of how α went."
    first, last = rows[0]["first_update"], max(row["last_update"] for row in rows)
    fell = sum(row["fell_first"] for row in moved)
    who = f"all {len(rows)}" if fell == len(rows) else f"{fell} of {len(rows)}"
    back = sorted(
        (row for row in rows if came_back(row)), key=lambda row: row["lowest"] - row["last"]
    )
    text = f"From update {number(first)} to {number(last)}: {who} α fell first" + (
        f", {len(moved) - fell} rose first" if len(moved) > fell else ""
    )
    still = len(rows) - len(moved)
    text += f" ({still} hardly moved)" if still else ""
    middles = [statistics.median(row[name] for row in rows) for name in ("first", "last")]
    text += f"; the median went from {middles[0]:.2f} to {middles[1]:.2f}. "
    if back:
        named = [
            f"{head_place(row)} from {row['lowest']:.2f} at update "
            f"{number(row['lowest_update'])} to {row['last']:.2f}"
            for row in back[:MOST_NAMED]
        ]
        more = f", and {len(back) - len(named)} more" if len(back) > len(named) else ""
        text += (
            f"{len(back)} later rose by {ROSE} or more above their lowest: {listed(named)}{more}."
        )
    else:
        text += f"None ended {ROSE} or more above its lowest."
    kept = spearman([row["first"] for row in rows], [row["last"] for row in rows])
    if kept is not None and len(rows) > 3:
        text += (
            f" Where a head began and where it ended correlate with {kept:.2f} (Spearman): "
            + (
                "the order of the start is kept"
                if kept > 0.8
                else "the start alone does not decide"
            )
            + "."
        )
    return text


def final_text(heads: Sequence[Row]) -> str:
    """Where the α of each site ended; empty where there is none."""
    lines, few = [], len(heads)
    for site in SITES:
        rows = known([row for row in heads if row["site"] == site], "alpha")
        if not rows:
            continue
        few = min(few, len(rows))
        rows = sorted(rows, key=lambda row: row["alpha"])
        alphas = [row["alpha"] for row in rows]
        low, high = sum(a < LOW_ALPHA for a in alphas), sum(a > HIGH_ALPHA for a in alphas)
        text = (
            f"- **{SITE_NAMES[site]}**: {alphas[0]:.2f} ({short_name(rows[0])}) to "
            f"{alphas[-1]:.2f} ({short_name(rows[-1])}), median "
            f"{statistics.median(alphas):.2f}; {low} of {len(rows)} below {LOW_ALPHA}, {high} "
            f"above {HIGH_ALPHA}."
        )
        coefficient = sarle(alphas)
        if coefficient is not None:
            sign = "there may be two modes" if coefficient > BIMODAL else "no sign of two modes"
            text += f" Sarle's coefficient {coefficient:.2f}: {sign}."
        lines.append(text)
    if not lines:
        return ""
    note = (
        f"Sarle's coefficient of bimodality is above {BIMODAL:.2f} where values lie at two ends; "
        f"with {plural(few, 'head')} a site it is a hint, no test."
    )
    return "\n".join(lines) + f"\n\n{note}"


def correlations_text(rows: Sequence[Row]) -> str:
    """The table of correlations, and what of it is more than chance."""
    if not rows:
        return ""
    sites = [site for site in SITES if any(row["site"] == site for row in rows)]
    values = {(row["statistic"], row["site"]): row["spearman"] for row in rows}
    names = list(dict.fromkeys(row["statistic"] for row in rows))
    lines = [
        [
            name.replace("_", " "),
            *(f"{values[name, s]:+.2f}" if (name, s) in values else "" for s in sites),
        ]
        for name in names
    ]
    n_heads = [max(row["n_heads"] for row in rows if row["site"] == site) for site in sites]
    chance = ", ".join(f"{by_chance(n):.2f}" for n in dict.fromkeys(n_heads))
    return (
        f"Rank correlation of α over the {' / '.join(map(str, n_heads))} heads of a site; "
        f"once in twenty times chance alone gives more than {chance} either way.\n\n"
        + markdown_table(["", *(SITE_NAMES[site] for site in sites)], lines)
        + "".join(f"\n\n{line}" for line in [_beyond_chance(rows)] if line)
    )


def _beyond_chance(rows: Sequence[Row]) -> str:
    """The correlations beyond what chance gives once in twenty times, in words."""
    lines = []
    for site in dict.fromkeys(row["site"] for row in rows):
        own = [
            r for r in rows if r["site"] == site and abs(r["spearman"]) > by_chance(r["n_heads"])
        ]
        named = [
            f"{'higher' if row['spearman'] > 0 else 'lower'} {PLAIN[row['statistic']]}"
            for row in own
        ]
        if named:
            lines.append(f"in {SITE_NAMES[site]} with {listed(named)}")
    expected = len(rows) / 20
    about = f"about {round(expected)}" if expected >= 1 else "fewer than one"
    return (
        f"Beyond that, a higher α goes {'; '.join(lines)}; of {len(rows)} correlations chance "
        f"alone would put {about} there."
        if lines
        else ""
    )

"""What an analysis found, in words that name heads.

The order is that of Correia et al. 2019, section 5: α over the training and at its end, density,
diversity, positional, merging and interrogation heads, heads unlike themselves; then rare words
(Voita et al. 2019), importance (Michel et al. 2019) and what α goes with.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from headwise.analysis.findings_alpha import correlations_text, final_text, trajectories_text
from headwise.analysis.findings_roles import (
    interrogation_text,
    merging_text,
    positional_text,
    rare_text,
)
from headwise.analysis.roles import Thresholds
from headwise.analysis.wording import (
    Row,
    head_name,
    head_place,
    known,
    listed,
    local_name,
    number,
    percent,
    plural,
    quoted,
    upper,
)
from headwise.markdown import markdown_table
from headwise.schema import SITE_NAMES, SITES

DENSE = 0.9995  # a mean density above this is 1 to every digit that is shown
MOST_NAMED = 5


@dataclass(frozen=True)
class Found:
    """All that the findings are made from: rows of the tables, and how they came about.

    Attributes:
        counts: `Survey.counts`.
        about: settings.json.
    """

    about: Mapping[str, Any]
    counts: Mapping[str, int]
    heads: Sequence[Row]
    layers: Sequence[Row]
    density: Sequence[Row]
    sentences: Sequence[Row]
    trajectories: Sequence[Row]
    correlations: Sequence[Row]
    pruning: Sequence[Row] = field(default_factory=list)
    others: Sequence[Row] = field(default_factory=list)

    @property
    def thresholds(self) -> Thresholds:
        """From where on heads are called something."""
        return Thresholds(**self.about["thresholds"])


def findings(found: Found) -> str:
    """The text of findings.md."""
    sections = [
        ("α over the training", trajectories_text(found.heads, found.trajectories)),
        ("α at the end", final_text(found.heads)),
        ("Density", _density(found)),
        ("Diversity", _diversity(found)),
        ("Positional heads", positional_text(found.heads, found.thresholds)),
        (
            "Heads that hold a word together",
            merging_text(found.heads, found.counts, found.thresholds),
        ),
        ("Interrogation heads", interrogation_text(found.heads, found.counts, found.thresholds)),
        ("A head unlike itself", _unlike(found)),
        ("Rare words", rare_text(found.heads, found.thresholds)),
        ("Confidence", _confidence(found)),
        ("Importance", _importance(found)),
        ("What α goes with", correlations_text(found.correlations)),
    ]
    parts = [_introduction(found), *(f"## {title}\n\n{text}" for title, text in sections if text)]
    return "\n\n".join(parts) + "\n"


def _introduction(found: Found) -> str:
    about, counts = found.about, found.counts
    roles = [row for row in found.heads if row["roles"]]
    text = (
        f"# What the heads of {about['run']} became\n\n"
        f"{upper(plural(len(found.heads), 'head'))} of {about['attention']}, looked at over "
        f"{plural(about['sentences'], 'sentence')} of {about['split']} ({about['source']}→"
        f"{about['target']}, {number(counts['source_tokens'])} source and "
        f"{number(counts['target_tokens'])} target pieces), with the weights "
        f"`{about['checkpoint']}`."
    )
    if about["not_distributions"]:
        text += (
            f" {about['not_distributions']} of these heads give weights that are no "
            "distribution; what is said of such weights is said of |w| / Σ |w|."
        )
    if about["effective_weights"]:
        text += (
            " Where no weights are formed, they are those that would have the same effect: each "
            "key's part in the output."
        )
    if about["too_long"]:
        text += f" {upper(plural(about['too_long'], 'longer sentence'))} left out."
    if roles:
        lines = [f"- {head_name(row)}: {row['roles'].replace(';', ', ')}" for row in roles]
        return f"{text} Heads with a role by the thresholds below:\n\n" + "\n".join(lines)
    return f"{text} No head has one of the roles below; the sections name the nearest."


# -- density and diversity ------------------------------------------------------------------------


def _density(found: Found) -> str:
    rows = known(found.heads, "density")
    if not rows:
        return "No head forms weights, so there is no density."
    if all(row["density"] == 1 for row in rows):
        return "Every head is dense everywhere: each key a query may see gets some weight."
    lines = []
    for site in SITES:
        own = sorted(
            (row for row in rows if row["site"] == site), key=lambda row: float(row["density"])
        )
        if not own:
            continue
        mean = statistics.fmean(row["density"] for row in own)
        dense = [row for row in own if row["density"] >= DENSE]
        text = f"- **{SITE_NAMES[site]}**: mean {mean:.2f}, from {_shown_density(own[0])} to "
        text += f"{_shown_density(own[-1])}"
        if dense:
            text += f"; {len(dense)} of {len(own)} heads dense throughout"
        share = _dense_share(found.density, site)
        if share is not None:
            text += f"; {percent(share)} of all queries use every key they see"
        lines.append(f"{text}. {_by_layer(own)}")
    return (
        "Share of the keys a query may see that get a weight other than exactly 0, ends of "
        "sentences included:\n\n" + "\n".join(lines)
    )


def _shown_density(row: Row) -> str:
    return f"{row['density']:.2f} ({local_name(row)})"


def _dense_share(histogram: Sequence[Row], site: str) -> float | None:
    own = [row for row in histogram if row["site"] == site]
    total = sum(row["n_queries"] for row in own)
    dense = sum(row["n_queries"] for row in own if row["low"] == 1.0)
    return dense / total if total else None


def _by_layer(rows: Sequence[Row]) -> str:
    by_layer: dict[int, list[float]] = {}
    for row in rows:
        by_layer.setdefault(row["layer"], []).append(row["density"])
    if len(by_layer) < 2:
        return ""
    means = {layer: statistics.fmean(found) for layer, found in by_layer.items()}
    return f"Layer by layer {_layers_in_turn(means, max(means))}."


def _layers_in_turn(values: Mapping[int, float], n_layers: int) -> str:
    """A number a layer, from the first on; – where it has none."""
    shown = (values.get(layer) for layer in range(1, n_layers + 1))
    return ", ".join("–" if value is None else f"{value:.2f}" for value in shown)


def _diversity(found: Found) -> str:
    base = found.about["diversity_base"]
    lines = []
    for site in SITES:
        rows = [row for row in found.layers if row["site"] == site]
        name = f"diversity_{base}"
        values = {row["layer"]: float(row[name]) for row in known(rows, name)}
        if not values:
            continue
        n_layers = max(row["layer"] for row in rows)
        text = f"- **{SITE_NAMES[site]}**: {_layers_in_turn(values, n_layers)}"
        if len(values) > 1:
            text += f"; highest in layer {max(values, key=values.__getitem__)} of {n_layers}"
        lines.append(f"{text}.")
    if not lines:
        return "No layer has two heads with weights to compare."
    scale, most = "the number of heads", "1 where they share no key"
    if base == "keys":
        scale, most = "the number of keys", "below 1 where keys outnumber heads"
    return (
        "How much the heads of a layer disagree: Jensen-Shannon divergence, logarithm to the base "
        f"of {scale} (`diversity_base={base}`); 0 where they agree, {most}. From the first layer "
        "on:\n\n" + "\n".join(lines)
    )


def _unlike(found: Found) -> str:
    if not found.sentences:
        return (
            "No head that is normally sparse is far denser in some sentence than in others of "
            "like length."
        )
    alphas = {(row["site"], row["layer"], row["head"]): row.get("alpha") for row in found.heads}
    named: dict[tuple[str, int, int], Row] = {}
    for row in sorted(found.sentences, key=lambda row: -float(row["deviations"])):
        named.setdefault((row["site"], row["layer"], row["head"]), row)
    lines = [
        f"- {upper(head_name({**row, 'alpha': alphas[key]}))}, mean density "
        f"{row['head_mean']:.2f}: {row['density']:.2f} in sentence {row['sentence']}, "
        f"{row['expected']:.2f} in others of its length. *{quoted(row['text'])}*"
        for key, row in list(named.items())[:MOST_NAMED]
    ]
    return (
        "Sentences in which a head that is normally sparse is far denser than in sentences of "
        "like length, which may be ambiguous to it (more in sentences.csv):\n\n" + "\n".join(lines)
    )


# -- confidence, importance, correlations ---------------------------------------------------------


def _confidence(found: Found) -> str:
    lines = []
    for site in SITES:
        rows = known([row for row in found.heads if row["site"] == site], "confidence")
        if rows:
            best = max(rows, key=lambda row: float(row["confidence"]))
            middle = statistics.median(row["confidence"] for row in rows)
            lines.append(
                f"- **{SITE_NAMES[site]}**: median {percent(middle)}, highest "
                f"{percent(best['confidence'])} ({local_name(best)})."
            )
    if not lines:
        return ""
    return (
        "Mean largest weight of a token on a token, the end of a sentence excluded on both sides, "
        "and so are queries that see one key:\n\n" + "\n".join(lines)
    )


def _importance(found: Found) -> str:
    return "\n\n".join(filter(None, (_most_and_least(found.heads), _pruning(found.pruning))))


def _most_and_least(heads: Sequence[Row]) -> str:
    rows = sorted(
        known(heads, "importance_normalised"),
        key=lambda row: float(row["importance_normalised"]),
    )
    if not rows:
        return ""
    shown = [f"{head_place(row)} ({row['importance_normalised']:.2f})" for row in rows]
    n = min(3, len(rows) // 2)
    text = "How much the loss would change with a head's output, over the norm of its layer."
    if n:
        text += f" Most: {listed(shown[: -n - 1 : -1])}. Least: {listed(shown[:n])}."
    return text


def _pruning(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    curves = {
        sites: [row for row in rows if row["sites"] == sites]
        for sites in dict.fromkeys(row["sites"] for row in rows)
    }
    shown = sorted({row["fraction"] for row in rows})
    head = ["BLEU without", *(percent(fraction) for fraction in shown)]
    lines = []
    for sites, curve in curves.items():
        bleu = {row["fraction"]: f"{row['bleu']:.1f}" for row in curve}
        names = "all heads" if ";" in sites else SITE_NAMES[sites]
        lines.append([names, *(bleu.get(fraction, "") for fraction in shown)])
    whole = next(iter(curves.values()))
    enough = list(takewhile(lambda row: row["bleu"] >= whole[0]["bleu"] - 1, whole))
    share = enough[-1]["n_removed"] / max(whole[-1]["n_removed"], 1)  # whole heads go
    text = (
        f"{upper(percent(share))} of all heads can go, the least important first and nothing "
        "trained again, for at most 1 BLEU.\n\n"
    )
    return text + markdown_table(head, lines)

"""Analysed runs side by side: what Correia et al. 2019 tell of their models in section 5."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.analysis.roles import LEAST_CONTRAST, LEAST_SPLIT_SCORE, Thresholds
from headwise.analysis.tables import COMPARISON, HEADS, LAYERS, known, percent, read_settings
from headwise.files import write_text
from headwise.markdown import markdown_table
from headwise.report.run_names import class_word
from headwise.runs.folder import RunFolder
from headwise.schema import SITE_NAMES, SITES

Rows = list[dict[str, Any]]
Key = tuple[str, str | None, int | None]  # quantity, site, layer
Value = tuple[str, str | None, int | None, float]

# Quantity -> how it is called and shown; in this order.
QUANTITIES = {
    "previous_heads": ("heads at -1", "count"),
    "previous_weight": ("their weight at -1, median", "share"),
    "previous_share": ("most queries of a head with their peak at -1", "share"),
    "next_heads": ("heads at +1", "count"),
    "next_weight": ("their weight at +1, median", "share"),
    "next_share": ("most queries of a head with their peak at +1", "share"),
    "merging_heads": ("merging heads of the encoder", "count"),
    "merge_score_1": ("highest merge score", "share"),
    "merge_score_2": ("second highest merge score", "share"),
    "cluster_mass": ("highest mass inside of the word", "share"),
    "interrogation_heads": ("interrogation heads", "count"),
    "question_weight": ("weight on ? at question words, head of the largest difference", "share"),
    "statement_weight": ("that head's on the last token, same words in statements", "share"),
    "rare_share": ("most sentences in which a head points at the rarest token", "share"),
    "alpha": ("α, mean", "number"),
    "density": ("density, mean", "number"),
    "confidence": ("confidence, median", "share"),
    "diversity": ("diversity", "number"),
}


def write_comparison(
    runs: Mapping[Path, Path], thresholds: Thresholds, diversity_base: str, output: Path
) -> str:
    """Write comparison.csv and comparison.md, and return the latter.

    Args:
        runs: folder of each run -> folder of its analysis.
        thresholds: with which they were made.
        diversity_base: heads or keys.
        output: the folder to write to.
    """
    columns = {}
    labels = run_labels(list(runs))
    for label, (run, folder) in zip(labels, runs.items(), strict=True):
        about = read_settings(folder)
        columns[label] = (str(run), about, values_of(folder, diversity_base))
    rows = [
        {"run": run, "quantity": quantity, "site": site, "layer": layer, "value": value}
        for run, _, values in columns.values()
        for (quantity, site, layer), value in values.items()
    ]
    output.mkdir(parents=True, exist_ok=True)
    text = _markdown(columns, thresholds, diversity_base)
    write_text(COMPARISON.path(output), COMPARISON.text(rows))
    write_text(output / "comparison.md", text)
    return f"{text}\nwritten to {output}"


def run_labels(folders: Sequence[Path]) -> list[str]:
    """A short name for each run: what tells it from the others, its folder's name at last."""
    described = []
    for folder in folders:
        config = RunFolder(folder).read_config()
        attention = class_word(config["attention"]["_target_"])
        data, model = config["data"]["name"], config["model"]["name"]
        described.append([attention, str(data), str(model), f"seed {config.get('seed')}"])
    telling = [i for i in range(4) if len({words[i] for words in described}) > 1]
    labels = [" ".join(words[i] for i in {0, *telling}) for words in described]
    for name in ("{0.name}", "{0.parent.name}/{0.name}", "{0}"):  # as much as tells them apart
        labels = [
            name.format(folder.resolve()) if labels.count(label) > 1 else label
            for folder, label in zip(folders, labels, strict=True)
        ]
    return labels


def values_of(analysis: Path, diversity_base: str) -> dict[Key, float]:
    """Everything the comparison tells of a run, from the folder of its analysis."""
    found = _values(HEADS.read(analysis), LAYERS.read(analysis), diversity_base)
    return {(quantity, site, layer): float(value) for quantity, site, layer, value in found}


def _values(heads: Rows, layers: Rows, diversity_base: str) -> Iterator[Value]:
    for role in ("previous", "next"):
        own = [row for row in heads if _has(row, role)]
        near = known(heads, f"{role}_share")
        if near:
            yield f"{role}_heads", None, None, len(own)
            yield f"{role}_share", None, None, max(row[f"{role}_share"] for row in near)
        if own:
            middle = statistics.median(row[f"{role}_weight"] for row in own)
            yield f"{role}_weight", None, None, middle
    encoder = [row for row in heads if row["site"] == "encoder_self"]
    yield from _of_words(encoder)
    for site in SITES:
        own = [row for row in heads if row["site"] == site]
        for name, middle in (
            ("alpha", statistics.fmean),
            ("density", statistics.fmean),
            ("confidence", statistics.median),
        ):
            found = [row[name] for row in known(own, name)]
            if found:
                yield name, site, None, middle(found)
    for row in known(layers, f"diversity_{diversity_base}"):
        yield "diversity", row["site"], row["layer"], row[f"diversity_{diversity_base}"]


def _of_words(encoder: Rows) -> Iterator[Value]:
    """Merging, interrogation and rare-word heads of the encoder."""
    scored = sorted((row["merge_score"] for row in known(encoder, "merge_score")), reverse=True)
    if scored:
        yield "merging_heads", "encoder_self", None, sum(_has(row, "merging") for row in encoder)
        for place, score in enumerate(scored[:2], start=1):
            yield f"merge_score_{place}", "encoder_self", None, score
        mass = max(row["cluster_mass"] for row in known(encoder, "cluster_mass"))
        yield "cluster_mass", "encoder_self", None, mass
    asked = known(encoder, "question_weight")
    if asked:
        n_heads = sum(_has(row, "interrogation") for row in encoder)
        yield "interrogation_heads", "encoder_self", None, n_heads
        best = max(asked, key=_tells_questions)
        yield "question_weight", "encoder_self", None, best["question_weight"]
        if best["statement_weight"] is not None:
            yield "statement_weight", "encoder_self", None, best["statement_weight"]
    rare = [row["rare_share"] for row in known(encoder, "rare_share")]
    if rare:
        yield "rare_share", "encoder_self", None, max(rare)


def _tells_questions(row: Mapping[str, Any]) -> float:
    return float(row["question_weight"] - (row["statement_weight"] or 0.0))


def _has(row: Mapping[str, Any], role: str) -> bool:
    return role in (row["roles"] or "").split(";")


def in_order(keys: Iterable[Key]) -> list[Key]:
    """As the comparison tells them."""
    order = list(QUANTITIES)
    places: list[str | None] = [None, *SITES]
    return sorted(keys, key=lambda k: (order.index(k[0]), places.index(k[1]), k[2] or 0))


def name_of(key: Key) -> str:
    """What a value is, in words."""
    quantity, site, layer = key
    name = QUANTITIES[quantity][0]
    if site is None or (layer is None and quantity not in ("alpha", "density", "confidence")):
        return name
    return f"{name}, {SITE_NAMES[site]}" + (f" layer {layer}" if layer is not None else "")


def shown_value(key: Key, value: float) -> str:
    """A value as its quantity is shown."""
    kind = QUANTITIES[key[0]][1]
    return {"count": f"{value:.0f}", "share": percent(value), "number": f"{value:.2f}"}[kind]


def _markdown(
    columns: Mapping[str, tuple[str, Mapping[str, Any], Mapping[Key, float]]],
    thresholds: Thresholds,
    diversity_base: str,
) -> str:
    found = {label: values for label, (_, _, values) in columns.items()}
    keys = in_order({key for values in found.values() for key in values})
    lines = [
        [
            name_of(key),
            *(shown_value(key, of[key]) if key in of else "" for of in found.values()),
        ]
        for key in keys
    ]
    legend = [
        f"- {label}: `{run}`, {about['sentences']} sentences of {about['split']}, weights "
        f"`{about['checkpoint']}`"
        for label, (run, about, _) in columns.items()
    ]
    notes = [
        "An empty cell was not measured, or there is no such head.",
        *definitions(keys, thresholds, diversity_base),
    ]
    parts = [
        markdown_table(["", *found], lines),
        "\n".join(legend),
        "\n".join(f"- {n}" for n in notes),
    ]
    return "\n\n".join(parts) + "\n"


def definitions(keys: Iterable[Key], thresholds: Thresholds, diversity_base: str) -> list[str]:
    """What the quantities of a table are, those of them that it has."""
    has = {quantity for quantity, _, _ in keys}
    base = "heads" if diversity_base == "heads" else "keys"
    positional = percent(thresholds.positional_share)
    told = {
        "previous_share": "A head at -1 (+1) has its largest weight at the token before (behind) "
        f"in at least {positional} of the queries that have one (Voita et al. 2019).",
        "merge_score_1": "Merge score, of a word: the greatest weight that one of its pieces gives "
        "to the others; where it is one piece, to itself. A head's is the mean over words. A "
        f"merging head (of Correia et al. 2019) has {percent(thresholds.merge_score)}, and "
        f"{percent(LEAST_SPLIT_SCORE)} over words of several pieces. Mass inside of the word: "
        "of the weight of all pieces of words, what stays in the same word.",
        "question_weight": "An interrogation head (of Correia et al. 2019) gives at least "
        f"{percent(thresholds.question_weight)} of the weight of question words to the question "
        "mark, and less by at least "
        f"{LEAST_CONTRAST * 100:.0f} points to the last token where the same words ask nothing.",
        "rare_share": "Points at the rarest token (after Voita et al. 2019, who leave sentences of "
        "frequent words out): most tokens of the sentence have their largest weight there.",
        "density": "Density is the share of visible keys whose weight is not 0.",
        "confidence": "Confidence is the mean of the largest weights of a head's queries.",
        "diversity": "Diversity is the Jensen-Shannon divergence of the heads of a layer, "
        f"logarithm to the base of the number of {base}.",
    }
    return [text for quantity, text in told.items() if quantity in has]

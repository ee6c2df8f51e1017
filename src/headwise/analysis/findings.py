"""Check which findings of the papers one run shows: one row per finding, with its value.

The order is that of Correia et al. 2019, section 5: α over the training and at its end, density,
diversity, positional, merging and interrogation heads; then rare words
(Voita et al. 2019), kinds of heads (Child et al. 2019) and importance (Michel et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from headwise.analysis.kinds import KINDS, MIN_VALUE
from headwise.analysis.quantities import QUANTITIES
from headwise.analysis.roles import (
    MIN_QUESTION_TOKENS,
    MIN_SPLIT_WORDS,
    OFFSET_NAMES,
    ROLES,
    has_enough_questions,
    offset_name,
)
from headwise.analysis.tables import GLOSSARY, HEAD_KEY, Row, complete_rows
from headwise.analysis.trajectories import MIN_RISE, came_back, rise, sarle
from headwise.config.schema import SITE_KINDS, SITE_NAMES
from headwise.markdown import markdown_table

SEEN, PARTLY, UNSEEN, UNMEASURED = "seen", "in part", "not seen", "not measured"
DENSE = 0.9995  # a mean density above this is shown as 1
LOW_ALPHA, HIGH_ALPHA = 1.25, 1.75  # the outer quarters of softmax to sparsemax
BIMODAL = 5 / 9  # Sarle's coefficient of a uniform distribution
MIN_RHO = 0.8  # rank correlation

Finding = dict[str, Any]  # a row of the table of findings
Tables = Mapping[str, Sequence[Row]]  # by name


def findings(tables: Tables, about: Mapping[str, Any]) -> list[Finding]:
    """Return the rows of the table of findings.

    The outcome is "seen", "in part" (from half of the threshold, or only some heads), "not seen" or
    "not measured"; it is empty for rows that only describe heads.

    Args:
        tables: all other tables of the analysis.
        about: content of settings.json.
    """
    heads, others = tables["heads"], tables["other_statistics"]
    cls_tokens = [row for row in others if row["statistic"] == "cls_divergence"]
    return [
        *_alpha_over_training(heads, tables["trajectories"]),
        *_alpha_at_the_end(heads),
        *_density(heads, tables["density"]),
        *_described("heads disagree", tables["layers"], "diversity_heads", "diversity"),
        *_described("CLS tokens differ", cls_tokens, "value"),
        *_roles(heads, about),
        *_kinds(tables["kinds"]),
        *_described("confidence", heads, "confidence", "confidence"),
        *_importance(heads),
    ]


def findings_text(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """Return the text of findings.md: what was analysed, and the table.

    Args:
        rows: rows of the table of findings.
        about: content of settings.json.
    """
    facts = {
        "attention": about["attention"],
        "weights": f"`{about['checkpoint']}`",
        "text": f"{about['sentences']} {about['unit']} of {about['split']} "
        f"({about['languages'] or 'no language'}); skipped as too long: {about['too_long']}",
        "counts": ", ".join(f"{name} {n:,}" for name, n in about["counts"].items()),
        "heads without distributions, measured by |w| / Σ |w|": about["not_distributions"],
        "equivalent weights, where the attention forms none": about["effective_weights"],
    }
    lines = "\n".join(f"- {name}: {fact}" for name, fact in facts.items() if fact)
    table = markdown_table(
        ["finding", "site", "outcome", "value", "threshold", "heads", "top", "reason"],
        map(_cells, rows),
        numeric=False,
    )
    return f"# Heads of {about['run']}\n\n{lines}\n\n{table}\n\n{GLOSSARY}\n"


def _cells(row: Row) -> list[str]:
    numbers = ["" if row.get(n) is None else f"{row[n]:.2f}" for n in ("value", "threshold")]
    n_heads = "" if row.get("n_heads") is None else f"{row['n_heads']} of {row['n_measured']}"
    place = " ".join(f"{n} {row[n]}" for n in ("layer", "head") if row.get(n) is not None)
    site = SITE_NAMES[row["site"]] if row.get("site") else ""
    outcome, reason = row["outcome"] or "", row.get("reason", "")
    return [row["finding"], site, outcome, *numbers, n_heads, place, reason]


def _row(finding: str, outcome: str | None, head: Row | None = None, **values: Any) -> Finding:
    """Return a row; its site, layer and head are those of `head`."""
    place = {} if head is None else {name: head.get(name) for name in HEAD_KEY}
    return {"finding": finding, "outcome": outcome, **place, **values}


def _by_site(rows: Iterable[Row], name: str) -> Iterator[tuple[str, list[Row]]]:
    """Yield each site and its rows that have a value, the highest first."""
    by_site: dict[str, list[Row]] = {}
    for row in complete_rows(rows, name):
        by_site.setdefault(row["site"], []).append(row)
    for site, site_rows in by_site.items():
        yield site, sorted(site_rows, key=lambda row: -float(row[name]))


def _numbers(rows: Sequence[Row], shows: Callable[[Row], bool]) -> Finding:
    """Return the numbers of heads that show a finding, and of all."""
    return {"n_heads": sum(map(shows, rows)), "n_measured": len(rows)}


def _outcome(value: float, threshold: float) -> str:
    return SEEN if value >= threshold else PARTLY if value >= threshold / 2 else UNSEEN


# -- α --------------------------------------------------------------------------------------------


def _alpha_over_training(heads: Sequence[Row], rows: Sequence[Row]) -> Iterator[Finding]:
    """Most α fall first, and some come back (section 5.1)."""
    reason = "" if complete_rows(heads, "alpha") else "No head has an α."
    if not reason and (not rows or rows[0]["first_update"] == rows[0]["last_update"]):
        reason = "No α was logged during training."
    if reason:
        yield _row("α falls first", UNMEASURED, reason=reason)
        return
    fell = _numbers(rows, lambda row: bool(row["fell_first"]))
    share = fell["n_heads"] / len(rows)
    yield _row("α falls first", _outcome(share, 0.5), value=share, **fell)
    top, rose = max(rows, key=rise), _numbers(rows, came_back)
    outcome, values = SEEN if came_back(top) else UNSEEN, {"threshold": MIN_RISE, **rose}
    yield _row("α falls and comes back", outcome, top, value=rise(top), **values)
    rho = QUANTITIES["alpha_order"].of(rows)
    if rho is not None and len(rows) > 3:
        yield _row("α keeps its order", _outcome(rho, MIN_RHO), value=rho, threshold=MIN_RHO)


def _alpha_at_the_end(heads: Sequence[Row]) -> Iterator[Finding]:
    """The α of a site end in two groups, near softmax and near sparsemax."""
    for site, rows in _by_site(heads, "alpha"):
        value = sarle([row["alpha"] for row in rows])
        outcome = UNMEASURED if value is None else SEEN if value > BIMODAL else UNSEEN
        reason = "Fewer than four α, or all are equal." if value is None else ""
        outer = _numbers(rows, lambda row: not LOW_ALPHA <= row["alpha"] <= HIGH_ALPHA)
        values: Finding = {"value": value, "threshold": BIMODAL, "reason": reason, **outer}
        yield _row("α ends in two groups", outcome, site=site, **values)


# -- density and diversity ------------------------------------------------------------------------


def _density(heads: Sequence[Row], histogram: Sequence[Row]) -> Iterator[Finding]:
    """Heads give keys a weight of exactly 0 (section 5.1)."""
    sites = list(_by_site(heads, "density"))
    if not sites:
        yield _row("sparse heads", UNMEASURED, reason="No head forms weights.")
    for site, rows in sites:
        sparse = _numbers(rows, lambda row: row["density"] < DENSE)
        n_sparse, mean = sparse["n_heads"], QUANTITIES["density"].of(rows)
        outcome = UNSEEN if not n_sparse else SEEN if n_sparse == len(rows) else PARTLY
        yield _row("sparse heads", outcome, rows[-1], value=mean, **sparse)
        bins = [row for row in histogram if row["site"] == site]
        if n_queries := sum(row["n_queries"] for row in bins):
            share = sum(row["n_queries"] for row in bins if row["low"] < 1) / n_queries
            yield _row("sparse queries", _outcome(share, 0.5), site=site, value=share)


def _described(
    finding: str, rows: Sequence[Row], name: str, quantity: str = ""
) -> Iterator[Finding]:
    """Yield a quantity or the mean at each site, with the head or layer of the largest value."""
    for _, same in _by_site(rows, name):
        mean = QUANTITIES[quantity].of(same) if quantity else fmean(row[name] for row in same)
        yield _row(finding, None, same[0], value=mean)


# -- roles ----------------------------------------------------------------------------------------


def _roles(heads: Sequence[Row], about: Mapping[str, Any]) -> Iterator[Finding]:
    """Positional, merging and interrogation heads (section 5.2), and those of rare words."""
    counts, thresholds = about["counts"], about["thresholds"]
    least = {role: (name, thresholds[of_name]) for role, (name, of_name) in ROLES.items()}
    sees_both_sides = any(SITE_KINDS[site] == "self" for site in about["self_attention"])
    for offset in (-1, 1, 0) if sees_both_sides else (-1, 0):
        role = OFFSET_NAMES[offset]
        yield _role_row(f"{role}-token head", role, heads, *least[role])
    for row in complete_rows(heads, "offset"):
        if row["offset"] not in OFFSET_NAMES and offset_name(row["offset"]) in _roles_of(row):
            yield _row("head at another offset", SEEN, row, value=row["offset_share"])
    for site, side in about["self_attention"].items() if about["languages"] else ():
        reason = ""
        if f"{side}_words" not in counts:
            reason = f"The {side} is written without spaces."
        elif counts[f"{side}_split_words"] < MIN_SPLIT_WORDS:
            reason = f"Fewer than {MIN_SPLIT_WORDS} words of the {side} have several tokens."
        at_site = [row for row in heads if row["site"] == site]
        merging = _role_row("merging head", "merging", at_site, *least["merging"], reason)
        yield merging | {"site": site}
    if not sees_both_sides:
        return
    reason = ""
    if "question_word_tokens" not in counts:
        reason = "There is no list of question words for the language."
    elif not has_enough_questions(counts):
        n = MIN_QUESTION_TOKENS
        reason = f"Fewer than {n} tokens of question words in or out of questions."
    asking = *least["interrogation"], reason
    yield _role_row("interrogation head", "interrogation", heads, *asking)
    yield _role_row("rare-word head", "rare", heads, *least["rare"])


def _role_row(
    finding: str, role: str, heads: Sequence[Row], statistic: str, least: float, reason: str = ""
) -> Finding:
    """Return the finding of a role; its head is the best with the role, else the best of all.

    Args:
        reason: why the role cannot be assigned in this text; empty if it can.
    """
    rows = complete_rows(heads, statistic)
    if not rows:
        return _row(finding, UNMEASURED, reason=reason or "No head has weights to measure it by.")
    best = max(rows, key=lambda row: (role in _roles_of(row), row[statistic]))
    value = best[statistic]
    outcome = SEEN if role in _roles_of(best) else PARTLY if value >= least / 2 else UNSEEN
    shown = _numbers(rows, lambda row: role in _roles_of(row))
    values = {"value": value, "threshold": least, "reason": reason, **shown}
    return _row(finding, UNMEASURED if reason else outcome, best, **values)


def _roles_of(row: Row) -> list[str]:
    return (row["roles"] or "").split(";")


def _kinds(rows: Sequence[Row]) -> Iterator[Finding]:
    """Kinds of heads of density models (Child et al. 2019, on learned attention patterns)."""
    heads = [{**row, "roles": row["kinds"]} for row in rows]
    for kind, name in KINDS.items():
        if complete_rows(heads, name):
            yield _role_row(f"{kind.replace('_', '-')} head", kind, heads, name, MIN_VALUE)
    if rows and not complete_rows(rows, "variation"):
        yield _row("data-dependent head", UNMEASURED, reason="It needs two whole windows or more.")


# -- importance -----------------------------------------------------------------------------------


def _importance(heads: Sequence[Row]) -> Iterator[Finding]:
    name = "importance_normalised"
    rows = sorted(complete_rows(heads, name), key=lambda row: float(row[name]))
    if rows:
        yield _row("most important head", None, rows[-1], value=rows[-1][name])
        yield _row("least important head", None, rows[0], value=rows[0][name])

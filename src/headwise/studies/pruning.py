"""A paper's statements on removed heads, compared with the pruning tables of runs.

Curves are read from `<run>/pruning/` (`headwise prune run=… table=true ablation=true`): heads are
masked in order of importance, without training (Michel et al. 2019). Runs trained with fewer heads
are listed separately.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.files import read_json
from headwise.studies.match import SavedRun
from headwise.studies.paper import Paper, PruningFact
from headwise.studies.render import ARROWS, DECIMALS, EMPTY, Fact, Table, fact_table, pivot, signed
from headwise.studies.rows import named_rows

SCORE = "score"  # quantity of a statement without a unit
N_NAMED = 3  # runs named in a list of commands
SIGNIFICANT = 0.05  # largest p-value of a loss that counts
NEAR_SHARE = 0.025  # tolerance between shares of heads: 0.79 counts as 80 %
CURVE_MEASURES = ("removable", "kept", "score_left")


@dataclass(frozen=True)
class PruningReport:
    """Tables, their facts, and commands to measure what is missing."""

    tables: list[Table]
    facts: list[Fact]
    commands: list[str]


def pruning_report(paper: Paper, runs: Sequence[SavedRun]) -> PruningReport:
    """Compare the statements of a paper with the runs that have pruning tables."""
    kinds = named_rows([run for run in runs if _has_tables(run)])
    facts = [fact for statement in paper.pruning for fact in _facts(statement, kinds)]
    tables = []
    for title in dict.fromkeys(statement.table for statement in paper.pruning):
        labels = [statement.label for statement in paper.pruning if statement.table == title]
        rows = fact_table(fact for fact in facts if fact["column"] == title)
        rows["kind"] = rows.note.where(rows.origin == "ours", "paper")
        frame = pivot(rows, "row", ["kind"], _cell_text, labels)
        frame = frame.reindex(columns=[(name,) for name in ("paper", *kinds)], fill_value=EMPTY)
        tables.append(Table(title, frame))
    if paper.pruned_runs:
        tables += _pruned_runs(runs)
    return PruningReport(tables, facts, _commands(paper, runs))


def _facts(statement: PruningFact, kinds: Mapping[str, Sequence[SavedRun]]) -> Iterator[Fact]:
    """Yield the number or text of the paper, and the value of each run."""
    place = {"row": statement.label, "column": statement.table, "quantity": statement.unit or SCORE}
    if statement.text is not None or statement.paper is not None:
        number = {"value": statement.paper, "mark": statement.mark, "note": statement.text}
        yield {**place, "origin": "paper", **number}
    for kind, members in kinds.items():
        for run in members:
            value = measure(run.folder, replace(statement, sites=statement.sites or [*run.sites]))
            if value is not None:
                about = {"run": str(run.folder), "note": kind}
                yield {**place, "origin": "ours", "value": round(value, 4), **about}


def _cell_text(cell: pd.DataFrame) -> str:
    """Format the number or text of the paper; for runs mean, deviation and their number."""
    first = cell.iloc[0]
    unit = "" if first.quantity == SCORE else f" {first.quantity}"
    if first.origin == "paper":
        text = first.note if first.note is not None else f"{first.value:g}{unit}"
        return text if first.mark == "OK" else f"{text} ({first.mark})"
    values = cell.value.astype(float)
    decimals, sign = (0, "") if unit else (2, "+")
    spread = f" ± {values.std():.{decimals}f}" if len(values) > 1 else ""
    return f"{values.mean():{sign}.{decimals}f}{spread}{unit} ({len(values)})"


def measure(folder: Path, fact: PruningFact) -> float | None:
    """Compute the measure of a statement from the tables of a run; None if not possible.

    - removable: the largest share of the heads of `sites`, in percent, up to which no step of the
      curve lost more than `tolerance` of the score.
    - kept: the remaining share, in percent.
    - score_left: the score without the share `removed` of the heads, in percent of that with all;
      None if no step of the curve is near that share.
    - one_left: the score with only the best head of `layer` at the site, minus that with all.

    Args:
        folder: of the run.
        fact: the statement; `sites` must not be empty.
    """
    if fact.measure is None:
        return None
    if fact.measure == "one_left":
        return _one_left(folder, fact)
    curve = _curve(folder, fact.sites)
    if not curve:
        return None
    full = curve[0][1]
    if fact.measure == "score_left":
        target = fact.removed or 0
        share, score = min(curve, key=lambda step: abs(step[0] - target))
        is_near = abs(share - target) <= NEAR_SHARE
        return 100 * score / full if is_near and full else None
    removable = 0.0
    for share, score in curve:
        if score < full - (fact.tolerance or 0):
            break
        removable = share
    return 100 * (1 - removable if fact.measure == "kept" else removable)


def effective_heads(folder: Path) -> int | None:
    """Count the heads of all sites that are left before the first significant loss.

    Heads are removed in order of importance, without training. Significant: p below 0.05 in the
    paired bootstrap against all heads. None if the run has no curve (`prune run=… table=true`).
    """
    path = folder / "pruning" / "curve.json"
    if not path.is_file():
        return None
    curve, left = read_json(path), None
    for row in curve["rows"]:  # from all heads to none
        if row["difference"] < 0 and row["p_value"] < SIGNIFICANT:
            break
        left = sum(row[site] for site in curve["sites"])
    return left


def _curve(folder: Path, sites: Sequence[str]) -> list[tuple[float, float]]:
    """Return (share of the heads of `sites` that is removed, score), by ascending share."""
    for content in pruning_tables(folder, "curve"):
        if set(content["sites"]) == set(sites):
            n_left = [sum(row[site] for site in sites) for row in content["rows"]]
            shares = [1 - n / max(n_left) for n in n_left]
            scores = (row[content["metric"]] for row in content["rows"])
            return sorted(zip(shares, scores, strict=True))
    return []


def pruning_tables(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the tables of a kind (curve, one_removed, one_left) that `headwise prune` wrote."""
    yield from map(read_json, sorted((folder / "pruning").glob(f"{kind}*.json")))


def _one_left(folder: Path, fact: PruningFact) -> float | None:
    (site,) = fact.sites
    for content in pruning_tables(folder, "one_left"):
        full = _full_score(folder, content)
        for row in content["rows"]:
            if (row["site"], row["layer"]) == (site, fact.layer) and full is not None:
                return float(row[content["metric"]] - full)
    return None


def _full_score(folder: Path, table: Mapping[str, Any]) -> float | None:
    """Return the score with all heads, for the same weights and sentences."""
    keys, name = ("weights", "split", "sentences", "metric"), table["metric"]
    for content in pruning_tables(folder, "curve"):
        if all(content.get(key) == table.get(key) for key in keys):
            return next((float(r[name]) for r in content["rows"] if r["removed"] == 0), None)
    return None


def _has_tables(run: SavedRun) -> bool:
    return any((run.folder / "pruning").glob("*.json"))


# -- runs with fewer heads ------------------------------------------------------------------------


def _pruned_runs(runs: Sequence[SavedRun]) -> list[Table]:
    """Return a table of the runs with fewer heads, compared with their original runs."""
    rows = {}
    for run in (run for run in runs if run.config.model.heads is not None):
        score, origin = _score(run.folder, run), _origin(run.folder, run)
        full = None if origin is None else _score(origin, run)
        decimals = DECIMALS[run.metric.sign]
        rows[str(run.folder)] = {
            "heads kept": ", ".join(_heads_left(run)),
            "score": EMPTY if score is None else f"{score:.{decimals}f} {run.metric.label}",
            "difference to the original run": (
                EMPTY
                if score is None or full is None
                else f"{signed(score - full, decimals)} {ARROWS[run.metric.sign]}"
            ),
        }
    if not rows:
        return []
    note = (
        "Scores are of the first test set, from results.json or else from headwise evaluate "
        "run=FOLDER."
    )
    frame = pd.DataFrame.from_dict(rows, orient="index")
    return [Table("Our runs with fewer heads", frame, [note], "run")]


def _heads_left(run: SavedRun) -> Iterator[str]:
    model = run.config.model
    for site, n_layers in run.sites.items():
        total = n_layers * model.n_heads
        n_left = sum(map(len, model.heads[site])) if site in model.heads else total
        yield f"{site} {n_left} of {total}"


def _origin(folder: Path, run: SavedRun) -> Path | None:
    """Return the run with all heads, from pruned.json of the folder or of its `init_from`."""
    for origin in (folder, run.config.init_from):
        path = None if origin is None else Path(origin) / "pruned.json"
        if path is not None and path.is_file():
            return Path(read_json(path)["origin"])
    return None


def _score(folder: Path, run: SavedRun) -> float | None:
    test = next(iter(run.config.data.test), run.config.data.valid)
    for path in (folder / "results.json", *sorted(folder.glob("results-*.json"))):
        if path.is_file():
            content = read_json(path)
            score = content.get("scores", {}).get(test, {}).get(run.metric.name)
            if score is not None:
                return float(score["score"])
    return None


def _commands(paper: Paper, runs: Sequence[SavedRun]) -> list[str]:
    """Return the commands that write missing pruning tables for the paper's statements."""
    curves = dict.fromkeys(tuple(f.sites) for f in paper.pruning if f.measure in CURVE_MEASURES)
    has_ablation = any(f.measure == "one_left" for f in paper.pruning)
    missing = []
    for run in runs:
        if run.results is None or run.config.model.heads is not None:
            continue
        lines = []
        command = shlex.join(["headwise", "prune", f"run={run.folder}", "table=true"])
        if has_ablation and not any((run.folder / "pruning").glob("one_left*.json")):
            lines.append(f"{command} ablation=true")
        for sites in curves:
            is_all = not sites or {*sites} == {*run.sites}
            option = "" if is_all else f" 'sites=[{','.join(sites)}]'"
            exists = bool(_curve(run.folder, sites or [*run.sites])) or (bool(lines) and not option)
            if not exists:
                lines.append(f"{command}{option}")
        missing += [lines] if lines else []
    return [line for lines in missing[:N_NAMED] for line in lines]

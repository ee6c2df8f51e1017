"""A paper's statements on removed heads, beside what the pruning tables of runs say.

A run's curves are read from `<run>/pruning/` (`headwise prune run=… table=true ablation=true`).
Nothing is trained again there: heads are masked in order of
importance (Michel et al. 2019). Runs that really have fewer heads are listed on their own.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.config.schema import SITES
from headwise.files import read_json
from headwise.report.figures_rows import named_rows
from headwise.report.paper import Paper, PruningFact
from headwise.report.paper_runs import FoundRun
from headwise.report.tables import NOTHING, Fact, Table, fact_table, pivot

N_NAMED = 3  # runs named in a list of commands
NEAR_SHARE = 0.025  # two shares of the heads that are called the same: 0.79 is "80 %"
CURVE_MEASURES = ("removable", "kept", "bleu_left")


@dataclass(frozen=True)
class PruningReport:
    """Tables, the facts in them, and commands that would fill more."""

    tables: list[Table]
    facts: list[Fact]
    commands: list[str]


def pruning_report(paper: Paper, runs: Sequence[FoundRun]) -> PruningReport:
    """Answer a paper's statements from the runs that have pruning tables."""
    kinds = named_rows([run for run in runs if _has_tables(run)])
    facts = [fact for statement in paper.pruning for fact in _facts(statement, kinds)]
    tables = []
    for title in dict.fromkeys(statement.table for statement in paper.pruning):
        labels = [statement.label for statement in paper.pruning if statement.table == title]
        own = fact_table(fact for fact in facts if fact["column"] == title)
        own["kind"] = own.note.where(own.source == "ours", "paper")
        frame = pivot(own, "row", ["kind"], _shown, labels)
        frame = frame.reindex(columns=[(name,) for name in ("paper", *kinds)], fill_value=NOTHING)
        tables.append(Table(title, frame))
    if paper.pruned_runs:
        tables += _pruned_runs(runs)
    return PruningReport(tables, facts, _commands(paper, runs))


def _facts(statement: PruningFact, kinds: Mapping[str, Sequence[FoundRun]]) -> Iterator[Fact]:
    """The paper's number or words, and what each run says."""
    place = {"row": statement.label, "column": statement.table, "quantity": statement.unit}
    if statement.text is not None or statement.paper is not None:
        number = {"value": statement.paper, "mark": statement.mark, "note": statement.text}
        yield {**place, "source": "paper", **number}
    for kind, members in kinds.items():
        for run in members:
            value = measure(run.folder, statement)
            if value is not None:
                about = {"run": str(run.folder), "note": kind}
                yield {**place, "source": "ours", "value": round(value, 4), **about}


def _shown(cell: pd.DataFrame) -> str:
    """The paper's number or words; of runs the mean, deviation and their number."""
    first = cell.iloc[0]
    unit = "" if first.quantity == "BLEU" else f" {first.quantity}"
    if first.source == "paper":
        text = first.note if first.note is not None else f"{first.value:g}{unit}"
        return text if first.mark == "OK" else f"{text} ({first.mark})"
    values = cell.value.astype(float)
    decimals, sign = (0, "") if unit else (2, "+")
    spread = f" ± {values.std():.{decimals}f}" if len(values) > 1 else ""
    return f"{values.mean():{sign}.{decimals}f}{spread}{unit} ({len(values)})"


def measure(folder: Path, fact: PruningFact) -> float | None:
    """What a run's tables say to a statement; None where they do not.

    - removable: the largest share of the heads of `sites`, in percent, up to which no step of the
      curve lost more than `tolerance` BLEU.
    - kept: what is left then, in percent.
    - bleu_left: BLEU without the share `removed` of them, in percent of BLEU with all; nothing
      where no step of the curve comes near it, as in a model of few heads.
    - one_left: BLEU with the best head of `layer` alone at the site, less BLEU with all.
    """
    if fact.measure is None:
        return None
    if fact.measure == "one_left":
        return _one_left(folder, fact)
    curve = _curve(folder, fact.sites)
    if not curve:
        return None
    whole = curve[0][1]
    if fact.measure == "bleu_left":
        wanted = fact.removed or 0
        share, bleu = min(curve, key=lambda step: abs(step[0] - wanted))
        is_it = abs(share - wanted) <= NEAR_SHARE
        return 100 * bleu / whole if is_it and whole else None
    removable = 0.0
    for share, bleu in curve:
        if bleu < whole - (fact.tolerance or 0):
            break
        removable = share
    return 100 * (1 - removable if fact.measure == "kept" else removable)


def _curve(folder: Path, sites: Sequence[str]) -> list[tuple[float, float]]:
    """(share of the heads of `sites` that is really gone, BLEU), from none removed on."""
    for content in pruning_tables(folder, "curve"):
        if set(content["sites"]) == set(sites):
            left = [sum(row[site] for site in sites) for row in content["rows"]]
            shares = [1 - n / max(left) for n in left]
            return sorted(zip(shares, (row["bleu"] for row in content["rows"]), strict=True))
    return []


def pruning_tables(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The tables of a kind (curve, one_removed, one_left) that `headwise prune` left in a run."""
    yield from map(read_json, sorted((folder / "pruning").glob(f"{kind}*.json")))


def _one_left(folder: Path, fact: PruningFact) -> float | None:
    (site,) = fact.sites
    for content in pruning_tables(folder, "one_left"):
        whole = _whole_bleu(folder, content)
        for row in content["rows"]:
            if (row["site"], row["layer"]) == (site, fact.layer) and whole is not None:
                return float(row["bleu"] - whole)
    return None


def _whole_bleu(folder: Path, about: Mapping[str, Any]) -> float | None:
    """BLEU with all heads, of the same weights on the same sentences."""
    same = ("weights", "split", "sentences")
    for content in pruning_tables(folder, "curve"):
        if all(content.get(key) == about.get(key) for key in same):
            return next((float(r["bleu"]) for r in content["rows"] if r["removed"] == 0), None)
    return None


def _has_tables(run: FoundRun) -> bool:
    return any((run.folder / "pruning").glob("*.json"))


# -- runs with fewer heads ------------------------------------------------------------------------


def _pruned_runs(runs: Sequence[FoundRun]) -> list[Table]:
    """The runs whose model has fewer heads, beside those they came from."""
    rows = {}
    for run in (run for run in runs if run.config.model.heads is not None):
        score, origin = _bleu(run.folder, run), _origin(run.folder, run)
        whole = None if origin is None else _bleu(origin, run)
        rows[str(run.folder)] = {
            "heads kept": "/".join(str(_kept(run, site)) for site in SITES),
            "of": "/".join(str(_total(run, site)) for site in SITES),
            "BLEU (13a)": NOTHING if score is None else f"{score:.2f}",
            "to the whole run": (
                NOTHING if score is None or whole is None else f"{score - whole:+.2f}"
            ),
        }
    if not rows:
        return []
    note = (
        "Heads are encoder self / decoder self / cross. BLEU of the first test set, from "
        "results.json or else from what headwise evaluate run=FOLDER wrote."
    )
    frame = pd.DataFrame.from_dict(rows, orient="index")
    return [Table("Our runs with fewer heads", frame, [note], "run")]


def _kept(run: FoundRun, site: str) -> int:
    layers = run.config.model.heads.get(site)
    return _total(run, site) if layers is None else sum(len(numbers) for numbers in layers)


def _total(run: FoundRun, site: str) -> int:
    model = run.config.model
    n_layers = model.encoder_layers if site == "encoder_self" else model.decoder_layers
    return n_layers * model.n_heads


def _origin(folder: Path, run: FoundRun) -> Path | None:
    """The run with all heads: told by the pruned folder, or by the one that training began from."""
    for place in (folder, run.config.init_from):
        path = None if place is None else Path(place) / "pruned.json"
        if path is not None and path.is_file():
            return Path(read_json(path)["origin"])
    return None


def _bleu(folder: Path, run: FoundRun) -> float | None:
    test = next(iter(run.config.data.test), run.config.data.valid)
    for path in (folder / "results.json", *sorted(folder.glob("results-*.json"))):
        if path.is_file():
            content = read_json(path)
            score = content.get("scores", {}).get(test, {}).get("bleu")
            if score is not None:
                return float(score["score"])
    return None


def _commands(paper: Paper, runs: Sequence[FoundRun]) -> list[str]:
    """What would make the tables that the paper's statements ask for, for runs without them."""
    curves = dict.fromkeys(tuple(f.sites) for f in paper.pruning if f.measure in CURVE_MEASURES)
    has_ablation = any(f.measure == "one_left" for f in paper.pruning)
    lacking = []
    for run in runs:
        if run.results is None or run.config.model.heads is not None:
            continue
        lines = []
        command = shlex.join(["headwise", "prune", f"run={run.folder}", "table=true"])
        if has_ablation and not any((run.folder / "pruning").glob("one_left*.json")):
            lines.append(f"{command} ablation=true")
        for sites in curves:
            some = "" if set(sites) == set(SITES) else f" 'sites=[{','.join(sites)}]'"
            is_there = bool(_curve(run.folder, sites)) or (bool(lines) and not some)
            if not is_there:
                lines.append(f"{command}{some}")
        lacking += [lines] if lines else []
    return [line for lines in lacking[:N_NAMED] for line in lines]

"""The tidy tables of an analysis: one fact per row, in csv files in the run folder.

The columns of every table are declared here. An empty cell: the value could not be measured.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.analysis.kinds import REGIONS
from headwise.errors import DataError, RunError
from headwise.runs.record import Record

Row = Mapping[str, Any]

FOLDER = "analysis"  # in the run folder
SETTINGS = "settings.json"
FINDINGS_TEXT = "findings.md"
GLOSSARY = "The quantities are explained in the guide, docs/terms.md."


@dataclass(frozen=True, eq=False)  # a key of mappings
class Table:
    """A kind of table.

    Attributes:
        name: file name without the suffix.
        columns: name -> type of the value: str, int or float.
    """

    name: str
    columns: Mapping[str, type]

    def path(self, folder: Path) -> Path:
        """Path of the table in an analysis folder."""
        return folder / f"{self.name}.csv"

    def text(self, rows: Iterable[Row]) -> str:
        """Return the rows as csv.

        Raises:
            KeyError: a row has a column that is not declared.
        """
        rows = list(rows)
        for row in rows:
            unknown = [name for name in row if name not in self.columns]
            if unknown:
                raise KeyError(f"table {self.name} has no columns {unknown}")
        frame = pd.DataFrame(rows, columns=list(self.columns), dtype=object)  # keeps all digits
        return str(frame.to_csv(index=False, lineterminator="\n"))

    def frame(self, rows: Iterable[Row]) -> pd.DataFrame:
        """Return the rows with numbers that were not measured as NaN."""
        floats = {name: float for name, kind in self.columns.items() if kind is float}
        return pd.DataFrame(rows, columns=list(self.columns)).astype(floats)

    def is_in(self, run: Record) -> bool:
        """Whether a run has the table."""
        return run.text(f"{FOLDER}/{self.name}.csv") is not None

    def read(self, run: Record) -> list[dict[str, Any]]:
        """Read the rows from the analysis of a run.

        Raises:
            DataError: the table does not exist, or has columns of another version.
        """
        name = f"{FOLDER}/{self.name}.csv"
        if (text := run.text(name)) is None:
            raise DataError(f"{run.folder / name} not found: run headwise analyze first")
        return self.parse(text, run.folder / name)

    def parse(self, text: str, path: Path) -> list[dict[str, Any]]:
        """Return the rows of the csv file at `path`; values that were not measured are None.

        Raises:
            DataError: it has columns of another version.
        """
        frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        if list(frame) != list(self.columns):
            raise DataError(
                f"{path} has the columns {list(frame)}, expected {list(self.columns)}: "
                "it was written by another version; run headwise analyze again"
            )
        return [
            {name: kind(row[name]) if row[name] else None for name, kind in self.columns.items()}
            for row in frame.to_dict("records")
        ]


def read_settings(run: Record) -> dict[str, Any]:
    """Read settings.json of the analysis of a run; empty if it is missing or broken."""
    try:
        return run.json(f"{FOLDER}/{SETTINGS}")
    except RunError:
        return {}


def complete_rows(rows: Iterable[Row], *names: str) -> list[Row]:
    """Return the rows in which no named value is missing."""
    return [row for row in rows if all(row.get(name) is not None for name in names)]


def percent(share: float) -> str:
    """Format a share (0 to 1) in whole per cent; 0 % and 100 % only for exactly these."""
    if 0 < share <= 0.005:
        return "under 1 %"
    if 0.995 <= share < 1:
        return "over 99 %"
    return f"{100 * share:.0f} %"


HEAD_KEY = ("site", "layer", "head")
_PLACE = {"site": str, "layer": int, "head": int}

HEADS = Table(
    "heads",
    {
        **_PLACE,
        "alpha": float,
        "density": float,  # share of visible keys with a weight other than 0
        "entropy": float,  # nats
        "confidence": float,  # mean largest weight, end of sentence excluded
        "output_norm": float,
        "previous_share": float,  # share of queries whose largest weight is at offset -1
        "previous_weight": float,  # mean weight at offset -1
        "current_share": float,
        "current_weight": float,
        "next_share": float,
        "next_weight": float,
        "offset": int,  # most frequent offset of a query's largest weight
        "offset_share": float,
        "offset_weight": float,
        "merge_score": float,  # Correia et al. 2019, clusters of the tokens of a word
        "split_merge_score": float,  # the same over words of several tokens only
        "cluster_mass": float,  # weight within the cluster of the query
        "question_weight": float,  # from interrogative words to the final question mark
        "statement_weight": float,  # from the same words in statements to the last token
        "rare_share": float,  # share of sentences in which most queries attend to the rarest token
        "importance": float,  # Michel et al. 2019, raw
        "importance_normalised": float,  # divided by the L2 norm over the layer
        "roles": str,  # joined by ";", empty for none
    },
)
OTHERS = Table(  # statistics without a column above, e.g. of gates and custom attentions
    "other_statistics", {**_PLACE, "statistic": str, "value": float}
)
KINDS = Table(  # of density models; see `headwise.analysis.kinds`
    "kinds",
    {
        **_PLACE,
        **dict.fromkeys(REGIONS, float),  # shares of weight
        "variation": float,  # of the weights between inputs
        "kinds": str,  # joined by ";", empty for none; also among the roles of the table of heads
    },
)
LAYERS = Table(
    "layers", {"site": str, "layer": int, "diversity_heads": float, "diversity_keys": float}
)
# A histogram of the densities of a head's queries: low <= density < high. A density of exactly 1
# is in the last bin, with low = high = 1.
DENSITY = Table("density", {**_PLACE, "low": float, "high": float, "n_queries": int})
LENGTHS = Table(  # of tasks that are scored by length; means over some queries
    "lengths",
    {
        **_PLACE,
        "length": int,
        "relevant_weight": float,  # on the key that a query needs, where it is known
        "used_keys": float,  # with a weight other than 0
        "visible_keys": float,
        "entropy": float,  # nats
        "n_queries": int,
    },
)
TRAJECTORIES = Table(  # of α over training, from heads.jsonl
    "trajectories",
    {
        **_PLACE,
        "first_update": int,
        "first": float,
        "lowest_update": int,
        "lowest": float,
        "last_update": int,
        "last": float,
        "fell_first": int,  # 1 or 0; empty where α did not change
    },
)
FINDINGS = Table(  # findings of the papers in this run
    "findings",
    {
        "finding": str,
        "outcome": str,  # seen, in part, not seen, not measured; empty: described only
        "site": str,  # empty: all sites
        "layer": int,
        "head": int,  # the strongest head
        "value": float,
        "threshold": float,
        "n_heads": int,  # heads that show it
        "n_measured": int,
        "reason": str,  # why it was not measured
    },
)
TABLES = (HEADS, OTHERS, KINDS, LAYERS, DENSITY, LENGTHS, TRAJECTORIES, FINDINGS)

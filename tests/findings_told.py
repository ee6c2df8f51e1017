"""Rows of heads as an analysis has them, and the findings that they come to."""

from __future__ import annotations

import re
from typing import Any

from headwise.analysis.correlations import correlation_rows
from headwise.analysis.findings import Found, findings

COUNTS = {
    "source_tokens": 900, "target_tokens": 800, "source_words": 700, "source_split_words": 60,
    "target_words": 700, "target_split_words": 60, "question_word_tokens": 20,
    "statement_word_tokens": 30,
}  # fmt: skip
ABOUT = {
    "run": "demo", "attention": "alpha_entmax", "not_distributions": 0, "effective_weights": False,
    "sentences": 50, "split": "valid", "source": "de", "target": "en", "checkpoint": "best",
    "too_long": 0, "diversity_base": "heads",
    "thresholds": {
        "positional_share": 0.9, "merge_score": 0.8, "question_weight": 0.8, "rare_share": 0.5,
    },
}  # fmt: skip


def head(number: int = 1, site: str = "encoder_self", **values: Any) -> dict[str, Any]:
    plain = {
        "site": site, "layer": 1, "head": number, "density": 0.5, "entropy": 1.0,
        "confidence": 0.4, "merge_score": 0.3, "split_merge_score": 0.1, "cluster_mass": 0.3,
        "previous_share": 0.1, "previous_weight": 0.1, "current_share": 0.2, "current_weight": 0.2,
        "next_share": 0.1, "next_weight": 0.1, "offset": 0, "offset_share": 0.2,
        "offset_weight": 0.2, "question_weight": 0.2, "statement_weight": 0.1, "rare_share": 0.1,
        "roles": "",
    }  # fmt: skip
    return {**plain, **values}


def told(heads: list[dict[str, Any]], counts: dict[str, int] = COUNTS, **more: Any) -> str:
    found = Found(
        {**ABOUT, **more.pop("about", {})}, counts, heads,
        **{"layers": [], "density": [], "sentences": [], "trajectories": [],
           "correlations": correlation_rows(heads), **more},
    )  # fmt: skip
    text = findings(found)
    for line in text.splitlines():
        assert "nan" not in re.findall(r"\w+", line.lower()), line
        assert "None" not in re.findall(r"\w+", line.replace("None ended", "")), line
    return text

"""The quantities of heads in tables: names and formats."""

from __future__ import annotations

# Quantity -> displayed name and format, in the order of the tables.
QUANTITIES = {
    "previous_heads": ("heads at -1", "count"),
    "previous_weight": ("their weight at -1, median", "share"),
    "previous_share": ("highest share of a head's queries with peak at -1", "share"),
    "next_heads": ("heads at +1", "count"),
    "next_weight": ("their weight at +1, median", "share"),
    "next_share": ("highest share of a head's queries with peak at +1", "share"),
    "merging_heads": ("merging heads of the encoder", "count"),
    "merge_score_1": ("highest merge score", "share"),
    "merge_score_2": ("second highest merge score", "share"),
    "cluster_mass": ("highest mass inside the word", "share"),
    "interrogation_heads": ("interrogation heads", "count"),
    "question_weight": ("weight of question words on ?, head with the largest difference", "share"),
    "statement_weight": ("its weight on the last token, same words in statements", "share"),
    "rare_share": ("highest share of sentences where a head points at the rarest token", "share"),
    "alpha": ("α, mean", "number"),
    "density": ("density, mean", "number"),
    "confidence": ("confidence, median", "share"),
    "diversity": ("diversity", "number"),
}

"""The quantities of heads in tables: names and formats, in the order of the tables.

A share is shown in per cent, a fraction with decimals.
"""

from __future__ import annotations

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
    # of all heads of a site
    "alpha": ("α, mean", "number"),
    "alpha_fell": ("share of α that fall first", "share"),
    "alpha_turned": ("number of α that turn and rise", "count"),
    "alpha_turned_at": ("update of their lowest value, median", "count"),
    "alpha_rise": ("rise of an α from its lowest value, largest", "number"),
    "alpha_order": ("rank correlation of α at start and end", "correlation"),
    "alpha_order_all": ("rank correlation of α at start and end, all seeds", "correlation"),
    "alpha_order_low": ("its 95 % interval, lower end", "correlation"),
    "alpha_order_high": ("its 95 % interval, upper end", "correlation"),
    "alpha_groups": ("Sarle's coefficient of α at the end", "number"),
    "alpha_groups_p": ("two groups of α at the end, p", "fraction"),
    "density": ("density, mean", "fraction"),
    "dense_queries": ("share of queries with density 1", "share"),
    "density_spread": ("spread of the heads' densities in a layer", "number"),
    "confidence": ("confidence, median", "share"),
    "diversity": ("diversity", "fraction"),
    "query_gradient": ("relative gradient of queries", "small"),
    "effective_heads": ("effective heads", "count"),
}

"""Tables of the guide: formulas and capabilities of each variant, from yaml files and classes.

    python -m headwise.attention.capabilities [--write docs/variants.md]

With `--write`, the lines between the markers of the file are replaced.
"""

from __future__ import annotations

import re

from headwise.attention.build import AttentionFactory, unsupported_sites
from headwise.attention.cache import KeyValueCache
from headwise.attention.place import Place
from headwise.attention.protocol import Attention
from headwise.attention.scores import ScoreAttention
from headwise.config.folders import config_dir, group_choices, group_node
from headwise.config.schema import SITE_KINDS, SITE_NAMES
from headwise.markdown import markdown_table, print_or_write

N_HEADS, HEAD_DIM = 8, 4  # arbitrary: the capabilities do not depend on them
HEADER = (
    "`attention=`",
    *(f"{SITE_NAMES[s]}{' (causal)' * (kind == 'causal')}" for s, kind in SITE_KINDS.items()),
    "decoding cache",
    "fused, or no scores",
    "weights",
    "patterns, scalings",
    "rotary, ALiBi",
    "max positions",
)


def attentions_by_site(name: str) -> dict[str, Attention]:
    """Return the variant's attention at each site that supports it."""
    node = group_node("attention", name)
    softmax = group_node("attention", "softmax")
    unsupported = unsupported_sites(node, "attention")
    return {
        site: AttentionFactory({"attention": softmax}, {"attention": {site: node}})(
            Place(site, 1, N_HEADS, HEAD_DIM)
        )
        for site in SITE_KINDS
        if site not in unsupported
    }


def capability_row(name: str) -> tuple[str, ...]:
    """Return one row of the table."""
    attentions = attentions_by_site(name)
    instead = group_node("attention", name).get("instead", {})
    by_site = [
        "yes" if s in attentions else f"no ({instead.get(s, 'rejected')})" for s in SITE_KINDS
    ]
    by_scores = [a for a in attentions.values() if isinstance(a, ScoreAttention)]
    has_no_scores = not by_scores
    limits = {a.max_keys for a in attentions.values()} - {None}
    return (
        name,
        *by_site,
        _cache(attentions),
        "yes" if has_no_scores else _fused(by_scores),
        ", ".join(dict.fromkeys(a.forms_weights for a in attentions.values())),
        "no" if has_no_scores else "yes",
        _positions(attentions) if has_no_scores else "yes",
        ", ".join(f"{n} (max_length)" for n in sorted(n for n in limits if n is not None)) or "any",
    )


def _fused(attentions: list[ScoreAttention]) -> str:
    return "yes" if all(a.normaliser.is_fused for a in attentions) else "no"


def _positions(attentions: dict[str, Attention]) -> str:
    return "rotary" if any(a.rotates for a in attentions.values()) else "no"


def _cache(attentions: dict[str, Attention]) -> str:
    growing = [a for site, a in attentions.items() if SITE_KINDS[site] == "causal"]
    if not growing:
        return "cross only"
    cache = growing[0].make_cache(static=False)
    return "keys, values" if isinstance(cache, KeyValueCache) else "constant state"


def formula_row(name: str) -> tuple[str, ...]:
    """Return name, formula and source, from the comment in the first line of the yaml."""
    text = (config_dir() / "attention" / f"{name}.yaml").read_text(encoding="utf-8")
    match = re.match(r"# (.+?)(?: \(([^()]+)\))?\n", text)
    formula, source = match.groups(default="") if match else ("", "")
    return f"`{name}`", formula, source


def formulas() -> str:
    """Return the variants of `conf/attention/` and their formulas as a markdown table."""
    rows = map(formula_row, group_choices("attention"))
    return markdown_table(("choice", "weights", "source"), rows, numeric=False)


def capabilities() -> str:
    """Return the capabilities of the variants as a markdown table."""
    return markdown_table(HEADER, map(capability_row, group_choices("attention")), numeric=False)


TABLES = {"formulas": formulas, "capabilities": capabilities}  # by marker in the page

if __name__ == "__main__":
    print_or_write("formulas and capabilities of the attention variants", TABLES)

"""A figure of each kind, of made-up tables, for tests of what holds for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headwise.analysis.alpha_figures import alpha_histograms, alpha_start_end
from headwise.analysis.attention_figures import LayerMaps, attention_maps
from headwise.analysis.density_figures import density_layers, density_violins
from headwise.analysis.plots import alpha_figure, curves_figure, diversity_figure
from headwise.report.figures_curves import bleu_curves, diversity_layers, pruning_curves
from headwise.schema import SITES

RULES = ("softmax", "entmax15", "alpha_entmax")
N_LAYERS, N_HEADS = 3, 4
CORPUS = "multi30k de → en"


def alphas(seed: int) -> dict[str, list[list[float]]]:
    """α of every head of a run."""
    drawn = np.random.default_rng(seed)
    return {site: drawn.uniform(1.05, 1.95, (N_LAYERS, N_HEADS)).tolist() for site in SITES}


def density_rows(rule: str, n_bins: int = 20) -> list[dict[str, Any]]:
    """A histogram a head: softmax all dense, others spread out with some dense queries."""
    rows = []
    for site, layer, head in _places():
        shares = [0] * n_bins if rule == "softmax" else [10 + head * b for b in range(n_bins)]
        for place, n_queries in enumerate([*shares, 100]):
            low, high = place / n_bins, min(1.0, (place + 1) / n_bins)
            row = {"site": site, "layer": layer, "head": head, "low": low, "high": high}
            rows.append({**row, "n_queries": n_queries})
    return rows


def head_rows(rule: str) -> list[dict[str, Any]]:
    """Mean density of every head."""
    return [
        {"site": s, "layer": layer, "head": h, "density": 1.0 if rule == "softmax" else 0.2 * h}
        for s, layer, h in _places()
    ]


def layer_rows(base: float) -> list[dict[str, Any]]:
    """Diversity of every layer."""
    return [
        {"site": site, "layer": layer, "diversity_heads": base + layer / 20, "diversity_keys": base}
        for site in SITES
        for layer in range(1, N_LAYERS + 1)
    ]


def pruning_rows(best: float) -> list[dict[str, Any]]:
    """BLEU with ever fewer heads, of all sites and of each."""
    return [
        {"sites": sites, "n_removed": n, "fraction": n / 10, "bleu": best - n * n / 4, "loss": 2.0}
        for sites in (";".join(SITES), *SITES)
        for n in range(11)
    ]


def maps(n_layers: int = 2, n_heads: int = 4, n_pieces: int = 9) -> list[LayerMaps]:
    """Weights with zeros, under a causal mask."""
    drawn = np.random.default_rng(1)
    allowed = np.tril(np.ones((n_heads, n_pieces, n_pieces), dtype=bool))
    return [
        LayerMaps(
            layer,
            list(range(1, n_heads + 1)),
            np.maximum(drawn.uniform(-0.5, 1, allowed.shape), 0) * allowed,
            allowed,
            [1.5] * n_heads,
        )
        for layer in range(1, n_layers + 1)
    ]


def pieces(n: int) -> list[str]:
    """Names of pieces."""
    return [f"▁wordpiece{place}"[: 3 + place % 12] for place in range(n)]


def _places() -> list[tuple[str, int, int]]:
    return [
        (site, layer, head)
        for site in SITES
        for layer in range(1, N_LAYERS + 1)
        for head in range(1, N_HEADS + 1)
    ]


def _records() -> list[dict[str, Any]]:
    diversity = {site: [[0.2], [0.3], [0.4]] for site in SITES}
    return [{"update": u, "alpha": alphas(1), "diversity": diversity} for u in (0, 1000, 2000)]


def _three(rows: Callable[[str], Any]) -> dict[str, list[Any]]:
    return {rule: [rows(rule)] * 3 for rule in RULES}


def _many(rows: Callable[[str], Any]) -> dict[str, list[Any]]:
    return {f"row {place} with a long name": [rows("entmax15")] for place in range(10)}


FIGURES: dict[str, Callable[[], Any]] = {
    "alpha": lambda: alpha_figure(_records()),
    "diversity": lambda: diversity_figure(_records()),
    "curves": lambda: curves_figure(
        [{"update": u, "train/loss": 5.0 - u, "valid/bleu": 10.0 + u} for u in range(4)]
    ),
    "alpha_histograms": lambda: alpha_histograms([alphas(1), alphas(2)], f"α-entmax, {CORPUS}"),
    "alpha_start_end": lambda: alpha_start_end([(alphas(1), alphas(2))], f"α-entmax, {CORPUS}"),
    "density_violins": lambda: density_violins(_three(density_rows), CORPUS),
    "density_violins_many": lambda: density_violins(_many(density_rows), CORPUS),
    "density_layers": lambda: density_layers(_three(head_rows), CORPUS),
    "diversity_layers": lambda: diversity_layers(
        {rule: [layer_rows(0.3), layer_rows(0.4)] for rule in RULES}, what=CORPUS
    ),
    "pruning": lambda: pruning_curves({rule: [pruning_rows(30)] for rule in RULES}, CORPUS),
    "pruning_one": lambda: pruning_curves({"alpha_entmax": [pruning_rows(30)]}, CORPUS),
    "bleu": lambda: bleu_curves(
        {
            f"corpus {number} xx → yy": {
                rule: [{500.0: 10.0 + number, 1000.0: 20.0 + seed} for seed in range(3)]
                for rule in RULES
            }
            for number in range(4)
        }
    ),
    "attention": lambda: attention_maps("cross", maps(), pieces(9), pieces(9), "Ein Satz.")[0],
    "attention_long": lambda: attention_maps(
        "decoder_self", maps(1, 3, 40), pieces(40), pieces(40), "Ein langer Satz. " * 8
    )[0],
    "attention_small": lambda: attention_maps(
        "encoder_self", maps(1, 1, 2), pieces(2), pieces(2), "Ein Satz, der breiter ist."
    )[0],
}

"""One figure of each kind from made-up tables, for tests of all figures."""

from itertools import product

import numpy as np
import pandas as pd

from headwise.config.schema import SITES
from headwise.plots import runs as plots
from headwise.plots.attention_maps import LayerMaps, attention_maps
from headwise.plots.training import training_figures

RULES = ("softmax", "entmax15", "alpha_entmax")
N_LAYERS, N_HEADS = 3, 4
PLACES = [
    {"site": site, "layer": layer, "head": head}
    for site, layer, head in product(SITES, range(1, N_LAYERS + 1), range(1, N_HEADS + 1))
]
CORPUS = "multi30k de → en"


def alphas(seed):
    """α of every head of a run."""
    drawn = np.random.default_rng(seed)
    return {site: drawn.uniform(1.05, 1.95, (N_LAYERS, N_HEADS)).tolist() for site in SITES}


def alpha_rows():
    """α of every head at the start and at the end."""
    drawn = np.random.default_rng(1).uniform(1.05, 1.95, (len(PLACES), 2))
    return [{**p, "start": a, "end": b} for p, (a, b) in zip(PLACES, drawn.tolist(), strict=True)]


def density_rows(rule, n_bins=20):
    """A histogram per head: softmax is dense, others are spread, with some dense queries."""
    return [
        {
            **place,
            "low": number / n_bins,
            "high": min(1.0, (number + 1) / n_bins),
            "n_queries": 100 if number == n_bins else 0 if rule == "softmax" else 10 + number,
        }
        for place in PLACES
        for number in range(n_bins + 1)
    ]


def layer_rows(base=0.2):
    """Diversity of every layer."""
    return [
        {"site": site, "layer": layer, "diversity_heads": base + layer / 20}
        for site, layer in product(SITES, range(1, N_LAYERS + 1))
    ]


def pruning_rows(best=30):
    """Scores with a decreasing number of heads, of all sites and of each."""
    return [
        {"sites": sites, "fraction": n / 10, "score": best - n * n / 4, "metric": "BLEU"}
        for sites, n in product((plots.ALL_HEADS, *SITES), range(11))
    ]


def table(rows, names=RULES, n_runs=2):
    """The rows of every run, with the columns `name` and `run`."""
    runs = [(name, f"{name} {n}") for name in names for n in range(n_runs)]
    tables = [pd.DataFrame(rows(name)).assign(name=name, run=run) for name, run in runs]
    return pd.concat(tables, ignore_index=True)


def score_rows(name):
    """Validation scores of one run on four corpora."""
    return [
        {"corpus": f"corpus {number}", "metric": "BLEU", "update": update, "score": number + update}
        for number, update in product(range(4), (500, 1000))
    ]


def maps(n_layers=2, n_heads=4, n_tokens=9):
    """Weights with zeros, under a causal mask."""
    drawn = np.random.default_rng(1)
    allowed = np.tril(np.ones((n_heads, n_tokens, n_tokens), dtype=bool))
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


def tokens(n):
    """Names of tokens."""
    return [f"▁wordpiece{place}"[: 3 + place % 12] for place in range(n)]


def attention(site, n_layers, n_heads, n, title):
    """Attention maps of a sentence of `n` tokens."""
    return attention_maps(site, maps(n_layers, n_heads, n), tokens(n), tokens(n), title)


HEADS = [
    {"update": update, "alpha": alphas(1), "diversity": {site: [[0.2], [0.3]] for site in SITES}}
    for update in (0, 1000, 2000)
]
METRICS = [{"update": u, "train/loss": 5.0 - u, "valid/bleu": 10.0 + u} for u in range(4)]
MANY = [f"row {place} with a long name" for place in range(10)]
FIGURES = {
    "alpha": lambda: training_figures(HEADS, [], {})["alpha"],
    "diversity": lambda: training_figures(HEADS, [], {})["diversity"],
    "curves": lambda: training_figures([], METRICS, {"loss": "loss", "bleu": "BLEU"})["curves"],
    "alpha_histograms": lambda: plots.alpha_histograms(table(lambda _: alpha_rows()), CORPUS),
    "alpha_start_end": lambda: plots.alpha_start_end(table(lambda _: alpha_rows()), CORPUS),
    "density_violins": lambda: plots.density_violins(table(density_rows), CORPUS),
    "density_violins_many": lambda: plots.density_violins(table(density_rows, MANY), CORPUS),
    "diversity_layers": lambda: plots.diversity_layers(table(lambda _: layer_rows()), what=CORPUS),
    "pruning": lambda: plots.pruning_curves(table(lambda _: pruning_rows()), CORPUS),
    "scores": lambda: plots.score_curves(table(score_rows)),
    "attention": lambda: attention("cross", 2, 4, 9, "Ein Satz."),
    "attention_small": lambda: attention("encoder_self", 1, 1, 2, "Ein Satz, der breiter ist."),
}

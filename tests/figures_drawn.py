"""One figure of each kind from made-up tables, for tests of all figures."""

from itertools import product

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

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


def attention(site, n_layers, n_heads, n, title, *note):
    """Attention maps of a sentence of `n` tokens."""
    return attention_maps(site, maps(n_layers, n_heads, n), tokens(n), tokens(n), title, *note)


HEADS = [
    {
        "update": update,
        "alpha": alphas(1 + update),
        "diversity": {site: [[0.2], [0.3]] for site in SITES},
        "p of/ours": {"cross": [[0.5, None], [], [0.4 + update / 10_000]]},
    }
    for update in (0, 1000, 2000)
] + [{"update": 2000, "density": {"cross": [[0.5]]}}]
METRICS = [{"update": u, "train/loss": 5.0 - u, "valid/bleu": 10.0 + u} for u in range(4)]
METRICS += [{"update": 3, "valid/loss": 4.5, "valid/nll": 2.0}, {"update": 4, "nonfinite": ["x"]}]
LABELS = {"loss": "loss per target token", "bleu": "BLEU"}
MANY = [f"row {place} with a long name" for place in range(10)]
FIGURES = {
    "alpha": lambda: training_figures(HEADS, [], {}, CORPUS)["alpha"],
    "diversity": lambda: training_figures(HEADS, [], {})["diversity"],
    "heads-p-of-ours": lambda: training_figures(HEADS, [], {})["heads-p-of-ours"],
    "curves": lambda: training_figures([], METRICS, LABELS)["curves"],
    "alpha_histograms": lambda: plots.alpha_histograms(table(lambda _: alpha_rows()), CORPUS),
    "alpha_start_end": lambda: plots.alpha_start_end(table(lambda _: alpha_rows()), CORPUS),
    "density_violins": lambda: plots.density_violins(table(density_rows), CORPUS),
    "density_violins_many": lambda: plots.density_violins(table(density_rows, MANY), CORPUS),
    "diversity_layers": lambda: plots.diversity_layers(table(lambda _: layer_rows()), what=CORPUS),
    "pruning": lambda: plots.pruning_curves(table(lambda _: pruning_rows()), CORPUS),
    "scores": lambda: plots.score_curves(table(score_rows)),
    "attention": lambda: attention("cross", 2, 4, 9, "Ein Satz.", "softmax, trained on it."),
    "attention_small": lambda: attention("encoder_self", 1, 1, 2, "Ein Satz, der breiter ist."),
}


def shown_text(text):
    return " ".join(text.split())  # long ones are wrapped


def points(axes):
    """The points of every line; lines of legends have none."""
    return [line.get_xydata().tolist() for line in axes.lines if len(line.get_xdata())]


def cells(axes):
    """Which cells of a map are grey, and the weights of the drawn cells."""
    masked, weights = (image.get_array() for image in axes.images)
    return ~np.ma.getmaskarray(masked), weights.filled(np.nan)


def extent(collection, axes):
    """Corners of points, of a violin or of a band; the points themselves if there are any."""
    drawn = collection.get_offsets()
    is_band = len(drawn) == 1 and not drawn.any()
    return (collection.get_datalim(axes.transData).get_points() if is_band else drawn).tolist()


def axes_record(axes):
    """What one panel of a figure shows."""
    legend = axes.get_legend()
    ticks = axes.get_xticklabels() if isinstance(_formatter(axes), FuncFormatter) else []
    return {
        "title": axes.get_title(),
        "labels": [shown_text(axes.get_xlabel()), shown_text(axes.get_ylabel())],
        "ticks": [tick.get_text() for tick in ticks],
        "texts": [text.get_text() for text in axes.texts],
        "legend": [text.get_text() for text in legend.texts] if legend else [],
        "y": list(map(float, axes.get_ylim())),
        "lines": points(axes),
        "bars": [[float(b.get_x()), float(b.get_height())] for b in axes.patches if b.get_height()],
        "areas": [extent(one, axes) for one in axes.collections],
        "maps": [np.nan_to_num(cells(axes)[1], nan=-1.0).tolist()] if axes.images else [],
    }


def _formatter(axes):
    return axes.xaxis.get_major_formatter()


def figure_record(figure):
    """What a figure shows, except its style."""
    texts = [shown_text(figure.get_suptitle()), shown_text(figure.get_supxlabel())]
    return {"texts": texts, "panels": list(map(axes_record, figure.axes))}

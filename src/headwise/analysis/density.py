"""Density: the share of visible keys that a query uses (Correia et al. 2019, section 5.1).

A key is used if its weight is not exactly 0. All real tokens count as queries and keys, the
end-of-sentence token included. The first position of the decoder has one visible key, so its
density is always 1.

Axes: B batch, H heads, Q queries, K keys, N sentences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headwise.analysis.observe import Observation

if TYPE_CHECKING:
    from headwise.data.batch import Batch

N_BINS = 20  # of equal width, below 1; one more bin counts densities of exactly 1

LENGTH_RTOL = 0.25  # max relative difference in key count of compared sentences
MIN_SIMILAR = 20  # with fewer compared sentences the result is NaN
SPARSE_MEAN = 0.5  # a head below this mean density is normally sparse
MIN_Z = 3.0  # z-score above which a sentence is listed
MAX_PER_HEAD = 3  # sentences listed per head

Place = tuple[str, int]


class Densities:
    """Accumulates the density of every head, by query and by sentence.

    Args:
        n_sentences: number of sentences in the text.
    """

    def __init__(self, n_sentences: int) -> None:
        self._n_sentences = n_sentences
        self._heads: dict[Place, tuple[int, ...]] = {}
        self._is_valid: dict[Place, Tensor] = {}  # (H,)
        self._histograms: dict[Place, Tensor] = {}  # (H, bins)
        self._densities: dict[Place, npt.NDArray[np.float64]] = {}  # (H, N)
        self._n_keys: dict[str, npt.NDArray[np.int64]] = {}  # by site, (N,)

    def add(self, batch: Batch, obs: Observation) -> None:
        """Add the weights of one attention on one batch."""
        place, n_heads = (obs.site, obs.layer), len(obs.head_numbers)
        used_BHQ, visible_BHQ = (obs.weights_BHQK != 0).sum(-1), obs.allowed_BHQK.sum(-1)
        if place not in self._heads:
            self._heads[place] = obs.head_numbers
            self._is_valid[place] = torch.ones_like(obs.is_valid_H1.flatten())
            self._histograms[place] = used_BHQ.new_zeros(n_heads, N_BINS + 1)
            self._densities[place] = np.full((n_heads, self._n_sentences), np.nan)
        self._is_valid[place] &= obs.is_valid_H1.flatten()
        # integers: rounding must not move a query to another bin
        bins_BHQ = (used_BHQ * N_BINS).div(visible_BHQ.clamp(min=1), rounding_mode="floor")
        heads_H1 = torch.arange(n_heads, device=bins_BHQ.device)[:, None]
        flat = (heads_H1 * (N_BINS + 1) + bins_BHQ)[visible_BHQ > 0]
        counts = flat.bincount(minlength=n_heads * (N_BINS + 1))
        self._histograms[place] += counts.view(n_heads, N_BINS + 1)
        is_query_BHQ = visible_BHQ > 0
        block_BHQ = obs.measured(used_BHQ.double() / visible_BHQ.clamp(min=1))
        density_BHN = obs.whole("density", block_BHQ.where(is_query_BHQ, 0))
        is_query_BHN = obs.whole("has density", is_query_BHQ)
        if density_BHN is None or is_query_BHN is None:
            return
        means_BH = density_BHN.sum(-1) / is_query_BHN.sum(-1)
        self._densities[place][:, batch.rows] = means_BH.T.cpu().numpy()
        lengths_B = batch.columns[obs.keys].lengths_B
        n_keys = self._n_keys.setdefault(obs.site, np.zeros(self._n_sentences, np.int64))
        n_keys[batch.rows] = lengths_B.cpu().numpy()

    def histograms(self) -> list[dict[str, Any]]:
        """Return one row per head and bin, low <= density < high; the last bin is [1, 1]."""
        edges = [index / N_BINS for index in range(N_BINS + 1)]
        return [
            {
                **_key(place, number),
                "low": edges[index],
                "high": edges[min(index + 1, N_BINS)],
                "n_queries": int(n_queries),
            }
            for place, numbers in self._heads.items()
            for head, number in enumerate(numbers)
            if self._is_valid[place][head]
            for index, n_queries in enumerate(self._histograms[place][head].tolist())
        ]

    def unusual_sentences(self) -> list[dict[str, Any]]:
        """Return the sentences in which a normally sparse head is unusually dense.

        Density depends on the number of keys, so a sentence is compared with those of similar
        length. At most `MAX_PER_HEAD` per head, the largest z-score first.
        """
        rows = []
        for place, numbers in self._heads.items():
            n_keys_N = self._n_keys[place[0]]
            for number, density_N in zip(numbers, self._densities[place], strict=True):
                mean = float(density_N.mean())
                if not mean < SPARSE_MEAN:  # NaN: not measured
                    continue
                expected_N, std_N = by_length(density_N, n_keys_N)
                with np.errstate(invalid="ignore", divide="ignore"):
                    z_N = (density_N - expected_N) / std_N
                top = [i for i in np.argsort(-z_N, kind="stable") if z_N[i] > MIN_Z]
                rows += [
                    {
                        **_key(place, number),
                        "sentence": int(index) + 1,
                        "n_keys": int(n_keys_N[index]),
                        "density": float(density_N[index]),
                        "expected": float(expected_N[index]),
                        "z_score": float(z_N[index]),
                        "head_mean": mean,
                    }
                    for index in top[:MAX_PER_HEAD]
                ]
        return rows


def _key(place: Place, head: int) -> dict[str, Any]:
    return {"site": place[0], "layer": place[1], "head": head}


def by_length(
    values_N: npt.NDArray[np.float64], lengths_N: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and standard deviation over sentences of similar length, each (N,).

    NaN where there are fewer than `MIN_SIMILAR` such sentences.
    """
    means_N, stds_N = np.full(len(values_N), np.nan), np.full(len(values_N), np.nan)
    for length in np.unique(lengths_N):
        is_near_N = np.abs(lengths_N - length) <= LENGTH_RTOL * length
        if is_near_N.sum() >= MIN_SIMILAR:
            has_length_N = lengths_N == length
            means_N[has_length_N] = values_N[is_near_N].mean()
            stds_N[has_length_N] = values_N[is_near_N].std()
    return means_N, stds_N

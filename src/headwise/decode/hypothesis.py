"""Results of a search, its length limit and the check of its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headwise.config.fields import check_bounds
from headwise.config.schema import DecodeConfig
from headwise.errors import require
from headwise.precision import check_precision


@dataclass(frozen=True)
class SearchRecord:
    """Statistics of the search for one sentence under a sparse output map.

    Attributes:
        is_exact: whether no hypothesis with a probability was dropped, so that the result is the
            best of all sentences with a probability within the length limit (if there is one).
            Stopping by the bound on live hypotheses drops nothing; see `headwise.decode.beam`.
        n_possible: tokens with a probability, summed over all steps of all live hypotheses, without
            pad and bos.
        n_steps: the number of these steps.
    """

    is_exact: bool
    n_possible: int
    n_steps: int


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one source sentence, as target ids.

    Attributes:
        ids: generated ids without bos and eos.
        score: log_prob / length**penalty; hypotheses are ranked by it.
        log_prob: natural log of the model's probability of `ids` and, if finished, of eos.
        finished: whether eos was generated; False if the sentence was cut at the length limit.
        search: statistics of the search; None unless the output map is sparse.
    """

    ids: tuple[int, ...]
    score: float
    log_prob: float
    finished: bool
    search: SearchRecord | None = field(default=None, compare=False, repr=False)

    @property
    def n_tokens(self) -> int:
        """Number of tokens that `log_prob` sums over: the ids, and eos if finished."""
        return len(self.ids) + self.finished


def penalised(log_prob: float, n_tokens: int, length_penalty: float) -> float:
    """log_prob / n_tokens**length_penalty; `n_tokens` counts eos (0 tokens: the log_prob)."""
    return log_prob / math.pow(max(n_tokens, 1), length_penalty)


def make_hypothesis(
    ids: list[int], log_prob: float, finished: bool, length_penalty: float
) -> Hypothesis:
    """Return a hypothesis with its score."""
    score = penalised(log_prob, len(ids) + finished, length_penalty)
    return Hypothesis(tuple(ids), score, log_prob, finished)


def length_limit(n_source: int, config: DecodeConfig, max_positions: int | None = None) -> int:
    """Return the maximum number of tokens, eos included: ratio * source + extra, at least 1.

    Args:
        n_source: source tokens, without eos.
        max_positions: target positions of the model; None: unlimited.
    """
    scaled = config.max_length_ratio * n_source
    # 2.3 * 50 is 114.99999999999999
    limit = math.floor(scaled * (1 + 1e-12)) + config.max_length_extra
    if max_positions is not None:
        limit = min(limit, max_positions)
    return max(limit, 1)


def search_name(config: DecodeConfig) -> str:
    """Return the name of a search, such as "beam 5"."""
    return "greedy" if config.beam == 1 else f"beam {config.beam}"


def check_decode_config(config: DecodeConfig) -> None:
    """Raise ConfigError, naming the key, for invalid settings."""
    is_search = isinstance(config, DecodeConfig)
    require(is_search, "decode", "beam or greedy", type(config).__name__)
    check_precision(config.precision, "decode.precision")
    check_bounds(config, "decode.")
    allowed = f"at most decode.beam={config.beam}"
    require(config.n_best <= config.beam, "decode.n_best", allowed, config.n_best)
    is_limited = config.max_length_ratio > 0 or config.max_length_extra > 0
    require(is_limited, "decode.max_length_extra", "at least 1 when the ratio is 0", 0)

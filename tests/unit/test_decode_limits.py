"""Limits on lengths and batches, and checks of the decode settings."""

import numpy as np
import pytest
import torch

from headwise.config.schema import DecodeConfig
from headwise.data.plan import longest_first
from headwise.decode.beam import beam_search
from headwise.decode.hypothesis import length_limit


@pytest.mark.parametrize(
    ("n_source", "ratio", "extra", "max_positions", "limit"),
    [
        (7, 2.0, 10, None, 24),
        (7, 2.0, 10, 24, 24),
        (7, 2.0, 10, 23, 23),
        (3, 1.5, 0, None, 4),  # whole tokens only
        (3, 1.5, 2, 32, 6),
        (50, 2.3, 0, None, 115),  # 2.3 * 50 is 114.99999999999999
        (100, 0.29, 0, None, 29),
        (5, 0.1, 0, None, 1),  # a token at the least
        (5, 0.1, 0, 32, 1),
        (5, 0.0, 3, None, 3),
    ],
)
def test_limits_of_length(n_source, ratio, extra, max_positions, limit):
    config = DecodeConfig(max_length_ratio=ratio, max_length_extra=extra)
    assert length_limit(n_source, config, max_positions) == limit


def test_empty_input_gives_empty_output():
    model = None
    assert beam_search(model, [], [], torch.device("cpu"), beam=2) == []


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "batches"),
    [
        ([3, 5, 2, 5, 3, 3], 10, [[1, 3], [0, 4, 5], [2]]),  # 10 tokens fit, padding counts
        ([4, 12, 4], 8, [[1], [0, 2]]),  # a line longer than a batch is a batch alone
        ([], 8, []),
    ],
)
def test_batches_are_full(lengths, max_tokens, batches):
    assert [rows.tolist() for rows in longest_first(np.array(lengths), max_tokens)] == batches

"""Tables of an analysis are read exactly as written."""

import pytest

from headwise.analysis.tables import LAYERS
from headwise.errors import DataError

ROWS = [
    {"site": "cross", "layer": 1, "diversity_heads": 1 / 3, "diversity_keys": 1e-9},
    {"site": "cross", "layer": 2, "diversity_heads": 0.0, "diversity_keys": None},
]


def test_values_are_read_exactly_as_written(tmp_path):
    assert LAYERS.parse(LAYERS.text(ROWS), tmp_path) == ROWS


def test_unknown_columns_are_refused(tmp_path):
    with pytest.raises(KeyError, match="no columns"):
        LAYERS.text([{**ROWS[0], "density": 0.5}])
    text = LAYERS.text(ROWS).replace("diversity_keys", "diversity")
    with pytest.raises(DataError, match="another version"):
        LAYERS.parse(text, tmp_path)

"""What the pruning tables of a run say."""

import json

from headwise.runs.record import Record
from headwise.studies.pruning import effective_heads


def test_effective_heads_are_left_before_the_first_significant_loss(tmp_path):
    assert effective_heads(Record(tmp_path)) is None
    steps = ((0, 1.0), (0.3, 0.01), (-0.2, 0.3), (-0.4, 0.04), (-0.1, 0.5))  # difference, p-value
    rows = [
        {"cross": 4 - n, "encoder_self": 4, "difference": difference, "p_value": p_value}
        for n, (difference, p_value) in enumerate(steps)
    ]
    (tmp_path / "pruning").mkdir()
    content = {"sites": ["cross", "encoder_self"], "rows": rows}
    (tmp_path / "pruning" / "curve.json").write_text(json.dumps(content), encoding="utf-8")
    assert effective_heads(Record(tmp_path)) == 6

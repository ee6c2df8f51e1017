"""How runs are named after the words that chose them."""

from __future__ import annotations

import pytest

from headwise.config.folders import composed
from headwise.config.schema import typed
from headwise.report.run_names import choice_name, class_word


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ((), "softmax"),
        (("attention=alpha_entmax", "scaling=length"), "alpha_entmax, scaling length"),
        (("attention@sites.cross=linear",), "softmax (cross linear)"),
        (
            ("pattern=strided", "repulsion=svgd", "gates=hard_concrete"),
            "softmax, pattern strided, repulsion svgd, gates hard_concrete",
        ),
    ],
)
def test_a_run_is_named_by_what_was_typed(chosen: tuple[str, ...], told: str) -> None:
    assert choice_name(typed(composed("attention=softmax", *chosen))) == told


def test_a_class_of_ones_own_is_named_by_itself() -> None:
    assert class_word("mine.attention.Tempered") == "Tempered"
    assert class_word("Tempered") == "Tempered"

"""Names of runs, from their settings."""

import pytest

from headwise.config.folders import composed
from headwise.config.register import typed
from headwise.studies.names import choice_name, class_word


@pytest.mark.parametrize(
    ("chosen", "name"),
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
def test_run_is_named_by_its_overrides(chosen, name):
    assert choice_name(typed(composed("attention=softmax", *chosen))) == name


def test_user_class_is_named_by_its_class_name():
    assert class_word("mine.attention.Tempered") == "Tempered"
    assert class_word("Tempered") == "Tempered"

"""Mistakes in a user's normaliser are named before training."""

import pytest
from torch import relu

from headwise.attention.build import check_weights
from headwise.attention.normaliser import Normaliser
from headwise.attention.place import Place
from headwise.errors import ConfigError

PLACE = Place("encoder_self", 1, 2, 4)


class Bad(Normaliser):
    """ReLU of the scores, with one mistake."""

    def __init__(self, mistake):
        super().__init__(PLACE)
        self.mistake = mistake

    def forward(self, scores_BHQK, context):
        mask = context.dense_mask(scores_BHQK)
        assert mask is not None
        weights_BHQK = relu(scores_BHQK)
        if self.mistake != "weights of masked keys":
            weights_BHQK = weights_BHQK * mask
        total_BHQ1 = weights_BHQK.sum(-1, keepdim=True)
        if self.mistake != "non-finite":
            total_BHQ1 = total_BHQ1.clamp(min=1e-6)
        weights_BHQK = weights_BHQK / total_BHQ1
        return weights_BHQK.mean(1) if self.mistake == "shape" else weights_BHQK


@pytest.mark.parametrize("mistake", ["shape", "non-finite", "weights of masked keys"])
def test_mistake_is_named(mistake):
    with pytest.raises(ConfigError, match=f"Bad.forward.*{mistake}"):
        check_weights(Bad(mistake))


def test_correct_normaliser_passes():
    check_weights(Bad("none"))

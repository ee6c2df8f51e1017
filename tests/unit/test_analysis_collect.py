"""Statistics of heads against a count by hand, with padding in every batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from headwise.analysis.collect import HeadTable, alphas, head_statistics
from headwise.attention.alpha_entmax import AlphaEntmax
from headwise.attention.base import Attention, Normaliser, Place, ScoreContext
from headwise.attention.scores import ScoreAttention
from headwise.model.transformer import Transformer
from headwise.schema import ModelConfig

CPU = torch.device("cpu")
LAYERS, HEADS = 2, 2
SENTENCES = [  # source ids, target ids with bos in front; lengths differ, so batches are padded
    ([5, 6, 7, 8, 9], [2, 4, 5]),
    ([6, 4], [2, 7, 8, 9, 5, 6]),
    ([9], [2]),
    ([4, 4, 8, 7], [2, 9, 9, 4]),
]


@dataclass
class Batch:
    source_BS: Tensor
    source_lengths_B: Tensor
    target_in_BT: Tensor
    target_lengths_B: Tensor

    def to(self, device: torch.device) -> Batch:
        return self


class Dense(Normaliser):
    """Softmax, written out."""

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        mask = context.dense_mask(scores_BHQK)
        if mask is not None:
            scores_BHQK = scores_BHQK.masked_fill(~mask, -math.inf)
        return scores_BHQK.softmax(-1)


class Thresholded(Dense):
    """Keys far below the largest weight get exactly zero: sparse, unlike from query to query."""

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        weights = super().forward(3 * scores_BHQK, context)
        weights = weights.where(weights > 0.8 * weights.amax(-1, keepdim=True), 0.0)
        return weights / weights.sum(-1, keepdim=True)


class Signed(Dense):
    """Weights below zero, as tanh gives."""

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        return super().forward(scores_BHQK, context) - 0.2


class Weightless(ScoreAttention):
    """An attention that forms no weight matrix."""

    def forward(self, *args: object, **kwargs: object):  # type: ignore[no-untyped-def]
        output = super().forward(*args, **kwargs)  # type: ignore[arg-type]
        return type(output)(output.context_BQD, None)


def build(make_attention: Callable[[Place], Attention]) -> Transformer:
    config = ModelConfig(
        name="test", encoder_layers=LAYERS, decoder_layers=LAYERS, d_model=8, n_heads=HEADS, d_ff=8
    )
    return Transformer(config, 12, 12, True, make_attention, seed=3)


def with_normaliser(kind: type[Normaliser]) -> Callable[[Place], Attention]:
    return lambda place: ScoreAttention(place, kind(place), None, dropout=0.5)


def collate(sentences: list[tuple[list[int], list[int]]], extra: int = 0) -> Batch:
    def pad(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        width = max(map(len, rows)) + extra
        padded = [row + [0] * (width - len(row)) for row in rows]
        return torch.tensor(padded), torch.tensor([len(row) for row in rows])

    source_BS, source_lengths_B = pad([source for source, _ in sentences])
    target_in_BT, target_lengths_B = pad([target for _, target in sentences])
    return Batch(source_BS, source_lengths_B, target_in_BT, target_lengths_B)


def by_hand(model: Transformer) -> dict[str, HeadTable]:
    """Sentence by sentence, hence without padding; query by query; key by key."""
    values: dict[tuple[str, str, int, int], list[float]] = {}
    model.eval()
    for sentence in SENTENCES:
        batch = collate([sentence])
        with torch.no_grad():
            output = model(
                batch.source_BS, batch.source_lengths_B, batch.target_in_BT, need_weights=True
            )
        for site, layers in output.weights.items():
            for layer, weights_BHQK in enumerate(layers):
                for head in range(HEADS):
                    for query, row in enumerate(weights_BHQK[0, head].tolist()):
                        seen = row[: query + 1] if site == "decoder_self" else row
                        used = [weight for weight in seen if weight > 0]
                        entropy = -sum(weight * math.log(weight) for weight in used)
                        for name, value in (
                            ("density", len(used) / len(seen)),
                            ("entropy", entropy),
                        ):
                            values.setdefault((name, site, layer, head), []).append(value)
    return {
        name: {
            site: [
                [math.fsum(v := values[name, site, layer, head]) / len(v) for head in range(HEADS)]
                for layer in range(LAYERS)
            ]
            for site in ("encoder_self", "decoder_self", "cross")
        }
        for name in ("density", "entropy")
    }


def flat(table: HeadTable) -> list[float]:
    return [value for site in sorted(table) for layer in table[site] for value in layer]


@pytest.mark.parametrize("kind", [Thresholded, Dense])
@pytest.mark.parametrize("extra", [0, 3])
def test_padded_batches_give_what_counting_each_sentence_gives(
    kind: type[Normaliser], extra: int
) -> None:
    model = build(with_normaliser(kind))
    expected = by_hand(model)
    batches = [collate(SENTENCES[:3], extra), collate(SENTENCES[3:], extra)]
    found = head_statistics(model, batches, CPU)
    assert found["density"].keys() == {"encoder_self", "decoder_self", "cross"}
    assert flat(found["density"]) == pytest.approx(flat(expected["density"]), abs=1e-12)
    assert flat(found["entropy"]) == pytest.approx(flat(expected["entropy"]), abs=1e-5)
    if kind is Dense:
        assert set(flat(found["density"])) == {1.0}
    else:
        assert len(set(flat(found["density"]))) > 4  # the comparison had something to tell apart


def test_the_split_into_batches_and_their_order_do_not_matter() -> None:
    model = build(with_normaliser(Thresholded))
    one = head_statistics(model, [collate(SENTENCES)], CPU)
    many = head_statistics(model, [collate([s]) for s in reversed(SENTENCES)], CPU)
    for name in one:
        assert flat(one[name]) == pytest.approx(flat(many[name]), abs=1e-5)


def test_the_model_is_left_as_it_was() -> None:
    model = build(with_normaliser(Dense))
    model.train()
    model.encoder.eval()  # a part that somebody froze stays so
    before = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    first = head_statistics(model, [collate(SENTENCES)], CPU)
    assert [module.training for module in model.modules()] == before
    assert head_statistics(model, [collate(SENTENCES)], CPU) == first  # no dropout
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_measured_is_absent() -> None:
    def mixed(place: Place) -> Attention:
        if place.site == "cross":
            return Weightless(place, Dense(place), None, 0.0)
        kind = Signed if (place.site, place.layer) == ("encoder_self", 1) else Dense
        return ScoreAttention(place, kind(place), None, 0.0)

    density = head_statistics(build(mixed), [collate(SENTENCES)], CPU)["density"]
    assert density == {"encoder_self": [[], [1.0, 1.0]], "decoder_self": [[1.0, 1.0]] * 2}
    assert head_statistics(build(mixed), [], CPU) == {"density": {}, "entropy": {}}


def test_alphas_by_site_layer_and_head() -> None:
    def make(place: Place) -> Attention:
        if place.site == "decoder_self":
            return ScoreAttention(place, Dense(place), None, 0.0)
        start = 1.2 + 0.2 * place.layer
        return ScoreAttention(place, AlphaEntmax(place, alpha_init=start), None, 0.0)

    found = alphas(build(make))
    assert list(found) == ["encoder_self", "cross"]
    for layers in found.values():
        assert [len(heads) for heads in layers] == [HEADS] * LAYERS
        assert layers[0] == pytest.approx([1.4, 1.4])
        assert layers[1] == pytest.approx([1.6, 1.6])
    assert alphas(build(with_normaliser(Dense))) == {}

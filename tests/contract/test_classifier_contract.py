"""Contract of classifiers; their encoder is in `test_model_contract.py`.

Axes: B rows, N positions, C classes.
"""

import pytest
import torch
from torch import nn

from command_line import composer
from headwise.config.register import typed
from headwise.errors import ConfigError
from headwise.losses.loss import CrossEntropy
from headwise.model.build import build_classifier
from headwise.model.patch_embedding import patch_embedding
from headwise.model.places import site_alone

B, N, V, C, D = 3, 6, 13, 4, 16
SITE = "encoder_self"
SMALL = (
    *("model.encoder_layers=2", "model.decoder_layers=2", f"model.d_model={D}", "model.n_heads=2"),
    *("model.d_ff=32", "model.dropout=0", "model.attention_dropout=0"),
    "model.activation_dropout=0",
)
LENGTHS = torch.tensor([N, 4, 2])


@pytest.fixture(scope="module")
def make():
    with composer() as compose:

        def build(*overrides, table=None, **options):
            config = typed(compose([*SMALL, *overrides]))
            site = site_alone(config.model, SITE, "tokens")
            table = table or nn.Embedding(V, D)
            return build_classifier(config, table, C, site, **options).eval()

        yield build


def ids(n=N, fill=0):
    drawn = torch.randint(V, (B, N), generator=torch.Generator().manual_seed(0))
    drawn[torch.arange(N) >= LENGTHS[:, None]] = fill
    return torch.nn.functional.pad(drawn, (0, n - N), value=fill)


@pytest.mark.parametrize("n_cls", [0, 3])
def test_a_row_is_alone_and_padding_changes_nothing(make, n_cls):
    model = make("attention=alpha_entmax", f"model.cls_tokens={n_cls}").double()
    logits = model(ids(), LENGTHS)
    assert logits.shape == (B, 1, C)
    torch.testing.assert_close(model(ids(N + 3, fill=7), LENGTHS), logits)
    for row, n in enumerate(LENGTHS.tolist()):
        alone = model(ids()[row : row + 1, :n], LENGTHS[row : row + 1])
        torch.testing.assert_close(alone[0], logits[row])


def test_pools_are_those_of_cls_tokens_or_of_all_positions(make):
    states = torch.randn(B, N, D)
    shapes = {
        (3, "concat"): 3 * D,
        (3, "mean"): D,
        (3, "first"): D,
        (0, "mean"): D,
        (0, "first"): D,
    }
    for (n_cls, pool), width in shapes.items():
        model = make(f"model.cls_tokens={n_cls}", f"model.pool={pool}")
        assert model.output.weight.shape == (C, width)
        lengths = LENGTHS - min(n_cls, 2) + 1 if n_cls else LENGTHS
        pooled = model.pooled(states, lengths, n_cls)
        for row in range(B):
            chosen = states[row, : n_cls or int(lengths[row])]
            expected = {"concat": chosen.flatten(), "mean": chosen.mean(0), "first": chosen[0]}
            torch.testing.assert_close(pooled[row], expected[pool])


def test_default_pools(make):
    assert make("model.cls_tokens=2").pool == "concat"
    assert make().pool == "mean"
    with pytest.raises(ConfigError, match=r"model\.cls_tokens must be at least 1"):
        make("model.pool=concat")
    with pytest.raises(ConfigError, match=r"model\.pool.*maen.*mean"):
        make("model.pool=maen")


def test_class_weights_scale_the_loss_of_their_classes_only(make):
    weights = [1.0, 2.0, 0.5, 4.0]
    model, plain = make(class_weights=weights), make()
    states, targets = torch.randn(8, D), torch.tensor([0, 1, 2, 3, 3, 2, 1, 1])
    loss = CrossEntropy()
    loss_R, measure_R = plain.output.rows(states, targets, loss)
    sums = model.output.loss(states, targets, loss)
    torch.testing.assert_close(sums.loss, (loss_R * torch.tensor(weights)[targets]).sum())
    torch.testing.assert_close(sums.measure, measure_R.sum())
    torch.testing.assert_close(model.output.rows(states, targets, loss)[0], loss_R)


@pytest.mark.parametrize("patch", [1, 2])
def test_images_are_sequences_of_patches(make, patch):
    model = make(table=patch_embedding(patch, 3, D))
    values = torch.randint(256, (B, N, 3 * patch**2), generator=torch.Generator().manual_seed(1))
    logits = model(values, torch.full((B,), N))
    assert logits.shape == (B, 1, C)
    values[1, 2, 0] ^= 128
    changed = model(values, torch.full((B,), N))
    assert not torch.equal(changed[1], logits[1])
    assert torch.equal(changed[[0, 2]], logits[[0, 2]])

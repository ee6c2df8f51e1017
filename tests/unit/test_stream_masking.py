"""Masks of windows: which tokens are predicted, what replaces them, and what they depend on."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from headwise.data.loader import BatchLoader
from headwise.data.tokenizer import BYTE_MODEL, MASK, N_SPECIALS, Tokenizer
from headwise.tasks.stream.masking import (
    MaskedEvaluationWindows,
    MaskedTrainingWindows,
    Masking,
    MaskSettings,
)
from headwise.tasks.stream.stream import TokenStream

BERT = MaskSettings(0.15, 0.8, 0.1)
BYTES = Tokenizer(BYTE_MODEL)
TEXT = "".join(f"line {i} has words of {'i' * (i % 7 + 1)}\n" for i in range(40)).encode()
IDS = (np.frombuffer(TEXT, np.uint8) + N_SPECIALS).astype(np.uint16)
WINDOW = 20


def training(max_tokens=4 * WINDOW, seed=1, world_size=1):
    sizes = WINDOW, max_tokens, seed, world_size
    return MaskedTrainingWindows(TokenStream(IDS), 2, *sizes, masking=Masking(BERT, BYTES))


def evaluation(stream, max_tokens=100):
    masking = Masking(BERT, BYTES)
    return MaskedEvaluationWindows(stream, 2, WINDOW, max_tokens, masking=masking)


def original(batch):
    """Ids of a batch with the targets in their places."""
    ids_BN = batch.columns["tokens"].ids_BN.clone()
    ids_BN.view(-1)[batch.scored_R] = batch.targets_R
    return ids_BN


@pytest.mark.parametrize("n_tokens", [len(IDS), 47, 20, 7, 1])
def test_share_of_each_window_is_chosen_and_nothing_else_changes(n_tokens):
    ids = IDS[:n_tokens]
    rows = []
    for batch in evaluation(TokenStream(ids)):
        column, n = batch.columns["tokens"], len(batch)
        chosen = np.bincount(batch.scored_R.numpy() // column.ids_BN.shape[1], minlength=n)
        lengths = column.lengths_B.numpy()
        assert chosen.tolist() == np.maximum(1, np.rint(0.15 * lengths)).astype(int).tolist()
        assert batch.n_targets == batch.global_targets == chosen.sum()
        rows += [row[:n] for row, n in zip(original(batch).tolist(), lengths, strict=True)]
        assert not column.ids_BN[~column.is_real_BN].any()
    assert np.concatenate(rows).tolist() == ids.tolist()


def test_chosen_tokens_are_masked_replaced_or_kept_in_the_set_shares():
    stream = TokenStream(np.full(200 * 50, 100, np.uint16))
    masking = Masking(replace(BERT, mlm_probability=0.5), BYTES)
    batch = masking.batch(stream, np.arange(50) * 200, 200, np.arange(50), (1, 1))
    inputs = batch.columns["tokens"].ids_BN.flatten()[batch.scored_R]
    is_random = (inputs != MASK) & (inputs != 100)
    n_random = int(is_random.sum())
    assert float((inputs == MASK).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert n_random / len(inputs) == pytest.approx(0.1, abs=0.02)
    assert inputs[is_random].min() >= N_SPECIALS
    assert len(inputs[is_random].unique()) > 150
    assert inputs[is_random].max() < BYTES.vocab_size


def test_masks_differ_by_epoch_and_seed_alone():
    def drawn(windows, epoch, rows):
        batch = windows.collate(epoch, np.array(rows, np.int64))
        return ids_of(batch)

    rows = drawn(training(), 1, [0, 3, 5])
    assert drawn(training(max_tokens=1, world_size=3), 1, [5]) == rows[2:]
    assert drawn(training(), 1, [3, 0]) == [rows[1], rows[0]]
    assert drawn(training(), 1, []) == []
    aligned = [replace(training(seed=seed), aligned=True) for seed in (1, 2)]  # the same windows
    changed = [drawn(aligned[0], 1, [0]), drawn(aligned[0], 2, [0]), drawn(aligned[1], 1, [0])]
    assert len({str(row) for row in changed}) == 3


def test_masks_of_an_evaluation_are_fixed():
    batches = list(evaluation(TokenStream(IDS)))
    places = torch.cat([b.scored_R + b.rows[0] * WINDOW for b in batches])
    alone = list(evaluation(TokenStream(IDS), max_tokens=1))
    assert torch.equal(torch.cat([b.scored_R + b.rows[0] * WINDOW for b in alone]), places)
    few = replace(evaluation(TokenStream(IDS), max_tokens=1), max_windows=3)
    for batch, start in zip(few, few.starts, strict=True):
        assert torch.equal(batch.targets_R, alone[start // WINDOW].targets_R)


def test_ranks_together_equal_one_and_know_the_targets_of_all():
    whole = BatchLoader(training(4 * WINDOW))
    shares = [BatchLoader(training(2 * WINDOW, world_size=2), r, 2) for r in range(2)]
    for batch in islice(whole, 3 * whole.n_batches):
        parts = [next(share) for share in shares]
        assert {part.global_targets for part in parts} == {batch.n_targets}
        ids = {row: ids for part in parts for row, ids in zip(part.rows, ids_of(part), strict=True)}
        assert ids == dict(zip(batch.rows, ids_of(batch), strict=True))


def ids_of(batch):
    return batch.columns["tokens"].ids_BN.tolist()


def test_documents_of_a_window_are_segments():
    stream = TokenStream(IDS, starts=np.array([0, 3, 25]), document_mask=True)
    (batch, *_) = evaluation(stream)
    segments_BN = batch.columns["tokens"].segments_BN
    assert segments_BN is not None
    assert segments_BN[:2].tolist() == [[0] * 3 + [1] * 17, [0] * 5 + [1] * 15]

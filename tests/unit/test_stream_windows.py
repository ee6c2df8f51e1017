"""Windows of one long text: of a language model, and with masks of a masked one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.data.tokenizer import BYTE_MODEL, MASK, N_SPECIALS, Tokenizer
from headwise.errors import DataError
from headwise.tasks.stream.masked_lm import (
    MaskedEvaluationWindows,
    MaskedTrainingWindows,
    Masking,
    MaskSettings,
)
from headwise.tasks.stream.stream import TokenStream
from headwise.tasks.stream.windows import EvaluationWindows, TrainingWindows

IDS = np.random.default_rng(1).integers(0, 256, 203).astype(np.uint16)
START, WINDOW = 2, 10


def pairs(batch):
    """Pairs of input token and scored token, in order."""
    inputs = batch.scored(batch.columns["tokens"].ids_BN[:, :, None])[:, 0]
    return list(zip(inputs.tolist(), batch.targets_R.tolist(), strict=True))


def examples():
    return TrainingWindows(TokenStream(IDS), START, WINDOW, 35, 1)


@pytest.mark.parametrize("max_tokens", [5, 35, 10_000])
@pytest.mark.parametrize("n_tokens", [203, 200, 7, 1])
def test_every_token_is_scored_from_its_predecessor(n_tokens, max_tokens):
    ids = IDS[:n_tokens]
    batches = list(EvaluationWindows(TokenStream(ids), START, WINDOW, max_tokens))
    scored = [pair for batch in batches for pair in pairs(batch)]
    assert scored == list(zip([START, *ids[:-1].tolist()], ids.tolist(), strict=True))
    assert sum(batch.global_targets for batch in batches) == n_tokens
    for batch in batches:
        column = batch.columns["tokens"]
        assert len(batch) == 1 or column.ids_BN.numel() <= max(max_tokens, WINDOW)
        assert not column.ids_BN[~column.is_real_BN].any()
    assert [row for batch in batches for row in batch.rows] == list(range(-(-n_tokens // WINDOW)))


@pytest.mark.parametrize("min_context", [0, 1, 4, 9])
@pytest.mark.parametrize("n_tokens", [203, 11, 10, 3, 1, 0])
def test_overlapping_windows_score_every_token_once(n_tokens, min_context):
    stream = TokenStream(IDS[:n_tokens])
    windows = EvaluationWindows(stream, START, WINDOW, 35, min_context)
    scored = [pair for batch in windows for pair in pairs(batch)]
    assert scored == list(zip([START, *stream.ids[:-1].tolist()], stream.ids.tolist()))  # noqa: B905
    places = [i for batch in windows for i in (batch.scored_R % WINDOW).tolist()]
    assert all(place >= min_context for place in places[WINDOW:])
    n_scored = np.bincount([row for batch in windows for row in rows_of(batch)])
    assert [end - first for first, end in windows.scored] == n_scored.tolist()
    assert sum(map(len, windows)) == len(windows.starts)


@pytest.mark.parametrize("min_context", [0, 4])
def test_a_limit_scores_some_windows_of_the_whole_split_as_before(min_context):
    stream = TokenStream(IDS)
    limited = EvaluationWindows(stream, START, WINDOW, 35, min_context, max_windows=5)
    whole = EvaluationWindows(stream, START, WINDOW, 35, min_context)
    scored = [pair for batch in limited for pair in pairs(batch)]
    every = [pair for batch in whole for pair in pairs(batch)]
    assert len(limited.scored) == 5
    assert limited.scored[-1][0] > 150
    assert scored == [pair for first, end in limited.scored for pair in every[first:end]]
    assert [row for batch in limited for row in batch.rows] == list(range(5))


def rows_of(batch):
    """The window of each scored token."""
    width = batch.columns["tokens"].ids_BN.shape[1]
    return [batch.rows[place // width] for place in batch.scored_R.tolist()]


@pytest.mark.parametrize("aligned", [False, True])
def test_documents_are_predicted_from_the_start_token(aligned):
    starts = np.arange(0, len(IDS), 5)
    stream = TokenStream(IDS, starts=starts)
    before = [START if i % 5 == 0 else int(IDS[i - 1]) for i in range(len(IDS))]
    expected = list(zip(before, IDS.tolist(), strict=True))
    batches = list(EvaluationWindows(stream, START, WINDOW, 35))
    assert [pair for batch in batches for pair in pairs(batch)] == expected
    windows = TrainingWindows(stream, START, WINDOW, 35, 1, aligned=aligned)
    first_positions = set()
    for epoch in range(1, 9):
        trained = pairs(windows.collate(epoch, np.arange(3)))
        first = expected.index(trained[0])
        assert trained == expected[first : first + 3 * WINDOW]
        first_positions.add(first)
    assert (first_positions == {0}) == aligned


@pytest.mark.parametrize("min_context", [0, 4])
def test_segments_are_the_documents_of_scored_tokens(min_context):
    starts = np.array([0, 3, 4, 27, 199])
    stream = TokenStream(IDS, starts=starts, document_mask=True)
    windows = EvaluationWindows(stream, START, WINDOW, 35, min_context)
    documents = np.searchsorted(starts, np.arange(len(IDS)), side="right")
    for batch in windows:
        column = batch.columns["tokens"]
        segments_BN = column.segments_BN
        assert segments_BN is not None
        for row, segments in zip(batch.rows, segments_BN.numpy(), strict=True):
            first = row * (WINDOW - min_context)
            numbers = documents[first : first + WINDOW]
            assert segments[: len(numbers)].tolist() == (numbers - numbers[0]).tolist()
            assert (np.diff(segments) >= 0).all()
    with pytest.raises(DataError, match="one document"):
        TrainingWindows(TokenStream(IDS, document_mask=True), START, WINDOW, 35, 1)


def test_epochs_have_consecutive_windows_from_a_random_start():
    epochs = []
    for epoch in (1, 2, 3):
        rows = np.concatenate(examples().plan(epoch))
        assert len(rows) >= (len(IDS) - WINDOW) // WINDOW
        epochs.append(pairs(examples().collate(epoch, np.sort(rows))))
        text = list(zip([START, *IDS[:-1].tolist()], IDS.tolist(), strict=True))
        first = text.index(epochs[-1][0])
        assert epochs[-1] == text[first : first + len(rows) * WINDOW]
    assert epochs[0] != epochs[1] != epochs[2]


def test_text_shorter_than_a_window_is_refused():
    with pytest.raises(DataError, match=r"203 tokens, fewer than data\.window=204"):
        TrainingWindows(TokenStream(IDS), START, 204, 10, 1)
    assert len(TrainingWindows(TokenStream(IDS), START, 203, 10, 1).plan(1)) == 1


# Masks: which tokens are predicted, and what replaces them

BERT = MaskSettings(0.15, 0.8, 0.1)
BYTES = Tokenizer(BYTE_MODEL)
TEXT = "".join(f"line {i} has words of {'i' * (i % 7 + 1)}\n" for i in range(40)).encode()
TEXT_IDS = (np.frombuffer(TEXT, np.uint8) + N_SPECIALS).astype(np.uint16)
MASKED = 20


def training(max_tokens=4 * MASKED, seed=1, world_size=1):
    sizes = MASKED, max_tokens, seed, world_size
    return MaskedTrainingWindows(TokenStream(TEXT_IDS), 2, *sizes, masking=Masking(BERT, BYTES))


def evaluation(stream, max_tokens=100):
    masking = Masking(BERT, BYTES)
    return MaskedEvaluationWindows(stream, 2, MASKED, max_tokens, masking=masking)


def original(batch):
    """Ids of a batch with the targets in their places."""
    ids_BN = batch.columns["tokens"].ids_BN.clone()
    ids_BN.view(-1)[batch.scored_R] = batch.targets_R
    return ids_BN


@pytest.mark.parametrize("n_tokens", [len(TEXT_IDS), 47, 20, 7, 1])
def test_share_of_each_window_is_chosen_and_nothing_else_changes(n_tokens):
    ids = TEXT_IDS[:n_tokens]
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
    batches = list(evaluation(TokenStream(TEXT_IDS)))
    places = torch.cat([b.scored_R + b.rows[0] * MASKED for b in batches])
    alone = list(evaluation(TokenStream(TEXT_IDS), max_tokens=1))
    assert torch.equal(torch.cat([b.scored_R + b.rows[0] * MASKED for b in alone]), places)
    few = replace(evaluation(TokenStream(TEXT_IDS), max_tokens=1), max_windows=3)
    for batch, start in zip(few, few.starts, strict=True):
        assert torch.equal(batch.targets_R, alone[start // MASKED].targets_R)


def ids_of(batch):
    return batch.columns["tokens"].ids_BN.tolist()


def test_documents_of_a_masked_window_are_segments():
    stream = TokenStream(TEXT_IDS, starts=np.array([0, 3, 25]), document_mask=True)
    (batch, *_) = evaluation(stream)
    segments_BN = batch.columns["tokens"].segments_BN
    assert segments_BN is not None
    assert segments_BN[:2].tolist() == [[0] * 3 + [1] * 17, [0] * 5 + [1] * 15]

"""Windows of one long text: every token is scored; seed and epoch determine the batches."""

import numpy as np
import pytest

from headwise.errors import DataError
from headwise.tasks.stream.stream import TokenStream
from headwise.tasks.stream.windows import EvaluationWindows, TrainingWindows

IDS = np.random.default_rng(1).integers(0, 256, 203).astype(np.uint16)
START, WINDOW = 2, 10


def pairs(batch):
    """Pairs of input token and scored token, in order."""
    inputs = batch.scored(batch.columns["tokens"].ids_BN[:, :, None])[:, 0]
    return list(zip(inputs.tolist(), batch.targets_R.tolist(), strict=True))


def examples(max_tokens=35, seed=1, world_size=1):
    return TrainingWindows(TokenStream(IDS), START, WINDOW, max_tokens, seed, world_size)


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


def test_epochs_have_different_windows_in_different_orders():
    epochs = []
    for epoch in (1, 2, 3):
        rows = np.concatenate(examples().plan(epoch))
        assert sorted(rows) == list(range(len(rows)))
        assert len(rows) >= (len(IDS) - WINDOW) // WINDOW
        epochs.append(pairs(examples().collate(epoch, np.sort(rows))))
        text = list(zip([START, *IDS[:-1].tolist()], IDS.tolist(), strict=True))
        first = text.index(epochs[-1][0])
        assert epochs[-1] == text[first : first + len(rows) * WINDOW]
    assert epochs[0] != epochs[1] != epochs[2]
    plans = [np.concatenate(examples(seed=seed).plan(1)).tolist() for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_text_shorter_than_a_window_is_refused():
    with pytest.raises(DataError, match=r"203 tokens, fewer than data\.window=204"):
        TrainingWindows(TokenStream(IDS), START, 204, 10, 1)
    assert len(TrainingWindows(TokenStream(IDS), START, 203, 10, 1).plan(1)) == 1

"""Contract of the batches of every kind of data: their ranks, resuming and prefetching."""

import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from corpus_writers import data_config
from headwise.config.data import SequenceConfig
from headwise.config.instantiate import instantiate
from headwise.config.register import group_node
from headwise.data.batch import Batch
from headwise.data.loader import BatchLoader, Prefetched
from headwise.data.store import IdStore
from headwise.data.tokenizer import BYTE_MODEL, N_SPECIALS, Tokenizer
from headwise.errors import HeadwiseError, RunError
from headwise.tasks.classification import inputs as classification
from headwise.tasks.classification.inputs import ImageInputs, LabelledSplit, TextInputs
from headwise.tasks.sequence.batches import Layout, TrainingRows
from headwise.tasks.sequence.rows import Rows
from headwise.tasks.stream.masked_lm import MaskedTrainingWindows, Masking, MaskSettings
from headwise.tasks.stream.stream import TokenStream
from headwise.tasks.stream.windows import TrainingWindows
from headwise.tasks.translation import batches as translation
from headwise.tasks.translation.corpus import EncodedSplit
from published_images import random_images

DRAW = np.random.default_rng(0)
N, WINDOW = 90, 10
IDS = DRAW.integers(N_SPECIALS, 260, N * WINDOW + 3).astype(np.uint16)
STREAM = TokenStream(IDS)
LISTS = [[IDS[:n].tolist() for n in DRAW.integers(1, 30, N)] for _ in range(2)]
PAIRS, CLASSES = EncodedSplit.from_lists(*LISTS), DRAW.integers(0, 3, N)
TEXTS = LabelledSplit(TextInputs(IdStore.from_lists(LISTS[0])), CLASSES)
SQUARES = data_config("image_folder", shape=[4, 6, 3], patch=2, shift=1, flip=True)
PICTURES = LabelledSplit(ImageInputs(random_images(N, 4, 6, 3), SQUARES), CLASSES)
EVEN = np.arange(0, N, 2)
MASKING = Masking(MaskSettings(0.15, 0.8, 0.1), Tokenizer(BYTE_MODEL))


def pairs(budget, seed, ranks, **options):
    return translation.TrainingPairs(PAIRS, budget, seed, ranks, **options)


def windows(budget, seed, ranks):
    return TrainingWindows(STREAM, 2, WINDOW, budget, seed, ranks)


def masked(budget, seed, ranks):
    return MaskedTrainingWindows(STREAM, 2, WINDOW, budget, seed, ranks, masking=MASKING)


def classes(budget, seed, ranks, split=TEXTS):
    return classification.TrainingClasses(split, EVEN, budget, seed, ranks)


def pictures(budget, seed, ranks):
    return classes(budget, seed, ranks, PICTURES)


def sequences(budget, seed, ranks):
    data = SequenceConfig(name="copy", epoch_batches=9, min_length=4, max_length=6)
    rows = instantiate(group_node("data", "copy")["rows"], "rows", Rows)
    return TrainingRows(Layout(rows, ("tokens",)), data, budget // 15 * ranks, seed)


@dataclass(frozen=True)
class BatchCase:
    """One kind of training examples.

    Attributes:
        examples: of padded tokens a rank, a seed and a number of ranks.
        budget: padded tokens.
        rows: of an epoch; None: those of the plan from 0 on.
    """

    examples: Callable
    budget: int = 60
    rows: tuple[int, ...] | None = None

    def loader(self, budget=None, seed=1, rank=0, ranks=1, **options):
        return BatchLoader(
            self.examples(budget or self.budget, seed, ranks, **options), rank, ranks
        )


CASES = [
    BatchCase(pairs, 100, tuple(range(N))),
    BatchCase(windows),
    BatchCase(masked),
    BatchCase(classes, rows=tuple(EVEN)),
    BatchCase(pictures, rows=tuple(EVEN)),
    BatchCase(sequences),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.examples.__name__)


def epoch_of(loader):
    first = next(loader)
    return [first, *itertools.islice(loader, loader.n_batches - 1)]


def width(batch):
    return max(column.ids_BN.shape[1] for column in batch.columns.values())


def values(batch):
    """All that is in a batch, by row; of no rows, nothing."""
    columns = [(c.ids_BN.tolist(), c.lengths_B.tolist()) for c in batch.columns.values()]
    return batch.rows, columns, batch.scored_R.tolist(), batch.targets_R.tolist()


def by_row(batches):
    """Row -> its tokens without padding."""
    found = {}
    for batch in batches:
        for column in batch.columns.values():
            for row, ids, n in zip(batch.rows, column.ids_BN, column.lengths_B, strict=True):
                found.setdefault(row, []).append(ids[:n].tolist())
    return found


@every_case
def test_an_epoch_has_every_row_once_in_a_new_order(case):
    loader = case.loader()
    epochs = [epoch_of(loader) for _ in range(3)]
    for epoch in epochs:
        rows = sorted(row for batch in epoch for row in batch.rows)
        assert rows == list(case.rows or range(len(rows)))
        assert all(batch.n_targets == batch.global_targets for batch in epoch)
    contents = [[values(batch) for batch in epoch] for epoch in epochs]
    assert contents[0] != contents[1] != contents[2]


@every_case
@pytest.mark.parametrize("scale", [1, 2, 50])
def test_batches_have_at_most_max_tokens(case, scale):
    for batch in epoch_of(case.loader(scale * case.budget)):
        assert len(batch) * width(batch) <= scale * case.budget


@every_case
def test_batches_are_a_function_of_seed_and_epoch(case):
    first = [values(batch) for batch in itertools.islice(case.loader(), 40)]
    np.random.seed(7)
    torch.manual_seed(7)
    assert [values(batch) for batch in itertools.islice(case.loader(), 40)] == first
    other = [values(batch) for batch in itertools.islice(case.loader(seed=2), 40)]
    assert not [one for one, two in zip(first, other, strict=True) if one == two]


@every_case
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_together_equal_one_with_all_tokens(case, ranks):
    whole = epoch_of(case.loader(ranks * case.budget))
    loaders = [case.loader(rank=rank, ranks=ranks) for rank in range(ranks)]
    for batch, *parts in zip(whole, *map(epoch_of, loaders), strict=True):
        assert by_row(parts) == by_row([batch])
        assert {part.global_targets for part in parts} == {batch.n_targets}
        assert sum(part.n_targets for part in parts) == batch.n_targets
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert len({str(loader.state()) for loader in loaders}) == 1
    one = case.loader(ranks * case.budget)  # it can resume the run of the ranks, too
    one.restore(loaders[0].state())
    assert by_row([next(one)]) == by_row(map(next, loaders))


@every_case
def test_a_share_may_be_empty(case):
    examples = case.examples(case.budget, 1, 1)
    empty = examples.collate(1, np.arange(0))
    assert (len(empty), empty.n_targets) == (0, 0)
    assert {column.ids_BN.shape[0] for column in empty.columns.values()} == {0}
    assert examples.n_targets(1, np.arange(0)) == 0


@every_case
@pytest.mark.parametrize(("n_started", "n_now"), [(2, 1), (4, 3), (2, 4)])
def test_another_number_of_ranks_continues_with_the_same_batches(case, n_started, n_now):
    before = [case.loader(rank=rank, ranks=n_started) for rank in range(n_started)]
    examples, n_pieces = before[0].examples, -(-n_started // n_now)
    now = [BatchLoader(examples, rank, n_now, n_pieces) for rank in range(n_now)]
    list(itertools.islice(before[0], 5))
    for rank in before[1:] + now:
        rank.restore(before[0].state())
    for _ in range(2 * before[0].n_batches):
        whole = [next(rank) for rank in before]
        pieces = [next(rank) for rank in now for _ in range(n_pieces)]
        assert by_row(pieces) == by_row(whole)
        assert sum(b.global_targets for b in pieces[:n_pieces]) == whole[0].global_targets
        assert max(map(len, pieces)) <= max(map(len, whole))
    assert [rank.state() for rank in now] == n_now * [before[0].state()]


@every_case
def test_resumes_with_the_next_batch_from_every_position(case):
    loader = case.loader()
    states, batches = [], []
    for _ in range(2 * loader.n_batches + 2):
        states.append(json.loads(json.dumps(loader.state())))
        batches.append(values(next(loader)))
    assert all(isinstance(value, int) for value in states[0].values())
    assert [state["epoch"] for state in states[-2:]] == [2, 3]
    for place, state in enumerate(states):
        other = case.loader()
        list(itertools.islice(other, place % 7))  # at another position
        other.restore(state)
        rest = zip(batches[place : place + 4], other, strict=False)
        assert all(expected == values(batch) for expected, batch in rest)


@every_case
def test_states_of_other_batches_are_refused(case):
    state = case.loader().state()
    others = [case.loader(2 * case.budget), case.loader(seed=2), case.loader(ranks=2)]
    if case.examples is pairs:
        others += [case.loader(row_multiple=4), case.loader(length_multiple=8)]
    for other in others:
        with pytest.raises(RunError, match=r"trainer\.max_tokens.*new run"):
            other.restore(state)


@every_case
def test_prefetched_batches_and_states_equal_those_of_the_loader(case):
    loader = case.loader()
    with Prefetched(case.loader(), depth=3) as batches:
        assert batches.state() == loader.state()
        for _ in range(loader.n_batches + 4):
            assert values(next(batches)) == values(next(loader))
            assert batches.state() == loader.state()
        state = batches.state()  # without the batches made ahead, in the middle of an epoch
        expected = [values(next(loader)) for _ in range(6)]
        assert [values(next(batches)) for _ in range(6)] == expected
        batches.restore(state)
        assert [values(next(batches)) for _ in range(6)] == expected
    with Prefetched(case.loader()) as second:
        second.restore(state)
        assert second.state() == state
        assert [values(next(second)) for _ in range(6)] == expected


def evaluated_pairs(budget):
    return translation.evaluation_batches(PAIRS, budget)


def evaluated_texts(budget):
    return classification.evaluation_batches(TEXTS, budget)


def evaluated_pictures(budget):
    return classification.evaluation_batches(PICTURES, budget)


@pytest.mark.parametrize("evaluate", [evaluated_pairs, evaluated_texts, evaluated_pictures])
def test_an_evaluation_scores_every_row_once(evaluate):
    batches = evaluate(77)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(N))
    assert all(len(batch) == max(1, 77 // width(batch)) for batch in batches[:-1])
    assert len(batches[-1]) * width(batches[-1]) <= 77
    again = [values(batch) for batch in evaluate(77)]
    assert again == [values(batch) for batch in batches]  # nothing is changed at random
    if evaluate is not evaluated_pairs:
        scored = [
            (r, c) for b in batches for r, c in zip(b.rows, b.targets_R.tolist(), strict=True)
        ]
        assert [number for _, number in sorted(scored)] == CLASSES.tolist()


class Hooked(BatchLoader):
    """Calls `before` with the number of the next batch."""

    def __next__(self):
        self.before(self.state()["batch"])
        return super().__next__()


def prefetched(before, **options):
    loader = Hooked(CASES[0].loader().examples)
    loader.before = before
    return Prefetched(loader, **options)


def test_errors_of_the_loader_are_raised_in_order():
    def fail(number):
        if number == 3:
            raise HeadwiseError("the disk is gone")

    with prefetched(fail) as batches:
        loader = CASES[0].loader()
        assert all(values(next(batches)) == values(next(loader)) for _ in range(3))
        for _ in range(2):  # repeated calls raise again, as the loader does
            with pytest.raises(HeadwiseError, match="the disk is gone"):
                next(batches)
        assert batches.state()["batch"] == 3


def test_thread_starts_with_the_first_batch_and_ends_on_close():
    before, loader = threading.active_count(), CASES[0].loader()
    batches = Prefetched(CASES[0].loader(), depth=2)
    assert threading.active_count() == before
    for _ in range(2):  # closed and started again at its position
        assert values(next(batches)) == values(next(loader))
        assert threading.active_count() == before + 1
        batches.close()
        batches.close()
        assert threading.active_count() == before


def test_exit_after_an_error_does_not_wait_for_the_thread():
    started, may_end = threading.Event(), threading.Event()

    def wait(number):
        if number == 2:
            started.set()
            assert may_end.wait(60)

    before, batches = threading.active_count(), prefetched(wait)
    try:
        next(batches)
        assert started.wait(60)
        batches.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert threading.active_count() == before + 1  # still running
    finally:
        may_end.set()
        batches.close()


def test_thread_blocked_on_a_full_queue_ends_after_an_error():
    before, numbers = threading.active_count(), []
    batches = prefetched(numbers.append, depth=1)
    next(batches)
    wait_for(lambda: numbers == [0, 1, 2])
    batches.__exit__(HeadwiseError, HeadwiseError(), None)
    wait_for(lambda: threading.active_count() == before)


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_batches_are_pinned_for_the_training_gpu(monkeypatch):
    calls = []

    def record(argument):
        calls.append((threading.current_thread().name, argument))
        return argument

    monkeypatch.setattr("torch.cuda.set_device", record)
    monkeypatch.setattr(torch.Tensor, "pin_memory", record)
    second = torch.device("cuda", 1)
    with Prefetched(CASES[0].loader(), depth=1, gpu=second) as batches:
        pinned = next(batches)
    (maker, gpu), *pins = calls
    assert (gpu, maker != threading.current_thread().name) == (second, True)
    assert {name for name, _ in pins} == {maker}
    assert isinstance(pinned, Batch)
    held = [pinned.targets_R, pinned.scored_R, *(c.ids_BN for c in pinned.columns.values())]
    assert {id(values) for values in held} <= {id(values) for _, values in pins}

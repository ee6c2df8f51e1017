"""What is particular to batches of pairs, and of labelled examples; rows of sequences."""

from itertools import combinations, islice

import numpy as np
import pytest
import torch

from headwise.config.data import SequenceConfig
from headwise.config.instantiate import instantiate
from headwise.config.register import group_node
from headwise.data.loader import BatchLoader, plan_epoch
from headwise.data.tokenizer import BOS, BYTE_MODEL, EOS, N_SPECIALS, Tokenizer
from headwise.errors import ConfigError
from headwise.tasks.classification.inputs import LabelledSplit, TextInputs, stratified
from headwise.tasks.classification.inputs import evaluation_batches as evaluated_classes
from headwise.tasks.classification.prepare import example_ids
from headwise.tasks.sequence.batches import Layout, TrainingRows, evaluation_row
from headwise.tasks.sequence.rows import Rows
from headwise.tasks.translation.batches import TrainingPairs, evaluation_batches
from headwise.tasks.translation.corpus import EncodedSplit


def random_split(n_pairs=500, longest=30, seed=0):
    draw = np.random.default_rng(seed)

    def side():
        return [draw.integers(4, 99, n).tolist() for n in draw.integers(0, longest, n_pairs)]

    return EncodedSplit.from_lists(side(), side())


SPLIT = random_split()


def load(split, max_tokens=256, seed=1, **options):
    return BatchLoader(TrainingPairs(split, max_tokens, seed, **options))


def epoch_of(batches):
    first = next(batches)
    return [first, *islice(batches, batches.n_batches - 1)]


def width(batch):
    return max(column.ids_BN.shape[1] for column in batch.columns.values())


def test_rows_of_pairs_have_special_tokens_and_padding():
    for batch in epoch_of(load(SPLIT)):
        source, target = batch.columns["source"], batch.columns["target"]
        assert batch.n_targets == target.lengths_B.sum() == batch.global_targets
        assert (source.n_begin, source.n_end, target.n_begin, target.n_end) == (0, 1, 1, 0)
        expected = []
        for place, row in enumerate(batch.rows):
            rows = [*SPLIT.source[row].tolist(), EOS], [BOS, *SPLIT.target[row].tolist()]
            for column, ids in zip((source, target), rows, strict=True):
                assert column.ids_BN[place, : len(ids)].tolist() == ids
                assert column.is_real_BN[place].sum() == column.lengths_B[place] == len(ids)
                assert not column.ids_BN[place, len(ids) :].any()
                ends = column.is_end_BN[place].nonzero().flatten().tolist()
                assert ends == ([len(ids) - 1] if column is source else [])
            expected += [*SPLIT.target[row].tolist(), EOS]
        for column in (source, target):
            assert column.ids_BN.shape == (len(batch), column.lengths_B.max())
            assert column.ids_BN.dtype == column.lengths_B.dtype == torch.int64
        assert batch.targets_R.tolist() == expected
        # the input at a target is the token before it
        before = batch.scored(target.ids_BN[:, :, None])[:, 0].tolist()
        assert before.count(BOS) == len(batch)
        assert [token for token in before if token != BOS] == [
            token for token in expected if token != EOS
        ]


def test_batches_are_multiples_of_8_and_filled_with_pairs_of_similar_length():
    split = random_split(20_000)
    batches = epoch_of(load(split, 1024))
    assert sum(len(batch) > 8 and len(batch) % 8 > 0 for batch in batches) <= 1  # the last pairs
    longer = np.maximum(split.source.lengths, split.target.lengths) + 1
    padded = sum(width(b) * len(b) for b in batches)
    assert longer.sum() > 0.9 * padded
    assert padded > 0.85 * 1024 * len(batches)


def test_short_and_long_batches_alternate():
    widths = np.array([b.columns["source"].ids_BN.shape[1] for b in epoch_of(load(SPLIT))])
    assert np.abs(np.diff(widths)).mean() > 3


@pytest.mark.parametrize(("shortest", "longest", "max_share"), [(10, 18, 0.6), (1, 2, 0.2)])
def test_epochs_combine_different_pairs(shortest, longest, max_share):
    """Also if a batch has just the pairs of one length, or all have one length."""
    lengths = np.resize(np.arange(shortest, longest, dtype=np.int32), 64)
    pairs_of_epochs = []
    for epoch in (1, 2):
        plan = plan_epoch(lengths, lengths, 8 * int(lengths.max()), 1, epoch)
        batches = [sorted(plan[i].tolist()) for i in range(len(plan))]
        pairs_of_epochs.append({pair for rows in batches for pair in combinations(rows, 2)})
    assert len(pairs_of_epochs[0] & pairs_of_epochs[1]) < max_share * len(pairs_of_epochs[0])


def test_plans_of_consecutive_seeds_share_no_epoch():
    lengths = SPLIT.source.lengths + 1, SPLIT.target.lengths + 1
    plans = [plan_epoch(*lengths, 256, seed, epoch) for seed, epoch in ((1, 2), (2, 1), (1, 1))]
    assert len({str([plan[i].tolist() for i in range(len(plan))]) for plan in plans}) == 3


def test_targets_are_of_similar_length_where_all_sources_are():
    target = np.random.default_rng(0).integers(1, 30, 2000).astype(np.int32)
    plan = plan_epoch(np.full(2000, 30, np.int32), target, 480, 1, 1)
    batches = [target[plan[i]] for i in range(len(plan))]
    assert target.sum() > 0.9 * sum(len(batch) * batch.max() for batch in batches)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("longer", ["source", "target"])
def test_sentence_above_max_tokens_is_refused(longer, world_size):
    sides = {"source": [[6]], "target": [[6]], longer: [[5] * 9]}
    split = EncodedSplit.from_lists(**sides)
    next(load(split, 10))
    with pytest.raises(ConfigError, match=r"trainer\.max_tokens=9.*10"):
        next(load(split, 9, world_size=world_size))


@pytest.mark.parametrize(
    ("n_pairs", "sizes"),
    [(1, [1]), (7, [7]), (8, [8]), (11, [11]), (12, [4, 8]), (19, [8, 11]), (20, [4, 8, 8])],
)
def test_remainder_is_added_to_the_last_batch_if_it_fits(n_pairs, sizes):
    """11 pairs fit, and batches have multiples of 8."""
    split = EncodedSplit.from_lists([[5]] * n_pairs, [[6]] * n_pairs)
    assert sorted(len(batch) for batch in epoch_of(load(split, 2 * 11))) == sizes


def test_split_is_built_once_per_epoch():
    epochs = []
    splits = {epoch: random_split(50, seed=epoch) for epoch in range(1, 5)}

    def split_of(epoch):
        epochs.append(epoch)
        return splits[epoch]

    batches = load(split_of, 100)
    for epoch in (1, 2, 3):
        for batch in epoch_of(batches):
            lengths = splits[epoch].target.lengths[batch.rows] + 1
            assert batch.columns["target"].lengths_B.tolist() == lengths.tolist()
    assert epochs == [1, 2, 3]


@pytest.mark.parametrize(("longest_source", "longest_target"), [(19, 43), (43, 19)])
def test_each_side_is_padded_to_a_multiple(longest_source, longest_target):
    """Padded to a multiple of 8 or the longest row of all, within max_tokens."""
    draw = np.random.default_rng(2)
    sides = [
        [[4] * int(n) for n in [*draw.integers(1, longest, 200), longest]]
        for longest in (longest_source, longest_target)
    ]
    batches = epoch_of(load(EncodedSplit.from_lists(*sides), 512, length_multiple=8))
    assert sorted(row for batch in batches for row in batch.rows) == list(range(201))
    for batch in batches:
        assert len(batch) * width(batch) <= 512
        for name, longest in (("source", longest_source), ("target", longest_target)):
            column = batch.columns[name]
            padded = -(-int(column.lengths_B.max()) // 8) * 8
            assert column.ids_BN.shape[1] == min(padded, longest + 1)


def test_evaluations_of_nothing_and_of_the_first_examples():
    assert evaluation_batches(EncodedSplit.from_lists([], []), 100) == []
    split = LabelledSplit(TextInputs(SPLIT.source), np.zeros(500, np.int64))
    assert sorted(row for b in evaluated_classes(split, 60, 7) for row in b.rows) == [*range(7)]


def test_texts_are_separated_and_the_longer_one_is_truncated():
    tokenizer = Tokenizer(BYTE_MODEL)

    def spelled(*texts, length):
        ids = example_ids(texts, tokenizer, length)
        return "".join("|" if i == EOS else chr(i - N_SPECIALS) for i in ids)

    assert spelled("abc", "defg", length=9) == "abc|defg|"
    assert spelled("abc", "defghijk", length=9) == "abc|defg|"
    assert spelled("abcdefgh", "xyzuvw", length=9) == "abc|xyz|"
    assert spelled("abcdefgh", length=4) == "abc|"


def test_shares_are_stratified_and_nested():
    classes = np.random.default_rng(1).choice(3, 1000, p=[0.9, 0.09, 0.01])
    small, large = (stratified(classes, share, seed=4) for share in (0.05, 0.5))
    assert set(small) <= set(large)
    for label, n in enumerate(np.bincount(classes)):
        assert (classes[small] == label).sum() == max(1, round(0.05 * n))
    assert stratified(classes, 1.0, 4).tolist() == list(range(1000))
    assert stratified(classes, 0.05, 5).tolist() != small.tolist()


TASKS = "copy", "flip_flop", "local_count", "nback", "parity", "recall", "reverse", "sort"
# First rows, so that another machine or version of numpy that draws others is noticed.
COPY = [4, 7, 2, 19, 12, 22, 4, 11]
RECALL = [5, 36, 10, 44, 27, 34, 30, 35, 31, 46, 15, 40, 3, 41, 6, 44]
every_task = pytest.mark.parametrize("name", TASKS)


def rows_of(name):
    return instantiate(group_node("data", name)["rows"], "rows", Rows)


def by_hand(name, row):
    """The scored targets of a row from its source alone."""
    source = row.source_N.tolist()
    n = len(source)
    if name in ("copy", "reverse", "sort"):
        ordered = {"copy": source, "reverse": source[::-1], "sort": sorted(source)}
        return ordered[name]
    if name == "nback":
        return source[: n - 2]
    if name == "parity":
        return [sum(source[: i + 1]) % 2 for i in range(n)]
    if name == "local_count":
        counts = []
        for i in range(n):
            is_same = i > 0 and source[i] == source[i - 1]
            counts.append(counts[-1] + 1 if is_same else 16)
        return counts
    if name == "flip_flop":
        bit, read = -1, []
        for command, given in zip(source[::2], source[1::2], strict=True):
            bit = given if command == 2 else bit
            if command == 4:
                assert given == bit
                read.append(bit)
        return read
    assert name == "recall"
    asked = row.target_T.tolist()[1::3]
    assert len(set(asked)) == 8
    assert all(source.count(key) == 1 for key in asked)
    return [source[source.index(key) + 1] for key in asked]


@every_task
@pytest.mark.parametrize("length", [8, 33, 64, 257])
def test_targets_by_hand(name, length):
    for number in range(20):
        row = evaluation_row(rows_of(name), length, number, 0)
        assert row.target_T[row.scored_T].tolist() == by_hand(name, row)
        assert len(row.source_N) - length in ((0, -1) if name == "flip_flop" else (0, 8))
        known = row.scored_T & (row.relevant_T >= 0)
        if name not in ("sort", "parity", "local_count"):
            assert (known == row.scored_T).all()
        # the relevant place has what is predicted
        assert (row.source_N[row.relevant_T[known]] == row.target_T[known]).all()
        assert max(row.source_N.max(), row.target_T.max()) < rows_of(name).n_ids


def test_rows_are_the_same_everywhere():
    assert evaluation_row(rows_of("copy"), 8, 0, 0).source_N.tolist() == COPY
    assert evaluation_row(rows_of("recall"), 16, 3, 0).source_N.tolist() == RECALL


def test_distractors_grow_with_the_length_and_ids_do_not():
    for length in (64, 1024):
        row = evaluation_row(rows_of("recall"), length, 0, 0)
        assert (row.source_N != rows_of("recall").space).sum() == length // 2
        assert len(set(row.source_N.tolist())) <= 32 + 16 + 1


def test_two_columns_have_source_and_target():
    layout = Layout(rows_of("copy"), ("source", "target"))
    row = evaluation_row(layout.rows, 5, 0, 0)
    batch = layout.batch([row], [0])
    assert batch.columns["source"].ids_BN[0].tolist() == row.source_N.tolist()
    assert batch.columns["target"].ids_BN[0].tolist() == [32, *row.target_T[:-1].tolist()]
    assert batch.scored_R.tolist() == list(range(5))


def test_lengths_grow_over_the_curriculum():
    data = SequenceConfig(name="copy", epoch_batches=4, curriculum=100)
    rows = TrainingRows(Layout(rows_of("copy"), ("tokens",)), data, 6, 1)
    lengths = [rows.length(1 + n // 4, n % 4) for n in range(400)]
    assert max(lengths[:10]) <= 8 + 56 // 10
    assert max(lengths) == 64
    assert min(lengths[100:]) >= 32
    assert all(length <= 8 + 56 * n // 100 for n, length in enumerate(lengths[:100]))

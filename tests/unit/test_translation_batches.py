"""Batches: every pair once per epoch, within max_tokens, in a reproducible order."""

import json
from itertools import combinations, islice

import numpy as np
import pytest
import torch

from headwise.data.loader import BatchLoader
from headwise.data.plan import plan_epoch
from headwise.data.tokenizer import BOS, EOS
from headwise.errors import ConfigError, RunError
from headwise.tasks.translation import batches
from headwise.tasks.translation.batches import TrainingPairs, evaluation_batches
from headwise.tasks.translation.store import EncodedSplit


def random_split(n_pairs=500, longest=30, seed=0):
    draw = np.random.default_rng(seed)

    def side():
        return [draw.integers(4, 99, n).tolist() for n in draw.integers(0, longest, n_pairs)]

    return EncodedSplit.from_lists(side(), side())


def same(one, other):
    shapes = one.columns.keys() == other.columns.keys(), one.rows == other.rows
    pairs = [(one.columns[name].ids_BN, other.columns[name].ids_BN) for name in one.columns]
    pairs += [(one.scored_R, other.scored_R), (one.targets_R, other.targets_R)]
    return all(shapes) and all(torch.equal(*pair) for pair in pairs)


SPLIT = random_split()


def load(split, max_tokens=256, seed=1, rank=0, world_size=1, **options):
    pairs = TrainingPairs(split, max_tokens, seed, world_size, **options)
    return BatchLoader(pairs, rank, world_size)


def loader(*settings, **options):
    return load(SPLIT, *settings, **options)


def epoch_of(batches):
    first = next(batches)
    return [first, *islice(batches, batches.n_batches - 1)]


def width(batch):
    return max(column.ids_BN.shape[1] for column in batch.columns.values())


class TestBatch:
    def test_rows_have_special_tokens_and_padding(self):
        for batch in epoch_of(loader()):
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
            firsts = [i for i, token in enumerate(before) if token == BOS]
            assert len(firsts) == len(batch)
            assert [token for token in before if token != BOS] == [
                token for token in expected if token != EOS
            ]


class TestPlan:
    def test_each_epoch_has_every_pair_once_in_a_new_order(self):
        batches = loader()
        epochs = [epoch_of(batches) for _ in range(3)]
        for epoch in epochs:
            assert sorted(row for b in epoch for row in b.rows) == list(range(len(SPLIT)))
        orders = [[batch.rows for batch in epoch] for epoch in epochs]
        assert orders[0] != orders[1] != orders[2]
        # Not only the order differs: batches combine different pairs.
        assert {frozenset(rows) for rows in orders[0]} != {frozenset(rows) for rows in orders[1]}

    @pytest.mark.parametrize("max_tokens", [31, 100, 256, 5000])
    def test_budget_and_multiple_are_respected(self, max_tokens):
        odd = 0
        for batch in epoch_of(loader(max_tokens)):
            assert len(batch) * width(batch) <= max_tokens
            odd += len(batch) > 8 and len(batch) % 8 > 0
        assert odd <= 1  # the remaining pairs

    def test_batches_are_filled_with_pairs_of_similar_length(self):
        split = random_split(20_000)
        batches = epoch_of(load(split, 1024))
        longer = np.maximum(split.source.lengths, split.target.lengths) + 1
        padded = sum(width(b) * len(b) for b in batches)
        assert longer.sum() > 0.9 * padded
        assert padded > 0.85 * 1024 * len(batches)

    def test_short_and_long_batches_alternate(self):
        widths = np.array([b.columns["source"].ids_BN.shape[1] for b in epoch_of(loader())])
        assert np.abs(np.diff(widths)).mean() > 3

    def test_plan_depends_on_its_arguments_only(self):
        lengths = SPLIT.source.lengths + 1, SPLIT.target.lengths + 1

        def rows(*, budget=256, seed=1, epoch=1):
            plan = plan_epoch(*lengths, budget, seed, epoch)
            return [plan[i].tolist() for i in range(len(plan))]

        first = rows()
        np.random.seed(7)
        torch.manual_seed(7)
        assert rows() == first
        for other in (rows(budget=300), rows(seed=2), rows(epoch=2)):
            assert other != first
        assert rows(seed=2) != rows(epoch=2)  # consecutive seeds share no epoch

    @pytest.mark.parametrize(("shortest", "longest", "max_share"), [(10, 18, 0.6), (1, 2, 0.2)])
    def test_epochs_combine_different_pairs(self, shortest, longest, max_share):
        """Also if a batch has just the pairs of one length, or all have one length."""
        lengths = np.resize(np.arange(shortest, longest, dtype=np.int32), 64)
        pairs_of_epochs = []
        for epoch in (1, 2):
            plan = plan_epoch(lengths, lengths, 8 * int(lengths.max()), 1, epoch)
            batches = [sorted(plan[i].tolist()) for i in range(len(plan))]
            pairs_of_epochs.append({pair for rows in batches for pair in combinations(rows, 2)})
        assert len(pairs_of_epochs[0] & pairs_of_epochs[1]) < max_share * len(pairs_of_epochs[0])

    def test_targets_are_of_similar_length_where_all_sources_are(self):
        target = np.random.default_rng(0).integers(1, 30, 2000).astype(np.int32)
        plan = plan_epoch(np.full(2000, 30, np.int32), target, 480, 1, 1)
        batches = [target[plan[i]] for i in range(len(plan))]
        assert target.sum() > 0.9 * sum(len(batch) * batch.max() for batch in batches)

    @pytest.mark.parametrize("world_size", [1, 2])
    @pytest.mark.parametrize("longer", ["source", "target"])
    def test_sentence_above_max_tokens_is_refused(self, longer, world_size, monkeypatch):
        sides = {"source": [[6]], "target": [[6]], longer: [[5] * 9]}
        split = EncodedSplit.from_lists(**sides)
        next(load(split, 10))
        monkeypatch.setattr(batches, "plan_epoch", pytest.fail)  # it might not terminate
        with pytest.raises(ConfigError, match=r"trainer\.max_tokens=9.*10"):
            next(load(split, 9, world_size=world_size))

    @pytest.mark.parametrize("n_pairs", range(1, 60))
    def test_remainder_is_added_to_the_last_batch_if_it_fits(self, n_pairs):
        split = EncodedSplit.from_lists([[5]] * n_pairs, [[6]] * n_pairs)
        sizes = [len(batch) for batch in epoch_of(load(split, 2 * 11))]
        n_full, rest = divmod(n_pairs, 8)
        if n_full and rest <= 3:
            n_full, rest = n_full - 1, rest + 8
        assert sorted(sizes) == sorted([8] * n_full + [rest] * (rest > 0))


class TestRanks:
    @pytest.mark.parametrize("world_size", [2, 3])
    def test_ranks_together_equal_one_rank_with_all_tokens(self, world_size):
        whole = epoch_of(loader(120 * world_size))
        ranks = [loader(120, rank=rank, world_size=world_size) for rank in range(world_size)]
        shares = [epoch_of(rank) for rank in ranks]
        assert {len(share) for share in shares} == {len(whole)}
        for batch, *parts in zip(whole, *shares, strict=True):
            assert sorted(batch.rows) == sorted(row for p in parts for row in p.rows)
            assert {part.global_targets for part in parts} == {batch.n_targets}
            assert sum(part.n_targets for part in parts) == batch.n_targets
            assert max(map(len, parts)) - min(map(len, parts)) <= 1

    def test_share_of_a_rank_may_be_empty(self):
        split = EncodedSplit.from_lists([[5, 6]], [[7]])
        shares = [next(load(split, 10, 1, rank, 2)) for rank in range(2)]
        assert [len(share) for share in shares] == [1, 0]
        assert [share.n_targets for share in shares] == [2, 0]
        assert [share.global_targets for share in shares] == [2, 2]
        assert shares[1].columns["source"].ids_BN.shape[0] == 0


class TestRestore:
    def test_resumes_with_the_next_batch_from_every_position(self):
        split = random_split(60)
        first = load(split, 100)
        states, batches = [], []
        for _ in range(3 * first.n_batches + 2):
            states.append(json.loads(json.dumps(first.state())))
            batches.append(next(first))
        assert all(isinstance(value, int) for value in states[0].values())
        assert first.state()["epoch"] >= 3
        for place, state in enumerate(states):
            # Into a loader at another position.
            second = load(split, 100)
            list(islice(second, place % 7))
            second.restore(state)
            rest = zip(batches[place : place + 9], second, strict=False)
            assert all(same(one, other) for one, other in rest)
            if place + 9 < len(states):
                assert second.state() != state

    def test_state_is_equal_on_all_ranks(self):
        ranks = [loader(128, rank=rank, world_size=2) for rank in range(2)]
        for rank in ranks:
            list(islice(rank, 5))
        assert ranks[0].state() == ranks[1].state()
        # The same batches as one process with twice the tokens: it can resume, too.
        one = loader(256)
        one.restore(ranks[0].state())
        shares = [next(rank) for rank in ranks]
        assert sorted(next(one).rows) == sorted(row for s in shares for row in s.rows)

    @pytest.mark.parametrize(("n_started", "n_now"), [(2, 1), (4, 3), (4, 2), (2, 4)])
    def test_another_number_of_ranks_continues_with_the_same_batches(self, n_started, n_now):
        before = [loader(128, rank=rank, world_size=n_started) for rank in range(n_started)]
        n_pieces = -(-n_started // n_now)
        examples = before[0].examples
        now = [BatchLoader(examples, rank, n_now, n_pieces) for rank in range(n_now)]
        list(islice(before[0], 5))
        for rank in before[1:] + now:
            rank.restore(before[0].state())
        for _ in range(2 * before[0].n_batches):
            whole = [next(rank) for rank in before]
            pieces = [next(rank) for rank in now for _ in range(n_pieces)]
            rows = [sorted(row for part in parts for row in part.rows) for parts in (whole, pieces)]
            assert rows[0] == rows[1]
            assert sum(b.global_targets for b in pieces[:n_pieces]) == whole[0].global_targets
            longest = max(len(part.rows) for part in whole)
            assert all(len(part.rows) <= longest for part in pieces)
        assert [rank.state() for rank in now] == n_now * [before[0].state()]

    def test_states_of_other_batches_are_refused(self):
        state = loader().state()
        for other in (
            loader(255),
            loader(seed=2),
            loader(row_multiple=4),
            loader(length_multiple=8),
        ):
            with pytest.raises(RunError, match="new run"):
                other.restore(state)
        with pytest.raises(RunError, match=r"trainer\.max_tokens"):
            loader(256, world_size=2).restore(state)


class TestSplitOfEpoch:
    def test_split_is_built_once_per_epoch(self):
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


def test_evaluation_scores_every_pair_once():
    batches = evaluation_batches(SPLIT, 77)
    order = [row for batch in batches for row in batch.rows]
    assert sorted(order) == list(range(len(SPLIT)))
    assert all(len(batch) == max(1, 77 // width(batch)) for batch in batches[:-1])
    assert len(batches[-1]) * width(batches[-1]) <= 77
    assert evaluation_batches(EncodedSplit.from_lists([], []), 100) == []

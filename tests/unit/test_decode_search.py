"""Beam search on a model with known probabilities."""

import itertools
import math
from functools import partial

import pytest
import torch

from drawn_model import BOS, EOS, PAD, UNK, RandomModel
from headwise.decode.beam import beam_search, best_continuations
from headwise.decode.scoring import score_ids

CPU = torch.device("cpu")


SOURCES = [(4, 5, 3), (5, 3), (4, 4, 5, 5, 3), (5, 4, 3), (1, 3)]


def exhaustive(model, source, limit, penalty):
    """List every sentence within the limit with its score, best first."""
    tokens = range(4, model.vocab_size)
    results = []
    for length in range(limit + 1):
        for ids in itertools.product(tokens, repeat=length):
            steps = [model.log_probs(source, ids[:i])[ids[i]] for i in range(length)]
            if length < limit:
                total = sum(steps) + model.log_probs(source, ids)[EOS]
                results.append((total / (length + 1) ** penalty, ids, True))
            else:
                results.append((sum(steps) / length**penalty, ids, False))
    return sorted(results, reverse=True)


@pytest.mark.parametrize("penalty", [-0.5, 0.0, 0.6, 1.0, 2.0])
def test_full_beam_returns_the_best_of_all_sentences(penalty):
    model, limit, n_best = RandomModel(), 4, 6
    options = {"beam": 200, "length_penalty": penalty, "n_best": n_best}
    results = beam_search(model, SOURCES[:3], [limit] * 3, CPU, **options)
    for source, hypotheses in zip(SOURCES, results, strict=False):
        expected = exhaustive(model, source, limit, penalty)[:n_best]
        assert [(h.ids, h.finished) for h in hypotheses] == [(e[1], e[2]) for e in expected]
        for hypothesis, (score, _, _) in zip(hypotheses, expected, strict=True):
            assert hypothesis.score == pytest.approx(score, abs=1e-5)


def plain_beam_search(model, source, limit, beam, penalty):
    """Search for one sentence without batch, cache or bound on the score."""
    live = [(0.0, ())]
    finished = []
    for n_tokens in range(1, limit + 1):
        longer = []
        for total, ids in live:
            log_probs = model.log_probs(source, ids)
            for token in range(EOS, model.vocab_size):
                longer.append((total + log_probs[token], (*ids, token)))
        longer.sort(reverse=True)
        for total, ids in longer[:beam]:
            if ids[-1] == EOS:
                finished.append((total / n_tokens**penalty, ids[:-1]))
        live = [(total, ids) for total, ids in longer if ids[-1] != EOS][:beam]
        if len(finished) >= beam:
            return sorted(finished, reverse=True)
    finished += [(total / limit**penalty, ids) for total, ids in live]
    return sorted(finished, reverse=True)


@pytest.mark.parametrize("n_best", [1, 2])
@pytest.mark.parametrize("beam", [2, 4])
@pytest.mark.parametrize("penalty", [-2.0, 0.0, 0.5, 1.0])
def test_batch_and_bound_do_not_change_the_result(penalty, beam, n_best):
    model = RandomModel(sharpness=1.5)
    sources = [(4, *pair, 3) for pair in itertools.product((4, 5), (4, 5, 1, 6, 7))]
    limits = [3 + i for i in range(len(sources))]
    results = beam_search(model, sources, limits, CPU, beam, penalty, n_best)
    for source, limit, hypotheses in zip(sources, limits, results, strict=True):
        expected = plain_beam_search(model, source, limit, beam, penalty)[:n_best]
        assert [h.ids for h in hypotheses] == [ids for _, ids in expected]
        scores = [score for score, _ in expected]
        assert [h.score for h in hypotheses] == pytest.approx(scores, rel=1e-5)


def test_early_stopping_saves_steps_and_keeps_the_result():
    """With all hypotheses in the beam, only the bound can stop a search before its limit."""
    model = RandomModel(sharpness=4.0)
    results = beam_search(model, [SOURCES[0]], [7], CPU, beam=4000, length_penalty=0.0)
    n_steps = len(model.batch_sizes)
    best = exhaustive(model, SOURCES[0], 7, 0.0)[0]
    assert results[0][0].ids == best[1]
    assert n_steps < 7


def assert_follows_the_model(model, source, hypothesis, limit, penalty):
    ids = hypothesis.ids
    assert not {PAD, UNK, BOS, EOS} & set(ids)
    total = sum(model.log_probs(source, ids[:i])[ids[i]] for i in range(len(ids)))
    n_tokens = len(ids)
    if hypothesis.finished:
        total += model.log_probs(source, ids)[EOS]
        n_tokens += 1
    else:
        assert n_tokens == limit
    assert 1 <= n_tokens <= limit
    assert hypothesis.n_tokens == n_tokens
    assert hypothesis.log_prob == pytest.approx(total, abs=1e-4)
    assert hypothesis.score == pytest.approx(total / n_tokens**penalty, abs=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_beam_of_one_is_greedy_search(seed):
    model = RandomModel(sharpness=0.4 * (seed + 1))
    sources = [(4 + seed, *source) for source in SOURCES]
    limits = [2, 9, 5, 1, 12]
    results = beam_search(model, sources, limits, CPU, beam=1, length_penalty=0.8)
    for source, limit, (hypothesis,) in zip(sources, limits, results, strict=True):
        assert_follows_the_model(model, source, hypothesis, limit, 0.8)
        for i, token in enumerate(hypothesis.ids):
            log_probs = model.log_probs(source, hypothesis.ids[:i])
            allowed = [EOS, 4, 5, 6]
            assert token == max(allowed, key=lambda candidate: log_probs[candidate])


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("cached", [True, False])
def test_dropping_finished_sentences_changes_nothing(cached, beam):
    model = RandomModel(sharpness=2.0)
    limits = [3, 20, 6, 1, 12]
    together = beam_search(model, SOURCES, limits, CPU, beam, n_best=beam, cached=cached)
    n_rows = list(model.batch_sizes)
    alone = [
        beam_search(model, [source], [limit], CPU, beam, n_best=beam)[0]
        for source, limit in zip(SOURCES, limits, strict=True)
    ]
    assert together == alone
    assert n_rows[0] == 5  # one row per sentence: all hypotheses are bos
    # the sentence with a limit of one token is finished, with a beam of 1 another one too
    assert n_rows[1] == (3 if beam == 1 else 4 * beam)
    assert n_rows[1:] == sorted(n_rows[1:], reverse=True)
    assert n_rows[-1] < n_rows[1]


class DeadEndModel(RandomModel):
    """After one token only padding is possible, which a translation must not contain."""

    def logits(self, source, prefix):
        possible_tokens = [PAD] if prefix else [4, 5]
        return [0.0 if token in possible_tokens else -math.inf for token in range(self.vocab_size)]


def test_dead_end_ends_the_hypothesis_unfinished():
    beamed = beam_search(DeadEndModel(), SOURCES[:2], [6, 6], CPU, beam=4, n_best=4)
    for hypotheses in beamed:
        assert [(h.ids, h.finished) for h in hypotheses] == [((4,), False), ((5,), False)]
        assert hypotheses[0].log_prob == pytest.approx(math.log(0.5))
    greedy = beam_search(DeadEndModel(), SOURCES[:2], [6, 6], CPU, beam=1)
    assert [(h.ids, h.finished) for (h,) in greedy] == [((4,), False)] * 2


class ConstantModel(RandomModel):
    """Every token is equally likely."""

    def logits(self, source, prefix):
        return [0.0] * self.vocab_size


def test_ties_select_the_lower_index():
    results = beam_search(ConstantModel(vocab_size=30), [(4, 3)], [2], CPU, beam=3, n_best=3)
    # of equal ids 3, 4, 5, ... eos is finished at once; every later sentence is less likely
    assert results[0][0].ids == ()
    greedy = beam_search(ConstantModel(vocab_size=30), [(4, 3)], [4], CPU, beam=1)
    assert greedy[0][0].ids == ()


def assert_equals_a_stable_sort(scores_NM, beam, width):
    n_rows, n_columns = scores_NM.shape
    log_probs_RV = scores_NM.clone().view(n_rows * width, -1)
    results = best_continuations(log_probs_RV, torch.zeros(n_rows, width), beam)
    values, indices = scores_NM.sort(dim=1, descending=True, stable=True)
    for row, continuations in enumerate(results):
        assert [one.total for one in continuations] == values[row, : 2 * beam].tolist()
        first, vocab_size = row * width, n_columns // width
        actual = [(one.row - first) * vocab_size + one.token for one in continuations]
        assert 0 <= min(actual) <= max(actual) < n_columns
        n_finite = sum(one.total > -torch.inf for one in continuations)
        assert actual[:n_finite] == indices[row, :n_finite].tolist()


def test_best_continuations_equal_a_stable_sort():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 4, (50, 40), generator=generator).float()
    scores[:10] = torch.randn(10, 40, generator=generator)
    scores[10, 5:] = -torch.inf
    for beam in (1, 4, 19, 20, 30):
        for width in (1, 2):
            assert_equals_a_stable_sort(scores, beam, width)


@pytest.mark.parametrize("n_columns", [64 * 40, 64 * 40 + 17, 64 * 40 + 1])
@pytest.mark.parametrize("n_values", [3, 500, 10**9])
def test_best_continuations_of_long_rows_equal_a_stable_sort(n_columns, n_values):
    generator = torch.Generator().manual_seed(n_columns)
    scores = torch.randint(0, n_values, (60, n_columns), generator=generator).float()
    scores[:5, 100:] = -torch.inf
    scores[5:10, :-3] = -torch.inf  # only the last, shorter block has finite scores
    scores[10:20] = -torch.arange(n_columns).float() // 7
    for beam in (1, 2, 4):
        assert_equals_a_stable_sort(scores, beam, width=1)
        assert_equals_a_stable_sort(scores[:3], beam, width=1)


@pytest.mark.parametrize(
    ("search", "limit_or_target"),
    [(partial(beam_search, beam=2), 3), (score_ids, [4])],
)
def test_search_disables_gradients(search, limit_or_target):
    class Watched(RandomModel):
        def decode(self, *arguments, **options):
            assert not torch.is_grad_enabled()
            return super().decode(*arguments, **options)

    search(Watched(), SOURCES, [limit_or_target] * 5, CPU)

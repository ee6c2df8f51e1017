"""Search and scoring with a sparse output on models with known probabilities."""

import functools
import math

import pytest
import torch

from drawn_model import EOS, RandomModel
from headwise.decode.beam import beam_search
from headwise.decode.hypothesis import SearchRecord
from headwise.decode.scoring import score_ids
from headwise.entmax import alpha_entmax
from headwise.errors import RunError
from headwise.losses.loss import EntmaxLoss, SparsemaxLoss
from headwise.losses.output_map import SOFTMAX, OutputMap
from headwise.tasks.translation.outputs import search_summary

CPU = torch.device("cpu")
VOCAB_SIZE = 9
TOKENS = tuple(range(4, VOCAB_SIZE))
SPARSEMAX = SparsemaxLoss().output_map


class SparseModel(RandomModel):
    """Model with α-entmax probabilities."""

    def __init__(self, sharpness=1.5):
        super().__init__(sharpness, VOCAB_SIZE)

    @functools.cache  # noqa: B019
    def log_probs(self, source, prefix, alpha=2.0):
        logits = torch.tensor(self.logits(source, prefix))
        return alpha_entmax(logits, alpha).log().tolist()


SOURCES = [(4 + first, 4 + second, EOS) for first in range(8) for second in range(5)]


def possible(model, source, prefix):
    log_probs = model.log_probs(source, prefix)
    return {p: log_probs[p] for p in (*TOKENS, EOS) if log_probs[p] > -math.inf}


def exhaustive(model, source, limit, penalty):
    """List every possible sentence within the limit, best first."""
    results = []

    def visit(ids, total):
        if len(ids) == limit:
            results.append((total / limit**penalty, ids))
            return
        for token, log_prob in possible(model, source, ids).items():
            if token == EOS:
                results.append(((total + log_prob) / (len(ids) + 1) ** penalty, ids))
            else:
                visit((*ids, token), total + log_prob)

    visit((), 0.0)
    return sorted(results, reverse=True)


def plain_record(model, source, limit, beam, penalty):
    """Compute the search record of one sentence with `n_best` = 1."""
    live = [(0.0, ())]
    scores = []
    is_exact, n_candidates, n_steps = True, 0, 0
    for length in range(1, limit + 1):
        longer = [
            (total + log_prob, (*ids, token))
            for total, ids in live
            for token, log_prob in possible(model, source, ids).items()
        ]
        n_steps += len(live)
        n_candidates += len(longer)
        longer.sort(reverse=True)
        ended = [total for total, ids in longer[:beam] if ids[-1] == EOS]
        live = [item for item in longer if item[1][-1] != EOS][:beam]
        scores += [total / length**penalty for total in ended]
        is_exact &= len(longer) == len(ended) + len(live)
        if not live or (length == limit and len(scores) < beam):
            break
        last = limit if penalty >= 0 else min(length + 1, limit)  # where the score is highest
        can_win = not scores or live[0][0] / last**penalty > max(scores)
        if len(scores) >= beam or length == limit:
            is_exact &= not can_win
            break
        if not can_win:
            break
    return SearchRecord(is_exact, n_candidates, n_steps)


@pytest.mark.parametrize("beam", [1, 2, 4, 8])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
def test_search_record_follows_the_definition(beam, penalty):
    model = SparseModel(1.0)
    limits = [2 + place % 5 for place in range(len(SOURCES))]
    results = beam_search(model, SOURCES, limits, CPU, beam, penalty, output=SPARSEMAX)
    exact_values = set()
    for source, limit, hypotheses in zip(SOURCES, limits, results, strict=True):
        expected = plain_record(model, source, limit, beam, penalty)
        assert hypotheses[0].search == expected
        exact_values.add(expected.is_exact)
    assert exact_values == {True, False}


@pytest.mark.parametrize("beam", [1, 2, 4, 8])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("n_best", [1, 2])
def test_exact_search_returns_the_best_sentences(beam, penalty, n_best):
    model, limit = SparseModel(), 4
    limits = [limit] * len(SOURCES)
    results = beam_search(model, SOURCES, limits, CPU, beam, penalty, n_best, output=SPARSEMAX)
    n_exact = 0
    for source, hypotheses in zip(SOURCES, results, strict=True):
        search = hypotheses[0].search
        n_exact += search.is_exact
        if search.is_exact:
            best = exhaustive(model, source, limit, penalty)[:n_best]
            if not best:  # pad and bos take all probability
                continue
            assert [h.ids for h in hypotheses] == [ids for _, ids in best]
            scores = [score for score, _ in best]
            assert [h.score for h in hypotheses] == pytest.approx(scores, abs=1e-5)
    assert n_exact > 3


@pytest.mark.parametrize("cached", [True, False])
def test_tokens_outside_the_support_are_not_selected(cached):
    model, options = SparseModel(), {"cached": cached, "output": SPARSEMAX}
    results = beam_search(model, SOURCES, [6] * len(SOURCES), CPU, 4, n_best=4, **options)
    greedy = beam_search(model, SOURCES, [6] * len(SOURCES), CPU, 1, **options)
    for source, hypotheses, greedy_hypotheses in zip(SOURCES, results, greedy, strict=True):
        for hypothesis in (*hypotheses, *greedy_hypotheses):
            total = sum(gains(model, source, hypothesis))
            assert math.isfinite(total)
            assert hypothesis.log_prob == pytest.approx(total, abs=1e-5)


def gains(model, source, hypothesis):
    ids = (*hypothesis.ids, EOS)[: hypothesis.n_tokens]
    return [model.log_probs(source, ids[:i])[token] for i, token in enumerate(ids)]


def test_pad_and_bos_keep_their_probability():
    """They are excluded after normalising: the other probabilities do not sum to one."""

    class PadModel(SparseModel):
        def logits(self, source, prefix):
            return [1.0, -9.0, -9.0, 0.8, -9.0, -9.0, -9.0]

    hypothesis = beam_search(PadModel(), [(4, 3)], [5], CPU, 3, output=SPARSEMAX)[0][0]
    assert hypothesis.log_prob == pytest.approx(math.log(0.4))
    assert hypothesis.search == SearchRecord(True, 1, 1)


def test_dense_output_has_no_search_record():
    model = SparseModel()
    for output in (SOFTMAX, OutputMap(SOFTMAX.log_probs, is_sparse=False)):
        results = beam_search(model, SOURCES[:3], [4] * 3, CPU, 2, output=output)
        assert all(hypotheses[0].search is None for hypotheses in results)
        assert search_summary(hypotheses[0].search for hypotheses in results) == {}


def test_summary_averages_exact_over_sentences_and_support_over_steps():
    records = [SearchRecord(True, 4, 4), None, SearchRecord(False, 20, 2)]
    assert search_summary(records) == {"exact": 0.5, "support": 4.0}
    assert search_summary([None, None]) == {}


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_scored_translations_may_have_probability_0(alpha):
    model = SparseModel()
    output = EntmaxLoss(alpha).output_map
    targets = [(4,), (), (5, 6, 4), (4, 4)]
    sources = SOURCES[: len(targets)]
    scores = score_ids(model, sources, targets, CPU, output)
    for source, target, score in zip(sources, targets, scores, strict=True):
        ids = (*target, EOS)
        expected = [model.log_probs(source, ids[:i], alpha)[p] for i, p in enumerate(ids)]
        assert score.token_log_probs == pytest.approx(expected, abs=1e-5)
        assert score.log_prob == pytest.approx(sum(expected), abs=1e-5)
        assert score.n_tokens == len(ids)
    assert any(score.log_prob == -math.inf for score in scores)


class BrokenModel(SparseModel):
    """For one sentence the first `n_broken` logits are `value`."""

    def __init__(self, value, n_broken):
        super().__init__()
        self.broken = [value] * n_broken

    def logits(self, source, prefix):
        values = super().logits(source, prefix)
        return self.broken + values[len(self.broken) :] if source == SOURCES[1] else values


@pytest.mark.parametrize(
    ("value", "n_broken"),
    [(math.nan, 1), (math.nan, VOCAB_SIZE), (math.inf, VOCAB_SIZE), (-math.inf, VOCAB_SIZE)],
)
@pytest.mark.parametrize("output", [SPARSEMAX, SOFTMAX])
def test_nonfinite_logits_are_refused(value, n_broken, output):
    for beam in (1, 2):
        with pytest.raises(RunError, match="non-finite logits"):
            beam_search(
                BrokenModel(value, n_broken), SOURCES[:3], [5] * 3, CPU, beam, output=output
            )


@pytest.mark.parametrize("cached", [True, False])
def test_without_a_cache_every_step_reads_the_whole_prefix(cached):
    n_read = []

    class Watched(SparseModel):
        def decode(self, target_in_BT, memory, cache=None):
            assert (cache is not None) == cached
            n_read.append(target_in_BT.shape[1])
            return super().decode(target_in_BT, memory, cache)

    for beam in (1, 2):
        n_read.clear()
        beam_search(Watched(), SOURCES[:9], [4] * 9, CPU, beam, cached=cached)
        assert n_read == [1 if cached else 1 + step for step in range(4)]

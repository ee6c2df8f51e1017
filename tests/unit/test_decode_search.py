"""Beam and greedy search on models with known probabilities, dense and sparse; limits of length."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from drawn_model import EOS, PAD, RandomModel
from headwise.config.schema import DecodeConfig
from headwise.data.loader import longest_first
from headwise.decode.beam import beam_search, best_continuations
from headwise.decode.hypothesis import SearchRecord, length_limit
from headwise.decode.scoring import score_ids
from headwise.errors import RunError
from headwise.losses.loss import EntmaxLoss
from headwise.losses.output_map import SOFTMAX, OutputMap
from headwise.tasks.translation.outputs import search_summary

CPU, VOCAB_SIZE = torch.device("cpu"), 9
ENTMAX15, SPARSEMAX = (EntmaxLoss(alpha).output_map for alpha in (1.5, 2.0))
SOURCES = [
    (4 + first, 4 + second, *[5] * (first % 3), EOS) for first in range(8) for second in range(5)
]
MODELS = {
    "softmax": RandomModel(2.0, VOCAB_SIZE),
    "sparsemax": RandomModel(1.0, VOCAB_SIZE, SPARSEMAX),
}  # their probabilities are cached


def exhaustive(model, source, limit, penalty):
    """Every sentence within the limit that has a probability: score, ids, finished; best first."""
    results = []

    def visit(ids, total):
        if len(ids) == limit:
            results.append((total / limit**penalty, ids, False))
            return
        for token, log_prob in model.possible(source, ids).items():
            if token == EOS:
                results.append(((total + log_prob) / (len(ids) + 1) ** penalty, ids, True))
            else:
                visit((*ids, token), total + log_prob)

    visit((), 0.0)
    return sorted(results, reverse=True)


def plain_search(model, source, limit, beam, penalty, n_best):
    """Search for one sentence without batch or cache; a bound on the scores ends only the record.

    Returns:
        (score, ids, finished) of each hypothesis, best first, and the record of the search.
    """
    live, closed, record = [(0.0, ())], [], None
    is_exact, n_candidates, n_steps = True, 0, 0
    for length in range(1, limit + 1):
        before, longer = (
            live,
            [
                (total + log_prob, (*ids, token))
                for total, ids in live
                for token, log_prob in model.possible(source, ids).items()
            ],
        )
        longer.sort(reverse=True)
        ended = [(t / length**penalty, i[:-1], True) for t, i in longer[:beam] if i[-1] == EOS]
        live = [item for item in longer if item[1][-1] != EOS][:beam]
        closed = sorted([*closed, *ended], reverse=True)
        last = limit if penalty >= 0 else length + 1  # where the score is highest
        is_open = length < limit or len(closed) < beam
        can_win = bool(live) and (
            len(closed) < n_best or live[0][0] / min(last, limit) ** penalty > closed[n_best - 1][0]
        )
        if record is None:
            n_candidates, n_steps = n_candidates + len(longer), n_steps + len(before)
            is_exact &= len(longer) == len(ended) + len(live)
            if len(closed) >= beam or length == limit or not can_win:
                is_cut = len(closed) >= beam and can_win
                record = SearchRecord(is_exact and not is_cut, n_candidates, n_steps)
        if len(closed) >= beam or not live:
            break
    if not is_open:
        live = []
    if not closed and not live:
        length, live = length - 1, before
    if len(closed) < beam:
        closed += [(total / max(length, 1) ** penalty, ids, False) for total, ids in live]
    return sorted(closed, reverse=True)[:n_best], record


def assert_found(hypotheses, expected):
    assert [(h.ids, h.finished) for h in hypotheses] == [(ids, done) for _, ids, done in expected]
    scores = [score for score, *_ in expected]
    assert [h.score for h in hypotheses] == pytest.approx(scores, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("beam", [1, 2, 4, 8])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.5, 2.0])
@pytest.mark.parametrize("name", MODELS)
def test_searches_of_a_batch_equal_those_of_single_sentences(name, penalty, beam):
    """With limits, scores and records of each sentence; a beam of 1 is greedy search."""
    model, exact_values = MODELS[name], set()
    limits = [1 + place % 6 for place in range(len(SOURCES))]
    for n_best, cached in ((1, True), (min(beam, 2), False)):
        options = beam, penalty, n_best
        results = beam_search(model, SOURCES, limits, CPU, *options, cached, model.output)
        for source, limit, hypotheses in zip(SOURCES, limits, results, strict=True):
            expected, record = plain_search(model, source, limit, *options)
            assert_found(hypotheses, expected)
            for one in hypotheses:
                assert one.n_tokens <= limit
                assert one.log_prob == pytest.approx(
                    one.score * max(one.n_tokens, 1) ** penalty, abs=1e-4
                )
                assert one.search == (record if model.output.is_sparse else None)
            exact_values.add(record.is_exact)
    assert exact_values == {True, False} or not model.output.is_sparse


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(
    ("name", "beam", "n_best"),
    [
        ("softmax", 200, 6),
        *(("sparsemax", beam, n) for beam in (1, 2, 4, 8) for n in {1, min(beam, 2)}),
    ],
)
def test_exact_searches_find_the_best_of_all_sentences(name, beam, n_best, penalty):
    """The dense beam holds every sentence; a sparse search says whether it is exact."""
    model, limit, n_exact = MODELS[name], 4, 0
    sources = SOURCES if model.output.is_sparse else SOURCES[:3]
    options = beam, penalty, n_best
    results = beam_search(
        model, sources, [limit] * len(sources), CPU, *options, output=model.output
    )
    for source, hypotheses in zip(sources, results, strict=True):
        best = exhaustive(model, source, limit, penalty)[:n_best]
        search = hypotheses[0].search
        if best and (search is None or search.is_exact):  # or pad and bos have all probability
            n_exact += 1
            assert_found(hypotheses, best)
    assert n_exact > 2


def test_early_stopping_saves_steps():
    """With all hypotheses in the beam, only the bound can stop a search before its limit."""
    model = RandomModel(sharpness=4.0)
    ((best,),) = beam_search(model, SOURCES[:1], [7], CPU, beam=4000, length_penalty=0.0)
    assert_found([best], exhaustive(model, SOURCES[0], 7, 0.0)[:1])
    assert len(model.shapes) < 7


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("cached", [True, False])
def test_finished_sentences_leave_the_batch(cached, beam):
    """The rows and the tokens that the decoder reads at every step."""
    model = RandomModel(sharpness=2.0)
    sources, limits = [(4, 5, 3), (5, 3), (4, 4, 5, 5, 3), (5, 4, 3), (1, 3)], [3, 20, 6, 1, 12]
    search = partial(beam_search, device=CPU, beam=beam, n_best=beam)
    together = search(model, sources, limits, cached=cached)
    rows, n_read = zip(*model.shapes, strict=True)
    pairs = zip(sources, limits, strict=True)
    assert together == [search(model, [source], [limit])[0] for source, limit in pairs]
    assert rows[0] == 5  # one row per sentence: all hypotheses are bos
    # the sentence with a limit of one token is finished, with a beam of 1 another one too
    assert rows[1] == (3 if beam == 1 else 4 * beam)
    assert rows[1:] == tuple(sorted(rows[1:], reverse=True))
    assert rows[-1] < rows[1]
    assert n_read == tuple(1 if cached else 1 + step for step in range(len(rows)))


@dataclass
class ByHand:
    """Probabilities by hand: the logits after a prefix -> ids, finished and probability."""

    logits: object
    beam: int
    expected: list
    output: OutputMap = SOFTMAX
    record: SearchRecord | None = None


def only_padding_after_a_token(prefix):
    return [0.0 if token in ([PAD] if prefix else [4, 5]) else -math.inf for token in range(7)]


BY_HAND = {
    # a translation must not contain padding, so the hypothesis ends unfinished
    "dead end": ByHand(only_padding_after_a_token, 4, [((4,), False, 1 / 2), ((5,), False, 1 / 2)]),
    "dead end, greedy": ByHand(only_padding_after_a_token, 1, [((4,), False, 1 / 2)]),
    # of equal ids 3, 4, 5, ... eos is finished at once
    "ties": ByHand(
        lambda prefix: [0.0] * 30,
        3,
        [((), True, 1 / 30), ((4,), True, 1 / 900), ((4, 4), False, 1 / 900)],
    ),
    "ties, greedy": ByHand(lambda prefix: [0.0] * 30, 1, [((), True, 1 / 30)]),
    # excluded after normalising: the other probabilities do not sum to one
    "pad has a probability": ByHand(
        lambda prefix: [1.0, -9.0, -9.0, 0.8, -9.0, -9.0, -9.0],
        3,
        [((), True, 0.4)],
        SPARSEMAX,
        SearchRecord(True, 1, 1),
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_hypotheses_by_hand(name):
    case = BY_HAND[name]
    model = RandomModel(vocab_size=len(case.logits(())))
    model.logits = lambda source, prefix: case.logits(prefix)
    results = beam_search(
        model, SOURCES[:2], [2, 2], CPU, case.beam, n_best=case.beam, output=case.output
    )
    for hypotheses in results:
        assert [(h.ids, h.finished) for h in hypotheses] == [one[:2] for one in case.expected]
        probabilities = [math.exp(h.log_prob) for h in hypotheses]
        assert probabilities == pytest.approx([one[2] for one in case.expected])
        assert {h.search for h in hypotheses} == {case.record}


@pytest.mark.parametrize("n_columns", [40, 64 * 40, 64 * 40 + 17, 64 * 40 + 1])
@pytest.mark.parametrize("n_values", [3, 500, 10**9])
def test_best_continuations_equal_a_stable_sort(n_columns, n_values):
    """Also those of long rows, of which blocks are compared first."""
    generator = torch.Generator().manual_seed(n_columns)
    scores = torch.randint(0, n_values, (60, n_columns), generator=generator).float()
    scores[:5, n_columns // 9 :] = -torch.inf
    scores[5:10, :-3] = -torch.inf  # only the last, shorter block has finite scores
    scores[10:20] = -torch.arange(n_columns).float() // 7
    values, indices = scores.sort(dim=1, descending=True, stable=True)
    for beam, n_rows, width in ((1, 60, 1), (2, 3, 1), (4, 60, 1), (4, 60, 2), (30, 60, 1)):
        if n_columns % width == 0:
            log_probs_RV = scores[:n_rows].clone().view(n_rows * width, -1)
            results = best_continuations(log_probs_RV, torch.zeros(n_rows, width), beam)
            for row, best in enumerate(results):
                assert [one.total for one in best] == values[row, : 2 * beam].tolist()
                n_vocab = n_columns // width
                columns = [(one.row - row * width) * n_vocab + one.token for one in best]
                assert 0 <= min(columns) <= max(columns) < n_columns
                n_finite = sum(one.total > -torch.inf for one in best)
                assert columns[:n_finite] == indices[row, :n_finite].tolist()


@pytest.mark.parametrize("output", [SOFTMAX, ENTMAX15, SPARSEMAX])
def test_given_translations_have_the_log_probabilities_of_their_tokens(output):
    """Which a sparse output may give a probability of 0."""
    model = RandomModel(1.5, VOCAB_SIZE, output)
    targets = [(4,), (), (5, 6, 4), (4, 4)]
    scores = score_ids(model, SOURCES[:4], targets, CPU, output)
    for source, target, score in zip(SOURCES, targets, scores, strict=False):
        ids = (*target, EOS)
        expected = [model.log_probs(source, ids[:i])[token] for i, token in enumerate(ids)]
        assert score.token_log_probs == pytest.approx(expected, abs=1e-5)
        assert score.log_prob == pytest.approx(sum(expected), abs=1e-5)
        assert score.n_tokens == len(ids)
    assert any(score.log_prob == -math.inf for score in scores) == output.is_sparse


@pytest.mark.parametrize(
    "broken",
    [[math.nan], [math.nan] * VOCAB_SIZE, [math.inf] * VOCAB_SIZE, [-math.inf] * VOCAB_SIZE],
)
@pytest.mark.parametrize("output", [SPARSEMAX, SOFTMAX])
@pytest.mark.parametrize("beam", [1, 2])
def test_nonfinite_logits_of_a_sentence_are_refused(broken, output, beam):
    model = RandomModel(1.5, VOCAB_SIZE)
    whole = [broken + [0.0] * (VOCAB_SIZE - len(broken)), [0.0] * VOCAB_SIZE]
    model.logits = lambda source, prefix: whole[source != SOURCES[1]]
    with pytest.raises(RunError, match="non-finite logits"):
        beam_search(model, SOURCES[:3], [5] * 3, CPU, beam, output=output)


def test_summary_averages_exact_over_sentences_and_support_over_steps():
    records = [SearchRecord(True, 4, 4), None, SearchRecord(False, 20, 2)]
    assert search_summary(records) == {"exact": 0.5, "support": 4.0}
    assert search_summary([None, None]) == {}


@pytest.mark.parametrize(
    ("n_source", "ratio", "extra", "max_positions", "limit"),
    [
        (7, 2.0, 10, None, 24),
        (7, 2.0, 10, 24, 24),
        (7, 2.0, 10, 23, 23),
        (3, 1.5, 0, None, 4),  # whole tokens only
        (50, 2.3, 0, None, 115),  # 2.3 * 50 is 114.99999999999999
        (100, 0.29, 0, None, 29),
        (5, 0.1, 0, 32, 1),  # a token at the least
        (5, 0.0, 3, None, 3),
    ],
)
def test_limits_of_length(n_source, ratio, extra, max_positions, limit):
    config = DecodeConfig(max_length_ratio=ratio, max_length_extra=extra)
    assert length_limit(n_source, config, max_positions) == limit


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "batches"),
    [
        ([3, 5, 2, 5, 3, 3], 10, [[1, 3], [0, 4, 5], [2]]),  # 10 tokens fit, padding counts
        ([4, 12, 4], 8, [[1], [0, 2]]),  # a line longer than a batch is a batch alone
        ([], 8, []),
    ],
)
def test_batches_are_full(lengths, max_tokens, batches):
    assert [rows.tolist() for rows in longest_first(np.array(lengths), max_tokens)] == batches

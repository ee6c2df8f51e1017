"""Search and scoring under a sparse output, on models whose every probability is known."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from drawn_model import EOS, PAD, UNK, DrawnModel, Prefix
from headwise.decode.beam import beam_search
from headwise.decode.greedy import greedy_search
from headwise.decode.hypothesis import Hypothesis, SearchRecord
from headwise.decode.scoring import score_ids
from headwise.entmax import alpha_entmax
from headwise.errors import RunError
from headwise.losses.loss import EntmaxLoss, SparsemaxLoss
from headwise.losses.output_map import SOFTMAX, OutputMap
from headwise.model.transformer import Memory
from headwise.tasks.evaluation import search_summary

CPU = torch.device("cpu")
N_PIECES = 7
WORDS = (UNK, *range(4, N_PIECES))
SPARSEMAX = SparsemaxLoss().output_map


class SparseModel(DrawnModel):
    """Its probabilities are those of α-entmax."""

    def __init__(self, sharpness: float = 1.5) -> None:
        super().__init__(sharpness, N_PIECES)

    @functools.cache  # noqa: B019
    def log_probs(self, source: Prefix, prefix: Prefix, alpha: float = 2.0) -> list[float]:
        logits = torch.tensor(self.logits(source, prefix))
        return alpha_entmax(logits, alpha).log().tolist()


SOURCES = [(4 + first, 4 + second, EOS) for first in range(8) for second in range(5)]


def possible(model: SparseModel, source: Prefix, prefix: Prefix) -> dict[int, float]:
    log_probs = model.log_probs(source, prefix)
    return {p: log_probs[p] for p in (*WORDS, EOS) if log_probs[p] > -math.inf}


def exhaustive(model: SparseModel, source: Prefix, limit: int, penalty: float) -> list[Any]:
    """Every sentence with a probability within the limit, best first."""
    found = []

    def visit(ids: Prefix, total: float) -> None:
        if len(ids) == limit:
            found.append((total / limit**penalty, ids))
            return
        for piece, gain in possible(model, source, ids).items():
            if piece == EOS:
                found.append(((total + gain) / (len(ids) + 1) ** penalty, ids))
            else:
                visit((*ids, piece), total + gain)

    visit((), 0.0)
    return sorted(found, reverse=True)


def plain_record(
    model: SparseModel, source: Prefix, limit: int, beam: int, penalty: float
) -> SearchRecord:
    """The rule written out for one sentence and its one best answer."""
    live: list[tuple[float, Prefix]] = [(0.0, ())]
    scores: list[float] = []
    is_exact, n_words, n_steps = True, 0, 0
    for length in range(1, limit + 1):
        longer = [
            (total + gain, (*ids, piece))
            for total, ids in live
            for piece, gain in possible(model, source, ids).items()
        ]
        n_steps += len(live)
        n_words += len(longer)
        longer.sort(reverse=True)
        ended = [total for total, ids in longer[:beam] if ids[-1] == EOS]
        live = [item for item in longer if item[1][-1] != EOS][:beam]
        scores += [total / length**penalty for total in ended]
        is_exact &= len(longer) == len(ended) + len(live)
        if not live or (length == limit and len(scores) < beam):
            break
        can_win = not scores or live[0][0] / limit**penalty > max(scores)
        if len(scores) >= beam or length == limit:
            is_exact &= not can_win
            break
        if not can_win:
            break
    return SearchRecord(is_exact, n_words, n_steps)


@pytest.mark.parametrize("beam", [1, 2, 4, 8])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_the_record_is_that_of_the_rule_and_of_a_batch_of_one(beam: int, penalty: float) -> None:
    model = SparseModel(1.0)
    limits = [2 + place % 5 for place in range(len(SOURCES))]
    found = beam_search(model, SOURCES, limits, CPU, beam, penalty, output=SPARSEMAX)
    seen = set()
    for source, limit, hypotheses in zip(SOURCES, limits, found, strict=True):
        expected = plain_record(model, source, limit, beam, penalty)
        assert hypotheses[0].search == expected
        seen.add(expected.is_exact)
    assert seen == {True, False}


@pytest.mark.parametrize("beam", [2, 4, 8])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("n_best", [1, 2])
def test_an_exact_search_finds_the_best_of_all_sentences(
    beam: int, penalty: float, n_best: int
) -> None:
    model, limit = SparseModel(), 4
    found = beam_search(
        model, SOURCES, [limit] * len(SOURCES), CPU, beam, penalty, n_best, output=SPARSEMAX
    )
    n_exact = 0
    for source, hypotheses in zip(SOURCES, found, strict=True):
        search = hypotheses[0].search
        assert search is not None
        n_exact += search.is_exact
        if search.is_exact:
            best = exhaustive(model, source, limit, penalty)[:n_best]
            if not best:  # all probability runs into pad and bos
                continue
            assert [h.ids for h in hypotheses] == [ids for _, ids in best]
            scores = [score for score, _ in best]
            assert [h.score for h in hypotheses] == pytest.approx(scores, abs=1e-5)
    assert n_exact > 3


def test_a_wider_beam_is_more_often_exact() -> None:
    model = SparseModel()
    shares = []
    for beam in (1, 2, 5, 50):
        found = beam_search(model, SOURCES, [4] * len(SOURCES), CPU, beam, output=SPARSEMAX)
        shares.append(search_summary(h[0].search for h in found)["exact"])
    assert shares[0] < shares[1] < shares[2] < shares[3] == 1.0


@pytest.mark.parametrize("cached", [True, False])
def test_no_word_off_the_support_is_taken(cached: bool) -> None:
    model = SparseModel()
    found = beam_search(
        model, SOURCES, [6] * len(SOURCES), CPU, 4, n_best=4, cached=cached, output=SPARSEMAX
    )
    greedy = greedy_search(model, SOURCES, [6] * len(SOURCES), CPU, cached=cached, output=SPARSEMAX)
    for source, hypotheses, one in zip(SOURCES, found, greedy, strict=True):
        for hypothesis in (*hypotheses, one):
            total = sum(gains(model, source, hypothesis))
            assert math.isfinite(total)
            assert hypothesis.log_prob == pytest.approx(total, abs=1e-5)


def gains(model: SparseModel, source: Prefix, hypothesis: Hypothesis) -> list[float]:
    ids = (*hypothesis.ids, EOS)[: hypothesis.n_tokens]
    return [model.log_probs(source, ids[:i])[piece] for i, piece in enumerate(ids)]


def test_pad_and_bos_keep_the_probability_that_they_were_given() -> None:
    """They are left out after normalising: what remains does not sum to one."""

    class PadModel(SparseModel):
        def logits(self, source: Prefix, prefix: Prefix) -> list[float]:
            return [1.0, -9.0, -9.0, 0.8, -9.0, -9.0, -9.0]

    found = beam_search(PadModel(), [(4, 3)], [5], CPU, 3, output=SPARSEMAX)[0][0]
    assert found.log_prob == pytest.approx(math.log(0.4))
    assert found.search == SearchRecord(True, 1, 1)


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_greedy_search_is_exact_where_nothing_could_be_chosen(sharpness: float) -> None:
    model = SparseModel(sharpness)
    limit = 6
    found = greedy_search(model, SOURCES, [limit] * len(SOURCES), CPU, output=SPARSEMAX)
    seen = set()
    for source, hypothesis in zip(SOURCES, found, strict=True):
        ids = hypothesis.ids
        prefixes = [ids[:i] for i in range(min(len(ids) + 1, limit))]
        widths = [len(possible(model, source, prefix)) for prefix in prefixes]
        assert hypothesis.search == SearchRecord(max(widths) <= 1, sum(widths), len(widths))
        seen.add(max(widths) <= 1)
    assert seen == {True, False}


class ScriptedModel(SparseModel):
    """Probabilities by prefix; sparsemax gives back what sums to one."""

    def __init__(self, table: dict[Prefix, dict[int, float]]) -> None:
        super().__init__()
        self.table = table

    def logits(self, source: Prefix, prefix: Prefix) -> list[float]:
        given = self.table.get(prefix, {EOS: 1.0})  # dead slots are asked after too
        return [given.get(piece, -5.0) for piece in range(N_PIECES)]


@pytest.mark.parametrize("at_once", [0.9, 0.5])
def test_an_end_by_the_bound_drops_nothing(at_once: float) -> None:
    # what else may come is no likelier, whatever follows
    table = {(): {EOS: at_once, 4: 1 - at_once}, (4,): {EOS: 0.5, 5: 0.5}, (4, 5): {EOS: 1.0}}
    found = beam_search(ScriptedModel(table), [(4, 3)], [9], CPU, 3, 0.0, output=SPARSEMAX)
    assert found[0][0].ids == ()
    assert found[0][0].search == SearchRecord(True, 2, 1)


def test_leaving_what_could_still_win_is_not_exact() -> None:
    # a beam of 1 ends with the first eos, though a length penalty favours the longer sentence
    table = {(): {EOS: 0.6, 4: 0.4}, (4,): {5: 1.0}, (4, 5): {EOS: 1.0}}
    model = ScriptedModel(table)
    left, kept = (
        beam_search(model, [(4, 3)], [9], CPU, beam, 2.0, output=SPARSEMAX)[0][0] for beam in (1, 2)
    )
    assert (left.ids, kept.ids) == ((), (4, 5))
    assert left.search is not None
    assert not left.search.is_exact
    assert kept.search is not None
    assert kept.search.is_exact


def test_a_negative_penalty_waits_for_an_end_at_the_next_step() -> None:
    # log 0.37 over two tokens is above log 0.1 over one, over three it would not be
    table = {(): {EOS: 0.1, 4: 0.37, PAD: 0.53}, (4,): {EOS: 1.0}}
    found = beam_search(ScriptedModel(table), [(4, 3)], [9], CPU, 2, -1.0, output=SPARSEMAX)
    assert found[0][0].ids == (4,)
    assert found[0][0].search == SearchRecord(True, 3, 2)


def test_what_is_closed_at_the_limit_is_not_left_behind() -> None:
    model = ScriptedModel({(): {EOS: 0.2, 4: 0.5, 5: 0.3}})
    found = beam_search(model, [(4, 3)], [1], CPU, 4, n_best=2, output=SPARSEMAX)
    assert [(h.ids, h.search) for h in found[0]] == [
        ((4,), SearchRecord(True, 3, 1)),
        ((5,), SearchRecord(True, 3, 1)),
    ]


def test_a_dense_output_leaves_no_record() -> None:
    model = SparseModel()
    for output in (SOFTMAX, OutputMap(SOFTMAX.log_probs, is_sparse=False)):
        found = beam_search(model, SOURCES[:3], [4] * 3, CPU, 2, output=output)
        assert all(hypotheses[0].search is None for hypotheses in found)
        assert search_summary(hypotheses[0].search for hypotheses in found) == {}
        greedy = greedy_search(model, SOURCES[:3], [4] * 3, CPU, output=output)
        assert all(hypothesis.search is None for hypothesis in greedy)


def test_summary_counts_sentences_for_one_and_steps_for_the_other() -> None:
    records = [SearchRecord(True, 4, 4), None, SearchRecord(False, 20, 2)]
    assert search_summary(records) == {"exact": 0.5, "support": 4.0}
    assert search_summary([None, None]) == {}


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_given_translations_may_be_impossible(alpha: float) -> None:
    model = SparseModel()
    output = EntmaxLoss(alpha).output_map
    targets: list[Sequence[int]] = [(4,), (), (5, 6, 4), (4, 4)]
    sources = SOURCES[: len(targets)]
    scores = score_ids(model, sources, targets, CPU, output)
    for source, target, score in zip(sources, targets, scores, strict=True):
        ids = (*target, EOS)
        expected = [model.log_probs(source, ids[:i], alpha)[p] for i, p in enumerate(ids)]
        assert score.token_log_probs == pytest.approx(expected, abs=1e-5)
        assert score.log_prob == pytest.approx(sum(expected), abs=1e-5)
        assert score.n_tokens == len(ids)
    assert any(score.log_prob == -math.inf for score in scores)


def test_the_scorer_agrees_with_the_search() -> None:
    model = SparseModel()
    found = [
        hypotheses[0]
        for hypotheses in beam_search(model, SOURCES, [9] * len(SOURCES), CPU, 4, output=SPARSEMAX)
    ]
    scores = score_ids(model, SOURCES, [hypothesis.ids for hypothesis in found], CPU, SPARSEMAX)
    for hypothesis, score in zip(found, scores, strict=True):
        own = sum(score.token_log_probs[: hypothesis.n_tokens])
        assert own == pytest.approx(hypothesis.log_prob, abs=1e-4)


class BrokenModel(SparseModel):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def logits(self, source: Prefix, prefix: Prefix) -> list[float]:
        values = super().logits(source, prefix)
        if math.isnan(self.value):
            values[5] = self.value
            return values
        return [self.value] * N_PIECES


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("output", [SPARSEMAX, SOFTMAX])
def test_weights_that_are_not_numbers_are_reported(value: float, output: OutputMap) -> None:
    with pytest.raises(RunError, match="not a number"):
        beam_search(BrokenModel(value), SOURCES[:2], [5] * 2, CPU, beam=2, output=output)
    with pytest.raises(RunError, match="not a number"):
        greedy_search(BrokenModel(value), SOURCES[:2], [5] * 2, CPU, output=output)


def test_one_sentence_that_is_no_number_is_reported() -> None:
    class PartlyBroken(SparseModel):
        def logits(self, source: Prefix, prefix: Prefix) -> list[float]:
            values = super().logits(source, prefix)
            return [math.nan] * N_PIECES if source == SOURCES[1] else values

    for search in (greedy_search, functools.partial(beam_search, beam=2)):
        with pytest.raises(RunError, match="not a number"):
            search(PartlyBroken(), SOURCES[:3], [5] * 3, CPU)


@pytest.mark.parametrize("cached", [True, False])
def test_without_a_cache_every_step_reads_the_whole_prefix(cached: bool) -> None:
    read: list[int] = []

    class Watched(SparseModel):
        def decode(self, target_in_BT: Tensor, memory: Memory, cache: Any = None) -> Tensor:
            assert (cache is not None) == cached
            read.append(target_in_BT.shape[1])
            return super().decode(target_in_BT, memory, cache)

    for search in (greedy_search, functools.partial(beam_search, beam=2)):
        read.clear()
        search(Watched(), SOURCES[:9], [4] * 9, CPU, cached=cached)
        assert read == [1 if cached else 1 + step for step in range(4)]

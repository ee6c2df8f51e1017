"""Beam search over a batch of sentences.

Axes: N live sentences, W live hypotheses of each (1 at the first step, then the beam),
R = N * W rows of the model's batch, V target vocabulary, C candidates per sentence.

One step, for all sentences at once:
    log probabilities of every continuation of every live hypothesis    (N, W * V)
    the best C = 2 * beam of them                                       (N, C)
    those among the first `beam` that end in eos are finished
    the first `beam` that do not end in eos stay live
C = 2 * beam is enough: each hypothesis has one continuation by eos, so at least `beam` of the C
do not end.

When is a sentence done? Let p be the length penalty, L its length limit, t the current length and s
the log probability of a live hypothesis. Log probabilities never increase, so its continuations
score at most s / L**p (p >= 0) or s / (t + 1)**p (p < 0). A sentence is done
    - as soon as `beam` of its hypotheses have finished (this makes a beam of 1 greedy search), or
    - as soon as `n_best` have finished and no live one can score above the worst of the best
      `n_best` finished: more steps could not change the result, or
    - at its length limit, or when no continuation has a probability. Live hypotheses are then
      closed without eos and ranked with the finished ones by their score; hypotheses without a
      continuation are closed only where no other hypothesis has finished.
Sentences that are done are removed from the batch.

Under a sparse output map few tokens have a probability, and a beam may hold every hypothesis that
has one: the search is exact (Peters et al. 2019). It is not exact if, at any step, more
continuations had a probability than finished or stayed live, or if live ones are dropped because
`beam` have finished, unless by the bound above none of them could rank among the best `n_best`.
Stopping by that bound drops nothing; neither does the length limit, where all live hypotheses are
closed and ranked: the search is for the best sentence within the limit.

Candidates of equal log probability are ordered by (row, token id), finished hypotheses of equal
score in the order of finishing. Rows are not sorted by score, so that few of them move:
see `with_fewest_moves`. The rows of a sentence do not depend on other sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.data.tokenizer import EOS
from headwise.decode.hypothesis import Hypothesis, SearchRecord, make_hypothesis, penalised
from headwise.decode.incremental import IncrementalDecoder, TranslationModel, fill_gaps
from headwise.losses.output_map import SOFTMAX, OutputMap

BLOCK = 64  # columns: `top_k` compares the maxima of blocks first
FEW = 20_000  # scores that are searched faster without blocks


@torch.no_grad()  # not inference_mode: a position table extended here is used in training later
def beam_search(
    model: TranslationModel,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    device: torch.device,
    beam: int,
    length_penalty: float = 1.0,
    n_best: int = 1,
    cached: bool = True,
    output: OutputMap = SOFTMAX,
) -> list[list[Hypothesis]]:
    """Return the `n_best` best hypotheses of each sentence, best first, in the order of `sources`.

    Fewer than `n_best` are returned only where fewer have a probability.

    Args:
        model: in evaluation mode.
        sources: ids of each sentence as the encoder reads them; none is empty.
        limits: maximum number of tokens of each hypothesis, eos included (from 1).
        beam: live hypotheses of each sentence.
        length_penalty: exponent of the length (eos counts) that divides the log probability.
        n_best: at most `beam`.
        cached: False recomputes the whole prefix at each step.
        output: maps the model's logits to log probabilities; where it is sparse, the hypotheses
            have a `SearchRecord`.
    """
    if not sources:
        return []
    decoder = IncrementalDecoder(model, sources, device, cached, output)
    searches = [_Search(limit, beam, length_penalty, n_best) for limit in limits]
    live = list(range(len(sources)))  # the sentence of each place
    total_NW = torch.zeros(len(sources), 1, device=device)
    n_steps = 0
    while live:
        n_steps += 1
        log_probs_RV = decoder.log_probs()
        active = [searches[sentence] for sentence in live]
        n_possible = _count_possible(active, log_probs_RV, total_NW) if output.is_sparse else []
        width = total_NW.shape[1]
        chosen: dict[int, list[Continuation]] = {}  # of each place that continues
        best = best_continuations(log_probs_RV, total_NW, beam)
        for place, (search, step) in enumerate(zip(active, best, strict=True)):
            alive, ended = _divided(step, beam)
            search.close(ended, decoder.prefixes, finished=True)
            best_live = max(one.total for one in alive)
            if output.is_sparse:
                n_alive = sum(one.total > -math.inf for one in alive)
                search.is_exact &= n_possible[place] == len(ended) + n_alive
            is_cut_off = search.is_cut_off(n_steps)
            if is_cut_off:
                search.close(alive, decoder.prefixes, finished=False)
            if not search.is_done(best_live, n_steps):
                chosen[place] = with_fewest_moves(alive, width, first_row=place * width)
                continue
            is_open = not is_cut_off and best_live > -math.inf
            if is_open and not search.is_settled(best_live, n_steps):
                search.is_exact = False
            if not search.hypotheses:  # no continuation has any probability
                for row, total in enumerate(total_NW[place].tolist(), start=place * width):
                    search.add(decoder.prefixes[row], total, finished=False)
        places = fill_gaps(list(chosen))
        live = [live[place] for place in places]
        if live:
            totals, tokens, rows = zip(
                *(one for place in places for one in chosen[place]), strict=True
            )
            total_NW = torch.tensor(totals, dtype=log_probs_RV.dtype, device=device).view(
                len(live), -1
            )
            decoder.select(list(rows), list(tokens), places)
    if not output.is_sparse:
        return [search.best() for search in searches]
    return [
        [replace(hypothesis, search=search.record()) for hypothesis in search.best()]
        for search in searches
    ]


class Continuation(NamedTuple):
    """A live hypothesis with one more token."""

    total: float  # log probability with the new token; -inf where there is none
    token: int  # the new token
    row: int  # the row that is continued


@dataclass
class _Search:
    """Hypotheses of one sentence, and whether its search is done."""

    limit: int
    beam: int
    length_penalty: float
    n_best: int
    hypotheses: list[Hypothesis] = field(default_factory=list)
    is_exact: bool = True
    n_possible: int = 0  # tokens with a probability, over all steps of live hypotheses
    n_hypothesis_steps: int = 0

    def add(self, ids: list[int], log_prob: float, finished: bool) -> None:
        """Add a hypothesis, if it has a probability."""
        if log_prob > -math.inf:
            self.hypotheses.append(make_hypothesis(ids, log_prob, finished, self.length_penalty))

    def close(
        self, ends: Iterable[Continuation], prefixes: Sequence[list[int]], finished: bool
    ) -> None:
        """Add hypotheses that end here, by eos if they are `finished`."""
        for total, token, row in ends:
            self.add(prefixes[row] if finished else [*prefixes[row], token], total, finished)

    def record(self) -> SearchRecord:
        return SearchRecord(self.is_exact, self.n_possible, self.n_hypothesis_steps)

    def best(self) -> list[Hypothesis]:
        ranked = sorted(self.hypotheses, key=lambda hypothesis: -hypothesis.score)
        return ranked[: self.n_best]

    def is_done(self, best_live: float, n_steps: int) -> bool:
        """See the module docstring; `best_live` is the highest live log probability."""
        if len(self.hypotheses) >= self.beam or n_steps == self.limit or best_live == -math.inf:
            return True
        return self.is_settled(best_live, n_steps)

    def is_settled(self, best_live: float, n_steps: int) -> bool:
        """Whether no live hypothesis can still rank among the best `n_best`."""
        if len(self.hypotheses) < self.n_best:
            return False
        best_length = self.limit
        if self.length_penalty < 0:
            best_length = min(n_steps + 1, self.limit)
        bound = penalised(best_live, best_length, self.length_penalty)
        return bound <= self.best()[-1].score

    def is_cut_off(self, n_steps: int) -> bool:
        """Whether the limit is reached before `beam` hypotheses have finished."""
        return n_steps == self.limit and len(self.hypotheses) < self.beam


def best_continuations(
    log_probs_RV: Tensor, total_NW: Tensor, beam: int
) -> list[list[Continuation]]:
    """Return the best 2 * `beam` continuations of each sentence, best first.

    `torch.topk` does not define the order of equal values, nor which of them are cut off, and in
    bfloat16 many are equal. Here the one with the lower row and token is first; -inf in any order.
    `log_probs_RV` is overwritten.
    """
    n_sentences, width = total_NW.shape
    vocab_size = log_probs_RV.shape[1]
    total_NWV = log_probs_RV.view(n_sentences, width, vocab_size).add_(total_NW[:, :, None])
    total_NM = total_NWV.flatten(1)
    total_NC, index_NC = top_k(total_NM, 2 * beam + 1)
    best = []
    for place, (totals, columns) in enumerate(
        zip(total_NC.tolist(), index_NC.tolist(), strict=True)
    ):
        if totals[-1] == totals[-2] > -math.inf:
            index_T = (total_NM[place] >= totals[-1]).nonzero()[:, 0]
            totals, columns = total_NM[place, index_T].tolist(), index_T.tolist()
        pairs = sorted((-total, column) for total, column in zip(totals, columns, strict=True))
        first_row = place * width
        best.append(
            [
                Continuation(-cost, column % vocab_size, first_row + column // vocab_size)
                for cost, column in pairs[: 2 * beam]
            ]
        )
    return best


def _divided(
    step: Sequence[Continuation], beam: int
) -> tuple[list[Continuation], list[Continuation]]:
    """Return the best `beam` that do not end in eos, and those among the best `beam` that do.

    In a tiny or sparse vocabulary fewer than `beam` may continue; the other slots are -inf.
    """
    alive = [one for one in step if one.token != EOS]
    none = [one._replace(total=-math.inf) for one in step if one.token == EOS]
    ended = [one for one in step[:beam] if one.token == EOS and one.total > -math.inf]
    return (alive + none)[:beam], ended


def with_fewest_moves(alive: list[Continuation], width: int, first_row: int) -> list[Continuation]:
    """Return the same continuations in an order that moves the fewest rows.

    The best continuation of a hypothesis keeps its row, the others take rows without a
    continuation, so that caches copy only those. If `width` changes, the order is unchanged.

    Args:
        alive: of one sentence.
        width: its rows.
        first_row: the first of them.
    """
    if len(alive) != width:
        return alive
    kept: dict[int, Continuation] = {}
    others = iter([one for one in alive if kept.setdefault(one.row - first_row, one) is not one])
    return [kept[slot] if slot in kept else next(others) for slot in range(width)]


def _count_possible(
    searches: Sequence[_Search], log_probs_RV: Tensor, total_NW: Tensor
) -> list[int]:
    """Return how many continuations of each sentence have a probability; add it to its record."""
    is_live_NW = total_NW > -math.inf  # slots at -inf do not count
    n_possible_NW = (log_probs_RV > -math.inf).sum(dim=1).view_as(total_NW) * is_live_NW
    n_possible: list[int] = n_possible_NW.sum(dim=1).tolist()
    for search, n_new, n_live in zip(searches, n_possible, is_live_NW.sum(1).tolist(), strict=True):
        search.n_possible += n_new
        search.n_hypothesis_steps += n_live
    return n_possible


def top_k(scores_NM: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `torch.topk` of each row, of at most M values.

    Of a long row only the k blocks with the greatest maxima are searched, and the columns after the
    last whole block.
    """
    n_columns = scores_NM.shape[1]
    n_blocks = n_columns // BLOCK
    if n_blocks < 4 * k or scores_NM.numel() < FEW:
        values, indices = scores_NM.topk(min(k, n_columns), dim=1)
        return values, indices
    n_whole = n_blocks * BLOCK
    maxima_NJ = scores_NM[:, :n_whole].reshape(-1, n_blocks, BLOCK).amax(dim=2)
    first_NK1 = maxima_NJ.topk(k, dim=1).indices[:, :, None] * BLOCK
    column_M = torch.arange(n_columns, device=scores_NM.device)
    others_NC = column_M[n_whole:].expand(len(scores_NM), -1)
    index_NC = torch.cat([(first_NK1 + column_M[:BLOCK]).flatten(1), others_NC], dim=1)
    values, places = scores_NM.gather(1, index_NC).topk(k, dim=1)
    return values, index_NC.gather(1, places)

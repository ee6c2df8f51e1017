"""Measure all heads of a model on a text: every statistic from the same forward passes.

Results are rows of the tables in `headwise.analysis.tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from headwise.analysis.collect import HeadMeans, add_statistics, alphas, filled, stats_except_alpha
from headwise.analysis.density import Densities
from headwise.analysis.kinds import Places, Variations, kinds, region_shares
from headwise.analysis.observe import Call, OnBlock, observation
from headwise.analysis.positions import positions
from headwise.analysis.pruning import Head, flat_heads, present_heads
from headwise.analysis.roles import OFFSET_NAMES, Thresholds, roles
from headwise.analysis.tables import HEAD_KEY, HEADS
from headwise.analysis.text.questions import (
    QuestionWords,
    has_word_list,
    interrogation,
    n_tokens,
    question_words,
)
from headwise.analysis.text.rarity import rarest, rarity
from headwise.analysis.text.words import Surface, clusters, merging, surface
from headwise.languages import has_spaces
from headwise.track.base import numbered

if TYPE_CHECKING:
    from headwise.data.batch import Batch
    from headwise.model.family import Model
    from headwise.track.base import HeadValues

Rows = list[dict[str, Any]]
DIVERSITIES = {"diversity_heads": "heads", "diversity_keys": "keys"}
MIN_EXISTING = 0.5  # minimum share of tokens with a token at the offset of a head's role


@dataclass(frozen=True)
class ColumnText:
    """The text of one column of the batches, as tokens.

    Attributes:
        language: language code, with or without a region; empty: words are not measured.
        ids: token ids of each item, without special tokens at its ends.
        spelling: id -> text of the token; empty if it has none.
        places: of its values, if kinds of heads are measured.
    """

    language: str = ""
    ids: Sequence[Sequence[int]] = ()
    spelling: Callable[[int], str] = str
    places: Places | None = None

    @cached_property
    def surfaces(self) -> list[Surface]:
        """The surface of each item."""
        return [surface(list(map(self.spelling, row))) for row in self.ids]

    def clusters(self) -> list[list[int]] | None:
        """Return the cluster of every token; None if tokens do not mark words."""
        if not (self.language and has_spaces(self.language)):
            return None
        return [clusters(sentence) for sentence in self.surfaces]


@dataclass(frozen=True)
class Survey:
    """Rows of the tables of an analysis, and counts of tokens and words.

    Attributes:
        tables: name of a table -> its rows.
        counts: name -> number of tokens or words; absent if not measured.
    """

    tables: dict[str, Rows]
    counts: dict[str, int]


def survey(
    model: Model,
    blocks: Callable[[OnBlock], None],
    texts: Mapping[str, ColumnText],
    max_offset: int = 5,
    thresholds: Thresholds | None = None,
    extra: Mapping[str, HeadValues] | None = None,
) -> Survey:
    """Measure every head on a text.

    Args:
        model: whose heads are measured.
        blocks: calls a function with every batch and call of an attention, as `for_each_block`
            does; the `rows` of a batch are indices into the texts.
        texts: column -> its text; columns without one have no words. Questions and rare words are
            measured only in self-attention that is not causal.
        max_offset: offsets from -max_offset to max_offset are measured.
        thresholds: of the roles.
        extra: more statistics of heads.
    """
    means, text_means, kind_means = HeadMeans(), HeadMeans(), HeadMeans()
    sites = {site.name: site for site in model.sites}
    sees_both_sides = {s.keys for s in model.sites if s.queries == s.keys and not s.causal}
    bidirectional = sees_both_sides & texts.keys()
    densities = Densities()
    offsets = range(-max_offset, max_offset + 1)
    words = {name: text.clusters() for name, text in texts.items()}
    known = {name: text.places for name, text in texts.items() if text.places}
    rare = {name: rarest(texts[name].ids) for name in bidirectional if name not in known}
    variations = {name: Variations(of_column.window) for name, of_column in known.items()}
    questions = {n: _questions(texts[n]) for n in bidirectional if has_word_list(texts[n].language)}

    def on_block(batch: Batch, call: Call) -> None:
        add_statistics(means, call, DIVERSITIES)
        if call.weights_BHQK is None:
            return
        obs = observation(call)
        densities.add(obs)
        for values, counted in chain(
            positions(batch, obs, offsets),
            merging(batch, obs, words),
            rarity(batch, obs, rare),
            interrogation(batch, obs, questions),
        ):
            text_means.add(obs, values, counted)
        if obs.is_self and obs.keys in known:
            variations[obs.keys].add(obs)
            for values, counted in region_shares(batch, obs, known[obs.keys]):
                kind_means.add(obs, values, counted)

    blocks(on_block)
    stats = means.tables(model)
    # an α that depends on the query is reported as its mean
    alpha = filled(alphas(model), stats.pop("alpha", {}))
    stats = {"alpha": alpha, **stats_except_alpha(model), **stats}
    layers = _layer_rows(model, {name: stats.pop(name, {}) for name in DIVERSITIES})
    heads = _by_head(model, {**stats, **text_means.tables(model), **(extra or {})})
    shares = kind_means.tables(model)
    for variation in variations.values():
        shares["variation"] = {**shares.get("variation", {}), **variation.table(model)}
    of_kinds = [{**h, **v, "kinds": ";".join(kinds(v))} for h, v in _by_head(model, shares) if v]
    kinds_of = {tuple(row[name] for name in HEAD_KEY): row["kinds"] for row in of_kinds}
    counts = {
        **{f"{name}_tokens": sum(map(len, text.ids)) for name, text in texts.items()},
        **{k: n for name, rows in words.items() for k, n in _n_words(name, rows).items()},
    }
    for sentences in questions.values():
        counts |= {f"{name}_word_tokens": n for name, n in n_tokens(sentences).items()}
    rows = [_head_row(place, values, offsets) for place, values in heads]
    for row in rows:
        column = sites[row["site"]].keys
        names = roles(row, column, counts, thresholds or Thresholds())
        kind = kinds_of.get(tuple(row[name] for name in HEAD_KEY))
        row["roles"] = ";".join([*names, *([kind] if kind else [])])
    others = [name for name in {**stats, **(extra or {})} if name not in HEADS.columns]
    tables = {
        "heads": rows,
        "other_statistics": [
            {**place, "statistic": name, "value": values[name]}
            for place, values in heads
            for name in others
            if name in values
        ],
        "kinds": of_kinds,
        "layers": layers,
        "density": densities.histograms(),
    }
    return Survey(tables, counts)


def _questions(text: ColumnText) -> list[QuestionWords | None]:
    return [question_words(sentence, text.language) for sentence in text.surfaces]


def _n_words(column: str, sentences: Sequence[Sequence[int]] | None) -> dict[str, int]:
    """Count clusters, and clusters of several tokens."""
    if sentences is None:
        return {}
    n_all = sum(len(set(sentence)) for sentence in sentences)
    n_split = sum(sentence.count(c) > 1 for sentence in sentences for c in set(sentence))
    return {f"{column}_words": n_all, f"{column}_split_words": n_split}


def _by_head(
    model: Model, tables: Mapping[str, HeadValues]
) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Return place and statistics of every head, numbered as in the unpruned model."""
    present = present_heads(model)
    heads: dict[Head, dict[str, float]] = {head: {} for head in flat_heads(present)}
    for name, table in tables.items():
        for place, value in numbered(table, present):
            heads[place][name] = value
    return [(dict(zip(HEAD_KEY, place, strict=True)), stats) for place, stats in heads.items()]


def _head_row(
    place: Mapping[str, Any], stats: Mapping[str, float], offsets: Sequence[int]
) -> dict[str, Any]:
    row = {**place, **{n: v for n, v in stats.items() if n in HEADS.columns}}
    for offset, name in OFFSET_NAMES.items():
        row[f"{name}_share"] = stats.get(f"share{offset}")
        row[f"{name}_weight"] = stats.get(f"weight{offset}")
    measured = [o for o in offsets if f"share{o}" in stats and stats[f"exists{o}"] >= MIN_EXISTING]
    if measured:
        best = max(measured, key=lambda offset: (stats[f"share{offset}"], -abs(offset)))
        row["offset"] = best
        row["offset_share"], row["offset_weight"] = stats[f"share{best}"], stats[f"weight{best}"]
    return row


def _layer_rows(model: Model, diversities: Mapping[str, HeadValues]) -> Rows:
    rows: Rows = []
    for site, layer, _ in model.attentions():
        values = {n: v.get(site, [[]] * layer)[layer - 1] for n, v in diversities.items()}
        rows.append(
            {"site": site, "layer": layer, **{n: v[0] if v else None for n, v in values.items()}}
        )
    return rows

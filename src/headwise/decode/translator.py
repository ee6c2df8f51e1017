"""Translate text: tokenise, batch by length, search, detokenise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch

from headwise.config.schema import DecodeConfig
from headwise.data.loader import longest_first
from headwise.data.tokenizer import EOS, TokenizerPair
from headwise.decode.beam import beam_search
from headwise.decode.hypothesis import (
    Hypothesis,
    SearchRecord,
    check_decode_config,
    length_limit,
)
from headwise.decode.incremental import TranslationModel
from headwise.decode.prepared import PreparedModel, supports
from headwise.decode.scoring import TargetScore, score_ids
from headwise.errors import DataError
from headwise.losses.output_map import SOFTMAX, OutputMap
from headwise.model.family import evaluating
from headwise.model.transformer import Transformer
from headwise.ops.linear import packed_weights
from headwise.precision import autocast, matmul_dtype, resolve_precision
from headwise.progress import progress_bar


@dataclass(frozen=True)
class TranslatedSentence:
    """Translation of one sentence.

    Attributes:
        text: the best hypothesis, detokenised, always on one line.
        score: its log probability / length**penalty; 0 for an empty line.
        n_best: text and score of the `decode.n_best` best, best first; the first is the above.
        hypotheses: the same as ids; empty for an empty line, which is not translated.
    """

    text: str
    score: float
    n_best: tuple[tuple[str, float], ...]
    hypotheses: tuple[Hypothesis, ...]

    @property
    def search(self) -> SearchRecord | None:
        """Statistics of the search; None for an empty line, or unless the output map is sparse."""
        return self.hypotheses[0].search if self.hypotheses else None


EMPTY = TranslatedSentence("", 0.0, (("", 0.0),), ())
SCORING_SHARE = 4  # forced decoding holds the logits of every position: a quarter of max_tokens
# With fewer rows of all steps, packing the weights (`packed_weights`) takes longer than it saves.
# The number is estimated as source tokens times beam.
ROWS_WORTH_PACKING = 100


class Translator:
    """A model, its tokenizers and the settings of the search.

    A translation does not depend on the sentences it is batched with (`decode.precision=fp32`: the
    same strings, scores within 1e-4; under a sparse loss further apart where a token is at the
    edge of the support, whose logarithm is large). The model is in evaluation mode only during a
    call; calls in several threads may overlap. On a CPU, if `headwise.decode.prepared` supports it,
    each `translate` first makes its decoder ready, with the weights of that moment: during the
    call they take up to about 2.3 times their memory.

    Args:
        model: moved to `device`.
        tokenizers: tokenizers of the model's source and target ids.
        config: see `headwise.config.schema.DecodeConfig`; stored with
            `precision=auto` resolved.
        device: device of the computation.
        output: maps the model's logits to log probabilities: that of the training loss
            (`headwise.losses.loss.Loss.output_map`).

    Raises:
        ConfigError: an invalid setting.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizers: TokenizerPair,
        config: DecodeConfig,
        device: torch.device | str = "cpu",
        output: OutputMap = SOFTMAX,
    ) -> None:
        check_decode_config(config)
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.tokenizers = tokenizers
        precision = resolve_precision(config.precision, self.device)
        self.config = replace(config, precision=precision)
        self.output = output
        self.max_positions = model.target_embedding.max_positions

    def translate(
        self, sentences: Sequence[str], progress: bool = False, first_line: int = 1
    ) -> list[TranslatedSentence]:
        """Return translations in the order of `sentences`; an empty line stays empty.

        Args:
            progress: show a bar on a terminal.
            first_line: number of the first sentence in error messages.

        Raises:
            DataError: a string instead of a list, or a sentence above the maximum length (by line).
            RunError: non-finite logits.
        """
        require_lines(sentences)
        ids = self._source_ids(sentences, first_line)
        lines = [line for line, tokens in enumerate(ids) if tokens]
        lengths = [len(ids[line]) for line in lines]
        batches = longest_first(np.array(lengths), self.config.max_tokens // self.config.beam)
        translations = [EMPTY] * len(sentences)
        bar = progress_bar("translating", progress, len(lines), " sentences")
        with self._for_search(sum(lengths)) as model, bar:
            for indices in batches:
                batch = [lines[index] for index in indices]
                results = self._search(model, [ids[line] for line in batch])
                for line, hypotheses in zip(batch, results, strict=True):
                    translations[line] = self._translation(hypotheses)
                bar.update(len(batch))
        return translations

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[TargetScore]:
        """Return log probabilities of given translations (forced decoding), in order.

        The text is tokenised again. A search may yield other tokens for the same text; its
        `Hypothesis.log_prob` is that of its ids, as `score_ids` returns.

        Raises:
            DataError: unequal numbers of lines, an empty source line, or a line longer than the
                model's learned positions.
        """
        require_lines(sources, targets)
        if len(sources) != len(targets):
            raise DataError(
                f"{len(sources)} source lines but {len(targets)} translations to score: "
                "give one translation per source line"
            )
        source_ids = self._source_ids(sources)
        target_ids = self.tokenizers.target.encode(list(targets))
        for line, tokens in enumerate(source_ids, start=1):
            if not tokens:
                raise DataError(f"source line {line} is empty: it has no translation to score")
        check_lengths("translation", [len(ids) + 1 for ids in target_ids], self.max_positions)
        lengths = [max(len(s), len(t) + 1) for s, t in zip(source_ids, target_ids, strict=True)]
        batches = longest_first(np.array(lengths), self.config.max_tokens // SCORING_SHARE)
        scores: dict[int, TargetScore] = {}
        with evaluating(self.model), autocast(self.device, self.config.precision):
            for batch in batches:
                source, target = ([ids[i] for i in batch] for ids in (source_ids, target_ids))
                of_batch = score_ids(self.model, source, target, self.device, self.output)
                scores |= zip(batch.tolist(), of_batch, strict=True)
        return [scores[line] for line in range(len(sources))]

    def _source_ids(self, sentences: Sequence[str], first_line: int = 1) -> list[list[int]]:
        """Return ids with eos, as the encoder reads them; an empty list for an empty line."""
        ids = self.tokenizers.source.encode(list(sentences))
        # a byte tokenizer has ids for white space
        ids = [
            [*line, EOS] if line and sentence.strip() else []
            for line, sentence in zip(ids, sentences, strict=True)
        ]
        lengths = [len(line) for line in ids]
        check_lengths("source", lengths, self.model.max_source, first_line)
        return ids

    def check_sources(self, sentences: Sequence[str], first_line: int = 1) -> None:
        """Raise the error that `translate` would raise for these sentences.

        Raises:
            DataError: a sentence above the maximum length, by line number.
        """
        self._source_ids(sentences, first_line)

    @contextmanager
    def _for_search(self, n_tokens: int) -> Iterator[TranslationModel]:
        """Yield the model for a search: prepared if it supports this one, or with packed weights.

        Args:
            n_tokens: of all sources.
        """
        dtype = matmul_dtype(self.config.precision, self.device)
        is_long = n_tokens * self.config.beam >= ROWS_WORTH_PACKING
        with evaluating(self.model), autocast(self.device, self.config.precision):
            prepared = PreparedModel(self.model, dtype) if supports(self.model, dtype) else None
            with packed_weights(self.model) if is_long and prepared is None else nullcontext():
                yield prepared or self.model

    def _search(
        self, model: TranslationModel, sources: Sequence[Sequence[int]]
    ) -> list[list[Hypothesis]]:
        config = self.config
        limits = [length_limit(len(ids) - 1, config, self.max_positions) for ids in sources]
        settings = config.beam, config.length_penalty, config.n_best
        return beam_search(model, sources, limits, self.device, *settings, output=self.output)

    def _translation(self, hypotheses: Sequence[Hypothesis]) -> TranslatedSentence:
        texts = self.tokenizers.target.decode([list(hypothesis.ids) for hypothesis in hypotheses])
        # a model may generate a line break (byte fallback), which would shift later lines
        lines = [" ".join(text.splitlines()) for text in texts]
        scores = [hypothesis.score for hypothesis in hypotheses]
        pairs = tuple(zip(lines, scores, strict=True))
        return TranslatedSentence(lines[0], scores[0], pairs, tuple(hypotheses))


def require_lines(*sides: Sequence[str]) -> None:
    """Raise DataError for a string instead of a list: it would be read by character."""
    for side in sides:
        if isinstance(side, str):
            raise DataError(f"give a list of sentences, not one string: [{side[:40]!r}]")


def check_lengths(
    side: str, lengths: Sequence[int], limit: int | None, first_line: int = 1, split: str = ""
) -> None:
    """Check lengths in tokens with eos.

    Args:
        side: what has these lengths, for messages.
        lengths: of each line.
        limit: of the model; None: unlimited.
        first_line: number of the first line.
        split: name of the lines.

    Raises:
        DataError: a length above the limit, by line number.
    """
    where = f" of {split}" if split else ""
    for line, length in enumerate(lengths, start=first_line):
        if limit is not None and length > limit:
            raise DataError(
                f"{side} line {line}{where} has {length} tokens with eos; the model takes at most "
                f"{limit} (learned positions, or max_length of the attention): split the line, "
                "or train with a higher positions.max_positions or max_length"
            )

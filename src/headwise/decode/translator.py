"""From sentences to sentences: tokenise, batch by length, search, detokenise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from tqdm import tqdm

from headwise.config.schema import DecodeConfig
from headwise.data.tokenizer import EOS, TokenizerPair
from headwise.decode.batches import length_batches
from headwise.decode.beam import beam_search
from headwise.decode.greedy import greedy_search
from headwise.decode.hypothesis import (
    Hypothesis,
    SearchRecord,
    check_decode_config,
    length_limit,
)
from headwise.decode.scoring import TargetScore, score_ids
from headwise.errors import DataError, RunError
from headwise.kernels.linear import packed
from headwise.losses.output_map import SOFTMAX, OutputMap
from headwise.model.family import evaluating
from headwise.model.transformer import Transformer
from headwise.precision import autocast, resolve_precision


@dataclass(frozen=True)
class Translation:
    """The answer for one sentence.

    Attributes:
        text: the best hypothesis, detokenised, always on one line.
        score: its log probability / length**penalty; 0 for an empty line.
        n_best: text and score of the `decode.n_best` best, best first (the first is the above).
        hypotheses: the same as ids; none for an empty line, which is not given to the model.
    """

    text: str
    score: float
    n_best: tuple[tuple[str, float], ...]
    hypotheses: tuple[Hypothesis, ...]

    @property
    def search(self) -> SearchRecord | None:
        """How it was found; None for an empty line, and with an output that is not sparse."""
        return self.hypotheses[0].search if self.hypotheses else None


EMPTY = Translation("", 0.0, (("", 0.0),), ())
SCORING_SHARE = 4  # forced decoding holds the logits of every position: a quarter of max_tokens
# Of fewer, a search is over before what laying out the weights for it (`packed`) takes is gained.
# They are guessed as the pieces of the sources, a row for each hypothesis of each.
ROWS_WORTH_PACKING = 100


class Translator:
    """A model, its tokenizers and the settings of the search.

    A translation does not depend on the sentences it is batched with (`decode.precision=fp32`: the
    same strings, scores within 1e-4; under a sparse loss further apart where a word lies at the
    edge of the support, whose logarithm is large). The model is in evaluation mode for the time of
    a call only.

    Args:
        model: moved to `device`.
        tokenizers: of the model's source and target ids.
        config: see `headwise.config.schema.DecodeConfig`; kept with the precision that `auto` is
            here.
        device: where to compute.
        output: from the model's logits to log probabilities: that of the loss it was trained
            with (`headwise.losses.loss.Loss.output_map`).

    Raises:
        ConfigError: a setting that no search can follow.
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
        self.beam = config.beam if config.method == "beam" else 1
        self.max_positions = model.target_embedding.max_positions

    def translate(
        self, sentences: Sequence[str], progress: bool = False, first_line: int = 1
    ) -> list[Translation]:
        """Translations in the order of `sentences`; an empty line stays empty.

        Args:
            progress: show a bar on stderr.
            first_line: number of the first sentence, as errors count.

        Raises:
            DataError: one string, or a sentence longer than the model can take, by line number.
            RunError: out of memory, or a model whose output is not a number.
        """
        require_lines(sentences)
        ids = self._source_ids(sentences, first_line)
        lines = [line for line, pieces in enumerate(ids) if pieces]
        lengths = [len(ids[line]) for line in lines]
        batches = length_batches(lengths, self.config.max_tokens // self.beam)
        answers = [EMPTY] * len(sentences)
        is_long = sum(lengths) * self.beam >= ROWS_WORTH_PACKING
        fast = packed(self.model) if is_long else nullcontext()
        with self._ready(), fast, _bar(len(lines), "translate", progress) as bar:
            for places in batches:
                batch = [lines[place] for place in places]
                found = self._search([ids[line] for line in batch])
                for line, hypotheses in zip(batch, found, strict=True):
                    answers[line] = self._translation(hypotheses)
                bar.update(len(batch))
        return answers

    def score(
        self, sources: Sequence[str], targets: Sequence[str], progress: bool = False
    ) -> list[TargetScore]:
        """Log probabilities of given translations (forced decoding), in order.

        The text is tokenised anew. A search may spell the same text with other pieces; its
        `Hypothesis.log_prob` is that of the ids, which `score_ids` takes.

        Raises:
            DataError: unequal numbers of lines, an empty source line, or a line longer than the
                model's learned positions.
            RunError: out of memory.
        """
        require_lines(sources, targets)
        if len(sources) != len(targets):
            raise DataError(
                f"{len(sources)} source lines but {len(targets)} translations to score: "
                "give one translation a source line"
            )
        source_ids = self._source_ids(sources)
        target_ids = self.tokenizers.target.encode(list(targets))
        for line, pieces in enumerate(source_ids, start=1):
            if not pieces:
                raise DataError(f"source line {line} is empty: it has no translation to score")
        _check_lengths("translation", [len(ids) + 1 for ids in target_ids], self.max_positions)
        lengths = [max(len(s), len(t) + 1) for s, t in zip(source_ids, target_ids, strict=True)]
        batches = length_batches(lengths, self.config.max_tokens // SCORING_SHARE)
        scores: dict[int, TargetScore] = {}
        with self._ready(), _bar(len(sources), "score", progress) as bar:
            for batch in batches:
                found = score_ids(
                    self.model,
                    [source_ids[line] for line in batch],
                    [target_ids[line] for line in batch],
                    self.device,
                    self.output,
                )
                scores.update(zip(batch, found, strict=True))
                bar.update(len(batch))
        return [scores[line] for line in range(len(sources))]

    def _source_ids(
        self, sentences: Sequence[str], first_line: int = 1, split: str = ""
    ) -> list[list[int]]:
        """Ids as the encoder reads them, with eos; an empty list where there is no text."""
        pieces = self.tokenizers.source.encode(list(sentences))
        # a byte tokenizer gives white space ids of its own
        ids = [
            [*line, EOS] if line and sentence.strip() else []
            for line, sentence in zip(pieces, sentences, strict=True)
        ]
        lengths = [len(line) for line in ids]
        _check_lengths("source", lengths, self.model.max_source, first_line, split)
        return ids

    def check_sources(self, sentences: Sequence[str], split: str = "") -> None:
        """Refuse what `translate` would, before it has to.

        Args:
            split: what the sentences are called, for the message.

        Raises:
            DataError: a sentence longer than the model can take, by line number.
        """
        self._source_ids(sentences, split=split)

    def check_targets(self, lengths: Sequence[int], split: str = "") -> None:
        """Refuse references, of so many pieces with eos, that the model could not be asked about.

        Raises:
            DataError: one of more than there are learned positions, by line number.
        """
        _check_lengths("target", lengths, self.max_positions, split=split)

    def _search(self, sources: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        config, penalty = self.config, self.config.length_penalty
        limits = [length_limit(len(ids) - 1, config, self.max_positions) for ids in sources]
        task = self.model, sources, limits, self.device
        if config.method == "greedy":
            found = greedy_search(*task, penalty, output=self.output)
            return [[hypothesis] for hypothesis in found]
        return beam_search(*task, config.beam, penalty, config.n_best, output=self.output)

    def _translation(self, hypotheses: Sequence[Hypothesis]) -> Translation:
        texts = self.tokenizers.target.decode([list(found.ids) for found in hypotheses])
        # a model may spell a line break (byte fallback), which would shift every line below
        lines = [" ".join(text.splitlines()) for text in texts]
        scores = [found.score for found in hypotheses]
        pairs = tuple(zip(lines, scores, strict=True))
        return Translation(lines[0], scores[0], pairs, tuple(hypotheses))

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Evaluation mode, the precision, and an answer to a want of memory."""
        try:
            with evaluating(self.model), autocast(self.device, self.config.precision):
                yield
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"out of memory on {self.device}: lower decode.max_tokens "
                f"(now {self.config.max_tokens}) or decode.beam (now {self.beam})"
            ) from error


def require_lines(*sides: Sequence[str]) -> None:
    """Refuse one string where a list of sentences belongs: it would be read letter by letter."""
    for side in sides:
        if isinstance(side, str):
            raise DataError(f"give a list of sentences, not one string: [{side[:40]!r}]")


def _bar(n_sentences: int, name: str, progress: bool) -> tqdm[None]:
    return tqdm(total=n_sentences, desc=name, unit="sentence", disable=not progress)


def _check_lengths(
    side: str, lengths: Sequence[int], limit: int | None, first_line: int = 1, split: str = ""
) -> None:
    within = f" of {split}" if split else ""
    for line, length in enumerate(lengths, start=first_line):
        if limit is not None and length > limit:
            raise DataError(
                f"{side} line {line}{within} has {length} pieces with eos, and the model takes at "
                f"most {limit} (its learned positions, or the longest that its attention was made "
                "for): split the line, or train with a higher positions.max_positions, or "
                "max_length of the attention"
            )

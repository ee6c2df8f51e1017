"""A finished run of translation, ready to translate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from headwise.data.tokenizer import TokenizerPair
from headwise.decode.scoring import TargetScore
from headwise.decode.translator import TranslatedSentence, Translator, require_lines
from headwise.model.transformer import Transformer
from headwise.tasks.task import TrainedRun
from headwise.tasks.translation.cleaning import Normaliser


@dataclass(frozen=True)
class TranslationRun(TrainedRun):
    """A model with its tokenizers and its search settings, `config.decode`."""

    model: Transformer

    @cached_property
    def translator(self) -> Translator:
        """Translates with the settings of the run."""
        output, tokenizers = self.task.loss.output_map, TokenizerPair.load(self.folder.path)
        return Translator(self.model, tokenizers, self.config.decode, self.device, output)

    @property
    def tokenizers(self) -> TokenizerPair:
        """Tokenizers of source and target."""
        return self.translator.tokenizers

    @cached_property
    def normaliser(self) -> Normaliser:
        """Text normalisation of the corpus, also applied to input sentences."""
        data = self.config.data
        return Normaliser(data.cleaning.normalise, data.source, data.target)

    def translate(
        self, sentences: Sequence[str], progress: bool = False, first_line: int = 1
    ) -> list[TranslatedSentence]:
        """Translations in input order; see `Translator.translate`."""
        require_lines(sentences)
        sources = list(map(self.normaliser.source, sentences))
        return self.translator.translate(sources, progress, first_line)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[TargetScore]:
        """Log probabilities of given translations (forced decoding)."""
        require_lines(sources, targets)
        normalise = self.normaliser
        return self.translator.score(
            list(map(normalise.source, sources)), list(map(normalise.target, targets))
        )

"""A finished run of translation, ready to translate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from headwise.config.instantiate import instantiate
from headwise.config.keys import with_changes
from headwise.config.schema import DecodeConfig
from headwise.data.cleaning import Normaliser
from headwise.data.tokenizer import TokenizerPair
from headwise.decode.hypothesis import check_decode_config
from headwise.decode.scoring import TargetScore
from headwise.decode.translator import Translation, Translator, require_lines
from headwise.errors import require
from headwise.metrics.external import check_commands
from headwise.model.transformer import Transformer
from headwise.tasks.task import TrainedRun


@dataclass(frozen=True)
class TranslationRun(TrainedRun):
    """A model with its tokenizers and its search settings, `config.decode`."""

    model: Transformer
    translator: Translator

    @classmethod
    def from_run(cls, run: TrainedRun, search: Mapping[str, Any]) -> TranslationRun:
        """The run with changed search settings; None leaves a setting unchanged.

        Raises:
            ConfigError: an unknown `decode.<key>`, or a value of the wrong type.
        """
        settings = search_settings(run.config.decode, search)
        tokenizers = TokenizerPair.load(run.folder.path)
        output = instantiate(run.config.loss, "loss").output_map
        assert isinstance(run.model, Transformer)
        translator = Translator(run.model, tokenizers, settings, run.device, output)
        attributes = {field.name: getattr(run, field.name) for field in fields(TrainedRun)}
        attributes["config"] = replace(run.config, decode=translator.config)
        return cls(**attributes, translator=translator)

    @property
    def tokenizers(self) -> TokenizerPair:
        """Tokenizers of source and target."""
        return self.translator.tokenizers

    @property
    def search(self) -> dict[str, Any]:
        """See `TrainedRun.search`."""
        return asdict(self.translator.config)

    @property
    def facts(self) -> dict[str, str]:
        """See `TrainedRun.facts`."""
        settings = self.translator.config
        is_greedy = settings.method == "greedy"
        return {"search": "greedy" if is_greedy else f"beam {settings.beam}"}

    @property
    def normaliser(self) -> Normaliser:
        """Text normalisation of the corpus, also applied to input sentences."""
        data = self.config.data
        return Normaliser(data.cleaning.normalise, data.source, data.target)

    def translate(
        self, sentences: Sequence[str], progress: bool = False, first_line: int = 1
    ) -> list[Translation]:
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


def search_settings(settings: DecodeConfig, changes: Mapping[str, Any]) -> DecodeConfig:
    """Search settings with changes; see `TranslationRun.from_run`."""
    require(isinstance(settings, DecodeConfig), "decode", "the settings of a search", settings)
    changed = with_changes(settings, "decode", changes)
    check_decode_config(changed)
    check_commands(changed.external)
    return changed

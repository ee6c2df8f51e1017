"""A trained run, ready to translate: nothing but its folder is read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headwise.config.instantiate import instantiate
from headwise.config.schema import Config, DecodeConfig, RunSelection, SearchSelection
from headwise.data.cleaning import Normaliser
from headwise.data.digest import content_digest
from headwise.data.tokenizer import TokenizerPair
from headwise.decode.hypothesis import check_decode_config
from headwise.decode.scoring import TargetScore
from headwise.decode.translator import Translation, Translator, require_lines
from headwise.errors import ConfigError, RunError, unknown
from headwise.metrics.external import check_commands
from headwise.model.build import build_model
from headwise.model.kernels import kernels_of
from headwise.model.transformer import Transformer
from headwise.precision import product_type
from headwise.runs.folder import RunFolder, read_config
from headwise.tasks.task import task_of
from headwise.train.checkpoint import checkpoint_path, load_checkpoint, load_weights
from headwise.train.distributed import choose_device
from headwise.train.memory import keep_freed_memory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedRun:
    """A model with its tokenizers and settings.

    Attributes:
        checkpoint: the file of its weights.
    """

    folder: RunFolder
    config: Config
    model: Transformer
    tokenizers: TokenizerPair
    translator: Translator
    checkpoint: Path

    @property
    def weights(self) -> dict[str, str]:
        """Which weights these are, by name and by content."""
        return {"checkpoint": self.checkpoint.stem, "weights": content_digest(self.checkpoint)}

    @property
    def search(self) -> dict[str, Any]:
        """The settings of the search, as they are recorded beside scores."""
        return asdict(self.translator.config)

    @property
    def normaliser(self) -> Normaliser:
        """What was done to all text of the corpus, and must be done to what is translated."""
        data = self.config.data
        return Normaliser(data.cleaning.normalise, data.source, data.target)

    def translate(
        self, sentences: Sequence[str], progress: bool = False, first_line: int = 1
    ) -> list[Translation]:
        """Translations in order; see `Translator.translate`."""
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


def search_settings(
    own: DecodeConfig, changes: Mapping[str, Any], prefix: str = "decode."
) -> DecodeConfig:
    """The run's settings with some changed; null leaves one as it is.

    Raises:
        ConfigError: an unknown key or a value of a wrong type, as `decode.<key>`.
    """
    names = [field.name for field in fields(DecodeConfig) if field.name[0] != "_"]
    merged = OmegaConf.structured(own)
    for key, value in changes.items():
        if key not in names:
            raise unknown(prefix, key, names)
        if value is None:
            continue
        try:
            merged[key] = value
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{prefix}{key}: {reason}") from error
    content = OmegaConf.to_object(merged)
    assert isinstance(content, DecodeConfig)
    check_decode_config(content)
    check_commands(content.external)
    return content


def _warn_if_unfinished(folder: RunFolder, max_updates: int, stem: str) -> None:
    """Say so; records that cannot be read are no reason to refuse weights that can."""
    try:
        saved = folder.read_last().get("update")
        is_unfinished = saved is not None and folder.results_at(saved) is None
    except RunError as error:
        log.warning("%s", error)
        return
    if is_unfinished:
        stand = f"saved at update {saved} of {max_updates}"
        told = "%s is not finished (%s): its %s weights so far are taken"
        log.warning(told, folder.path, stand, stem)


def load(
    run: str | Path, checkpoint: str = "auto", device: str = "auto", **search: Any
) -> TrainedRun:
    """Load a run: `headwise.load("outputs/…").translate(["Guten Tag."])`.

    Args:
        run: its folder.
        checkpoint: auto, best, last, average, update_<n> or <n>, or average_<n> of the last n.
        device: auto, cpu or cuda.
        search: settings of the search that differ from the run's own, such as beam=10.

    Raises:
        RunError: no run there, or one of another version.
        CheckpointError: no such checkpoint, or one that is broken.
        ConfigError: an unknown device or a wrong setting of the search.
    """
    return _load(run, checkpoint, device, search, prefix="")


def load_selected(run: str | Path, selection: RunSelection) -> TrainedRun:
    """Load a run with the checkpoint, device and search that a command names; see `load`."""
    keep_freed_memory()
    search = selection.decode if isinstance(selection, SearchSelection) else {}
    return _load(run, selection.checkpoint, selection.device, search, "decode.")


def _load(
    run: str | Path, checkpoint: str, device: str, search: Mapping[str, Any], prefix: str
) -> TrainedRun:
    place = choose_device(device, key="device")
    folder = RunFolder.existing(run)
    config = read_config(folder)
    task = task_of(config)
    if task.command != "translate":
        raise RunError(f"{folder.path} is a run of task={task.name}, and cannot be read here yet")
    settings = search_settings(config.decode, search, prefix)
    path = checkpoint_path(folder, checkpoint)  # before the model is made
    tokenizers = TokenizerPair.load(folder.path)
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    model = build_model(config, *sizes, tokenizers.joint)
    load_weights(model, load_checkpoint(path)["model"], str(path))
    _warn_if_unfinished(folder, config.trainer.max_updates, path.stem)
    output = instantiate(config.loss, "loss").output_map
    translator = Translator(model.eval(), tokenizers, settings, place, output)
    kernels_of(model, None, product_type(settings.precision, place))  # verifies them
    return TrainedRun(folder, config, model, tokenizers, translator, path)

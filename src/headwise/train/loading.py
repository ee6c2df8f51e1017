"""A trained run, ready to translate: nothing but its folder is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headwise.data.tokenizer import TokenizerPair
from headwise.decode.scoring import TargetScore
from headwise.decode.translator import Translation, Translator
from headwise.errors import CheckpointError, RunError, nearest
from headwise.model.build import build_model
from headwise.model.transformer import Transformer
from headwise.schema import Config, DecodeConfig
from headwise.train.checkpoint import load_checkpoint, load_weights
from headwise.train.distributed import choose_device
from headwise.train.run_folder import RunFolder


@dataclass(frozen=True)
class TrainedRun:
    """A model with its tokenizers and settings."""

    folder: RunFolder
    config: Config
    model: Transformer
    tokenizers: TokenizerPair
    translator: Translator

    def translate(self, sentences: Sequence[str], progress: bool = False) -> list[Translation]:
        """Translations in order; see `Translator.translate`."""
        return self.translator.translate(sentences, progress)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[TargetScore]:
        """Log probabilities of given translations (forced decoding)."""
        return self.translator.score(sources, targets)


def read_config(folder: RunFolder) -> Config:
    """The typed configuration of a run.

    Raises:
        RunError: it was written by a version with other keys.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config), folder.read_config())
        content = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise RunError(
            f"{folder.path / 'config.yaml'} does not fit this version of headwise: {error}"
        ) from error
    assert isinstance(content, Config)
    return content


def checkpoint_path(folder: RunFolder, name: str) -> Path:
    """`auto` is the average where there is one, else the best, else the last."""
    if name == "auto":
        for candidate in ("average", "best", "last"):
            path = folder.checkpoints / f"{candidate}.pt"
            if path.is_file():
                return path
        raise CheckpointError(f"{folder.path} has no checkpoint yet")
    path = folder.checkpoints / f"{name}.pt"
    if not path.is_file():
        there = sorted(p.stem for p in folder.checkpoints.glob("*.pt"))
        close = nearest(name, there)
        hint = f" Did you mean {close}?" if close else ""
        raise CheckpointError(
            f"checkpoint={name} is not in {folder.path}; there are: auto, {', '.join(there)}.{hint}"
        )
    return path


def load_model(model: Transformer, folder: RunFolder, name: str) -> None:
    """Fill a model with the weights of a checkpoint."""
    path = checkpoint_path(folder, name)
    load_weights(model, load_checkpoint(path)["model"], str(path))


def load(
    run: str | Path,
    checkpoint: str = "auto",
    device: str = "auto",
    decode: DecodeConfig | None = None,
    **search: Any,
) -> TrainedRun:
    """Load a run: `headwise.load("outputs/…").translate(["Guten Tag."])`.

    Args:
        run: its folder.
        checkpoint: auto, best, last, average, or update_<n>.
        device: auto, cpu or cuda.
        decode: settings of the search; the run's own by default.
        search: single settings of it, such as beam=10.
    """
    folder = RunFolder.existing(run)
    config = read_config(folder)
    tokenizers = TokenizerPair.load(folder.path)
    model = build_model(
        config, tokenizers.source.vocab_size, tokenizers.target.vocab_size, tokenizers.joint
    )
    load_model(model, folder, checkpoint)
    settings = replace(decode if decode is not None else config.decode, **search)
    translator = Translator(model.eval(), tokenizers, settings, choose_device(device))
    return TrainedRun(folder, config, model, tokenizers, translator)

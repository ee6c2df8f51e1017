"""What makes two runs the same: equal settings, and equal content of what they read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from headwise.config.schema import Config
from headwise.data.file_corpus import Corpus
from headwise.data.sources.digest import FileHashes
from headwise.data.tokenizer_training import load_tokenizers
from headwise.errors import RunError
from headwise.runs.fingerprint import N_DIGITS, costs, fingerprint
from headwise.runs.folder import RunFolder
from headwise.runs.record import SETTINGS, Record
from headwise.train.checkpoint import checkpoint_path


def identity(
    config: Config, container: Mapping[str, Any], corpus: Corpus, swept: Collection[str] = ()
) -> dict[str, Any]:
    """The identity of a run, and what is in it besides settings and text, as in its data.json.

    Args:
        config: typed.
        container: the same, resolved.
        corpus: its data.
        swept: keys with several values in its sweep; those of `COST` are part of the identity.

    Returns:
        identity: hash of the settings, the training and validation text, a given tokenizer, and:
        init_weights: hash of the weights of `init_from`; left out without one.
        swept: key -> value of what costs only, if the sweep varies it; else left out.

    Raises:
        RunError: the weights of `init_from` are gone, or broken.
    """
    weights = None if config.init_from is None else init_weights(config)
    parts = {"init_weights": weights, "swept": costs(container, swept)}
    about = {key: value for key, value in parts.items() if value}
    given = [pair.content()] if (pair := load_tokenizers(config.tokenizer)) else []
    content = {"text": [*corpus.hashes(), *given], **about}
    return {"identity": fingerprint(container, content), **about}


def init_weights(config: Config) -> str:
    """Hash of the weights of `init_from`; if they are gone, of those that runs there began with."""
    path = config.init_from or ""
    try:
        origin = RunFolder.existing(path, "init_from")
    except RunError:
        outputs = Path(config.paths.outputs, config.experiment_name)
        runs = [Record(file.parent) for file in outputs.glob(f"*/{SETTINGS}")]
        started = [run.data for run in runs if run.saved.get("init_from") == path]
        known = {data["init_weights"] for data in started if "init_weights" in data}
        if len(known) != 1:
            raise
        return str(known.pop())
    return FileHashes(Path(config.paths.cache))(checkpoint_path(origin, "auto"))[:N_DIGITS]

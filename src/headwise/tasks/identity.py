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
from headwise.files import read_json
from headwise.runs.fingerprint import N_DIGITS, costs, fingerprint
from headwise.runs.folder import SETTINGS, RunFolder
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
    about: dict[str, Any] = {}
    if config.init_from is not None:
        about["init_weights"] = _weights_hash(config, container)
    if varied := costs(container, swept):
        about["swept"] = varied
    tokenizers = load_tokenizers(config.tokenizer)
    given = [] if tokenizers is None else [tokenizers.content()]
    content = {"text": [*corpus.hashes(), *given], **about}
    return {"identity": fingerprint(container, content), **about}


def _weights_hash(config: Config, container: Mapping[str, Any]) -> str:
    """Hash of the weights of `init_from`; if they are gone, as a run that started there has it."""
    assert config.init_from is not None
    try:
        origin = RunFolder.existing(config.init_from, "init_from")
    except RunError:
        outputs = Path(config.paths.outputs, config.experiment_name)
        started = (
            read_json(path.parent / "data.json", missing_ok=True).get("init_weights")
            for path in outputs.glob(f"*/{SETTINGS}")
            if RunFolder(path.parent).read_config().get("init_from") == config.init_from
        )
        known = set(filter(None, started))
        if len(known) != 1:
            raise
        return str(known.pop())
    checkpoint = checkpoint_path(origin, "auto")
    return FileHashes(Path(config.paths.cache))(checkpoint)[:N_DIGITS]

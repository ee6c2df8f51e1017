"""The batches that a run trains on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headwise.config.schema import Config
from headwise.data.batching import TrainingPairs
from headwise.data.bpe_dropout_epochs import EpochSplits
from headwise.data.encoded import PreparedCorpus
from headwise.data.loader import BatchLoader
from headwise.data.prefetch import Prefetched
from headwise.data.store import EncodedSplit
from headwise.train.distributed import Ranks

COMPILED_LENGTH_MULTIPLE = 8  # so that a compiled model sees few different lengths


def training_batches(
    config: Config, prepared: PreparedCorpus, ranks: Ranks, scratch: Path
) -> Prefetched:
    """Batches of this rank, made in the background; to be closed.

    Args:
        config, prepared, ranks: of the run.
        scratch: where the ids of an epoch are kept under BPE-dropout.
    """
    pairs = TrainingPairs(
        _training_split(config, prepared, ranks, scratch),
        config.trainer.max_tokens,
        config.seed,
        ranks.world_size,
        length_multiple=COMPILED_LENGTH_MULTIPLE if config.trainer.compile else 1,
    )
    loader = BatchLoader(pairs, ranks.rank, ranks.world_size)
    return Prefetched(loader, gpu=ranks.device if ranks.device.type == "cuda" else None)


def _training_split(
    config: Config, prepared: PreparedCorpus, ranks: Ranks, scratch: Path
) -> EncodedSplit | Callable[[int], EncodedSplit]:
    if not config.tokenizer.dropout:
        return prepared.train
    return EpochSplits(
        prepared,
        config.tokenizer.dropout,
        config.seed,
        scratch,
        n_workers=config.trainer.n_workers,
        progress=config.trainer.progress and ranks.is_main,
    )

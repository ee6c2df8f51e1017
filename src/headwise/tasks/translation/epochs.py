"""The training split of each epoch under BPE-dropout (Provilkov et al. 2020)."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import Any

from headwise.data.cache import make_once
from headwise.data.prefetch import DEPTH
from headwise.tasks.translation.encoding import EncodingJob, write_encoded
from headwise.tasks.translation.prepare import PreparedCorpus
from headwise.tasks.translation.store import EncodedSplit


class EpochSplits:
    """Encodes the training text again for each epoch; a `split` of `TrainingPairs`.

    The ids of an epoch depend on the text, `dropout`, `seed` and the epoch alone, not on the
    number of workers, so that a resumed run gets the same ids. The rows are those of
    `prepared.train`, in the same order. They are stored in `scratch`, a folder that the ranks of
    a run share, and removed a few epochs later.

    Args:
        prepared: the corpus; its text is converted again if it is not in the cache.
        dropout: probability in (0, 1) of dropping a merge, each time it could be applied.
        seed: of the run.
        scratch: folder for the ids; created if missing.
        n_workers: processes for encoding; None means one per core.
        progress: show a bar while encoding.
    """

    def __init__(
        self,
        prepared: PreparedCorpus,
        dropout: float,
        seed: int,
        scratch: Path,
        n_workers: int | None = None,
        progress: bool = True,
    ) -> None:
        text = prepared.corpus.train_text().paths
        self._job = EncodingJob(
            text,
            prepared.tokenizers,
            prepared.config.max_sentence_tokens,
            rows=prepared.folder / "train.rows.npy",
            dropout=dropout,
            seed=seed,
        )
        self._scratch = Path(scratch)
        self._n_workers = n_workers
        self._progress = progress
        key = f"{prepared.fingerprint} {dropout!r} {seed}"
        self._key = hashlib.sha256(key.encode()).hexdigest()[:16]

    def __call__(self, epoch: int) -> EncodedSplit:
        """The split of `epoch`, counted from 1."""
        folder = self._folder(epoch)
        job = dataclasses.replace(self._job, epoch=epoch)

        def make(partial: Path) -> dict[str, Any]:
            path = partial / f"epoch_{epoch}"
            return write_encoded(job, path, self._n_workers, self._progress)

        make_once(folder, make)
        # Other ranks are at most this many batches ahead or behind, and an epoch has at least one
        # batch.
        near = range(epoch - DEPTH - 1, epoch + DEPTH + 2)
        current = {self._folder(number) for number in near}
        for old in set(self._scratch.glob("epoch_*")) - current:
            if old.is_dir() and not old.name.endswith(".partial"):
                shutil.rmtree(old, ignore_errors=True)
        return EncodedSplit.open(folder / f"epoch_{epoch}", job.tokenizers.id_dtype)

    def _folder(self, epoch: int) -> Path:
        return self._scratch / f"epoch_{epoch}-{self._key}"

"""The training split of each epoch under BPE-dropout (Provilkov et al. 2020)."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import Any

from headwise.data.cache import make_once
from headwise.data.encoded import PreparedCorpus
from headwise.data.encoding import EncodingJob, write_encoded
from headwise.data.prefetch import DEPTH
from headwise.data.store import EncodedSplit


class EpochSplits:
    """Encodes the training text anew for each epoch; hand it to `TrainingPairs` as its split.

    An epoch's ids are a function of the text, `dropout`, `seed` and the epoch, whatever the
    number of workers, so that a resumed run sees the ids it would have seen. They have the rows
    of `prepared.train` in the same order. They are kept in `scratch`, a folder of one run that
    its ranks share, until the epoch after the next begins.

    Args:
        prepared: the corpus, whose text is converted anew if the cache has lost it.
        dropout: probability in (0, 1) that a merge is dropped, each time it could be applied.
        seed: the run's.
        scratch: where to keep the ids; made if need be.
        n_workers: processes for encoding; None means one a core.
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
            prepared.max_sentence_pieces,
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
        # Another rank makes its batches as far ahead, or is as far behind, and an epoch has one
        # batch at the least.
        near = range(epoch - DEPTH - 1, epoch + DEPTH + 2)
        current = {self._folder(number) for number in near}
        for old in set(self._scratch.glob("epoch_*")) - current:
            if old.is_dir() and not old.name.endswith(".partial"):
                shutil.rmtree(old, ignore_errors=True)
        return EncodedSplit.open(folder / f"epoch_{epoch}", job.tokenizers.id_dtype)

    def _folder(self, epoch: int) -> Path:
        return self._scratch / f"epoch_{epoch}-{self._key}"

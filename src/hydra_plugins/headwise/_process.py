"""The process of a job: loaded once, while Hydra reloads launchers."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from headwise.config.register import register
from headwise.files import guard_streams, lock
from headwise.train.interrupt import Handlers, StopRequest

_locks: list[IO[str]] = []  # open as long as this process


@dataclass(frozen=True)
class JobProcess:
    """Set-up of the process of a job.

    Attributes:
        folder: of the sweep.
        gpus: each process uses one that no other does; empty: leave CUDA_VISIBLE_DEVICES.
        cores: threads of torch, unless OMP_NUM_THREADS is set; None: leave them.
        arguments: the command line, for messages and environment.json.
        umask: of the launching process.
    """

    folder: Path
    gpus: Sequence[str]
    cores: int | None
    arguments: Sequence[str] = field(default_factory=lambda: list(sys.argv))
    umask: int = field(default_factory=lambda: _umask())

    def prepare(self) -> Handlers:
        """Set up this process; return the former signal handlers.

        From now on signals are recorded, and stop the job.
        """
        guard_streams()
        handlers = StopRequest(is_deferred=True).install()
        register()
        os.umask(self.umask)
        sys.argv[:] = self.arguments
        if self.cores:
            os.environ.setdefault("OMP_NUM_THREADS", str(self.cores))
        if self.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = self._free_gpu()
        return handlers

    def _free_gpu(self) -> str:
        for index, name in enumerate(self.gpus):
            file = open(self.folder / f"gpu-{index}.lock", "w")  # noqa: SIM115
            if lock(file) is False:
                file.close()
                continue
            _locks.append(file)
            return name
        return ",".join(self.gpus)  # more jobs than GPUs


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask

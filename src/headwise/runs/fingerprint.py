"""What makes two commands the same run: a fingerprint of settings and text; the folder's name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Keys that change where or how fast a run goes, or how much is told, but not what it computes.
NOT_IN_FINGERPRINT = (
    "paths",
    "tracker",
    "experiment_name",
    "dry_run",
    "decode.external",
    "data.dir",
    "data.folder",
    "data.files",
    "data.origins",
    "data.test",
    "data.licence",
    "data.notes",
    "tokenizer.folder",  # its content is in the fingerprint, as the text is
    # suggestions; what follows them is in the fingerprint itself
    "data.vocab_size",
    "data.max_updates",
    "data.warmup_updates",
    "model.lr",
    "trainer.max_updates",
    "trainer.device",
    "trainer.threads",
    "trainer.n_workers",
    "trainer.log_every",
    "trainer.progress",
)
MAX_SLUG_BYTES = 100


def comparable(container: Mapping[str, Any]) -> dict[str, Any]:
    """Flat dotted keys of everything the fingerprint sees.

    How often a run is saved counts only where the saved weights are averaged at its end.
    """
    flat: dict[str, Any] = {}
    left_out = list(NOT_IN_FINGERPRINT)
    if not container.get("trainer", {}).get("average"):
        left_out.append("trainer.save_every")

    def walk(prefix: str, value: Any) -> None:
        if any(prefix == key or prefix.startswith(f"{key}.") for key in left_out):
            return
        if isinstance(value, Mapping) and value:
            for name, below in value.items():
                walk(f"{prefix}.{name}" if prefix else str(name), below)
        else:
            flat[prefix] = value

    walk("", container)
    return flat


def fingerprint(container: Mapping[str, Any], text: Sequence[str] = ()) -> str:
    """Eight hexadecimal digits of what decides a run's result.

    Args:
        container: the resolved configuration.
        text: hashes of the training and validation text, and of a tokenizer that was given. Where
            the text lies does not count, so a corpus may move; what it says does, so two folders
            of text are two runs.
    """
    decisive = {**comparable(container), "text": list(text)}
    canonical = json.dumps(decisive, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def slug(overrides: Iterable[str]) -> str:
    """A folder name of the overrides: readable, short, without `=`, `,`, `+`, `/` and the like."""
    left_out = "|".join(re.escape(key) for key in (*NOT_IN_FINGERPRINT, "experiment", "hydra"))
    kept = [o for o in overrides if not re.match(rf"[+~]*({left_out})[.=/@]", o)]
    words = [re.sub(r"[^\w.-]+", "-", override).strip("-.") for override in sorted(kept)]
    name = "_".join(word for word in words if word)
    # file systems count bytes, 255 at most, and the fingerprint comes behind
    short = name.encode()[:MAX_SLUG_BYTES].decode(errors="ignore").rstrip("-._")
    return short or "run"

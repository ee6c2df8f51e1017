"""Identity of a run: the fingerprint of its settings and text, and its folder's name.

A key is in the fingerprint if another value may give other weights, choose other ones as the best,
or change their scores. It is out if it decides only where files are, how fast or with how much
memory the same is computed (results may differ by rounding and the random numbers of dropout), how
much is logged or kept, or how much besides the scores is computed. `docs/settings.md` lists them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

NOT_IN_FINGERPRINT = (
    "paths", "tracker", "experiment_name", "dry_run",
    "decode.max_tokens", "decode.n_best",  # the best one is the same
    "data.dir", "data.folder", "data.files", "data.file", "data.downloads", "data.origins",
    "data.archives", "data.tasks", "data.test", "data.licence", "data.notes",
    "tokenizer.folder",  # its content is in the fingerprint, like the text
    # suggestions; the keys that use them are in the fingerprint
    "data.vocab_size", "data.max_updates", "data.warmup_updates", "data.stride",
    "data.label_smoothing", "model.lr",
    "model.recompute", "trainer.max_updates", "trainer.device", "trainer.threads",
    "trainer.compile", "trainer.keep", "trainer.n_workers",
    "trainer.log_every", "trainer.progress", "trainer.valid_samples", "trainer.head_sentences",
    "attention.chunk_size", "sites.*.chunk_size",  # of linear attention
)  # fmt: skip
MAX_SLUG_BYTES = 100


def comparable(container: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the fingerprint, by dotted key.

    `trainer.save_every` is included only if the saved checkpoints are averaged.
    """
    flat: dict[str, Any] = {}
    excluded = set(NOT_IN_FINGERPRINT)
    if not container.get("trainer", {}).get("average"):
        excluded.add("trainer.save_every")
    patterns = [key for key in excluded if "*" in key]

    def walk(prefix: str, value: Any) -> None:
        if prefix in excluded or any(fnmatchcase(prefix, pattern) for pattern in patterns):
            return
        if isinstance(value, Mapping) and value:
            for name, child in value.items():
                walk(f"{prefix}.{name}" if prefix else str(name), child)
        else:
            flat[prefix] = value

    walk("", container)
    return flat


def fingerprint(container: Mapping[str, Any], text: Sequence[str] = ()) -> str:
    """Hash of the settings and text that determine results, as eight hexadecimal digits.

    Args:
        container: the resolved configuration.
        text: hashes of the training and validation text, and of an existing tokenizer. The
            content of the text is included, its path is not.
    """
    decisive = {**comparable(container), "text": list(text)}
    canonical = json.dumps(decisive, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def last_typed(overrides: Iterable[str]) -> list[str]:
    """The overrides that apply: of several for one key, Hydra uses the last."""
    return list({o.lstrip("+").partition("=")[:2]: o for o in overrides}.values())


def deciding(overrides: Iterable[str], *without: str) -> list[str]:
    """The overrides that apply and are in the fingerprint, without those of some keys."""
    excluded = "|".join(re.escape(key) for key in (*NOT_IN_FINGERPRINT, *without))
    excluded = excluded.replace(r"\*", r"\w+")
    return [o for o in last_typed(overrides) if not re.match(rf"[+~]*({excluded})[.=/@]", o)]


def slug(overrides: Iterable[str]) -> str:
    """Short folder name of the overrides, without `=`, `,`, `+`, `/` and similar characters."""
    included = deciding(overrides, "experiment", "hydra")
    words = [re.sub(r"[^\w.-]+", "-", override).strip("-.") for override in sorted(included)]
    name = "_".join(word for word in words if word)
    # file systems allow 255 bytes, and the fingerprint is appended
    short = name.encode()[:MAX_SLUG_BYTES].decode(errors="ignore").rstrip("-._")
    return short or "run"

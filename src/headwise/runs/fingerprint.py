"""Identity of a run: the fingerprint of its settings and of what it reads, and its folder's name.

A key is in the fingerprint if another value may give other weights, choose other ones as the best,
or change their scores. It is out if it decides only where files are, how fast or with how much
memory the same is computed (results may differ by rounding and the random numbers of dropout), how
much is logged or kept, or how much besides the scores is computed. `docs/settings.md` lists them.
What a run reads counts by its content, not by its path, see `headwise.tasks.identity`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

# Time, memory, length and output of a run. A sweep that varies one of them measures it, so each of
# its values is a run of its own.
COST = (
    "data.test", "decode.max_tokens", "decode.n_best",  # the best one is the same
    "model.recompute", "trainer.max_updates", "trainer.device", "trainer.threads",
    "trainer.compile", "trainer.keep", "trainer.n_workers",
    "trainer.log_every", "trainer.progress", "trainer.valid_samples", "trainer.head_sentences",
    "attention.chunk_size", "sites.*.chunk_size",  # of linear attention
)  # fmt: skip
PATHS = (  # their content is in the fingerprint
    "data.dir", "data.folder", "data.files", "data.file", "data.downloads", "data.origins",
    "data.archives", "tokenizer.folder",
)  # fmt: skip
NOT_IN_FINGERPRINT = (
    *COST, *PATHS, "paths", "tracker", "experiment_name", "dry_run",
    "data.tasks", "data.licence", "data.notes",
    # suggestions; the keys that use them are in the fingerprint
    "data.vocab_size", "data.max_updates", "data.warmup_updates", "data.stride",
    "data.label_smoothing", "model.lr",
)  # fmt: skip
N_DIGITS = 16  # of hashes in names and records
MAX_SLUG_BYTES = 100


def comparable(container: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the fingerprint, by dotted key.

    `trainer.save_every` is included only if the saved checkpoints are averaged.
    """
    excluded = set(NOT_IN_FINGERPRINT)
    if not container.get("trainer", {}).get("average"):
        excluded.add("trainer.save_every")
    return flat(container, excluded)


def costs(container: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Those of some dotted keys that are in `COST`, with their values."""
    varied = {key: value for key, value in flat(container).items() if key in keys}
    return {k: value for k, value in varied.items() if any(fnmatchcase(k, cost) for cost in COST)}


def flat(container: Mapping[str, Any], excluded: Collection[str] = ()) -> dict[str, Any]:
    """Settings by dotted key, without keys, groups and patterns of them."""
    settings: dict[str, Any] = {}
    patterns = [key for key in excluded if "*" in key]

    def walk(prefix: str, value: Any) -> None:
        if prefix in excluded or any(fnmatchcase(prefix, pattern) for pattern in patterns):
            return
        if isinstance(value, Mapping) and value:
            for name, child in value.items():
                walk(f"{prefix}.{name}" if prefix else str(name), child)
        else:
            settings[prefix] = value

    walk("", container)
    return settings


def canonical(content: Any) -> str:
    """Plain types as a text that is the same for equal content."""
    return json.dumps(content, sort_keys=True, ensure_ascii=False)


def digest(content: Any) -> str:
    """Hash of plain types, as `N_DIGITS` hexadecimal digits."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:N_DIGITS]


def recipe(container: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the fingerprint of a run: `comparable` without the path of `init_from`."""
    return {key: value for key, value in comparable(container).items() if key != "init_from"}


def fingerprint(container: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Hash of what determines results: the settings, and the content of what a run reads.

    Args:
        container: the resolved configuration.
        content: hashes of texts, tokenizers and weights, see `headwise.tasks.identity`.
    """
    return digest({**recipe(container), **content})


def last_typed(overrides: Iterable[str]) -> list[str]:
    """The overrides that apply: of several for one key, Hydra uses the last."""
    return list({o.lstrip("+").partition("=")[:2]: o for o in overrides}.values())


def slug(overrides: Iterable[str]) -> str:
    """Short name of the overrides that are in the fingerprint, without `=`, `,`, `+`, `/` etc."""
    keys = "|".join(re.escape(key) for key in (*NOT_IN_FINGERPRINT, "experiment", "hydra"))
    excluded = re.compile(rf"[+~]*({keys})[.=/@]".replace(r"\*", r"\w+"))
    included = (o for o in sorted(last_typed(overrides)) if not excluded.match(o))
    words = [re.sub(r"[^\w.-]+", "-", override).strip("-.") for override in included]
    name = "_".join(word for word in words if word)
    # file systems allow 255 bytes, and the fingerprint is appended
    short = name.encode()[:MAX_SLUG_BYTES].decode(errors="ignore").rstrip("-._")
    return short or "run"

"""Translations of a split, and their files in a run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.data.sources.digest import file_digest
from headwise.decode.hypothesis import SearchRecord
from headwise.decode.translator import TranslatedSentence
from headwise.files import write_text
from headwise.runs.folder import RunFolder
from headwise.tasks.task import Outputs
from headwise.tasks.translation.corpus import HYPOTHESES
from headwise.track.base import Tracker

MAX_LOGGED = 100  # sentences of a test set that a tracker logs


@dataclass
class Translations(Outputs):
    """Translations of sentences, with references.

    Args:
        sources: sentences.
        references: aligned with them.
        translations: of the same sentences.
    """

    sources: Sequence[str]
    references: Sequence[str]
    translations: Sequence[TranslatedSentence]

    @property
    def texts(self) -> list[str]:
        """The best translation of each sentence."""
        return [translation.text for translation in self.translations]

    def write(self, folder: RunFolder, name: Path, tracker: Tracker) -> Mapping[str, Any]:
        """See `Outputs.write`.

        Writes `<name>.txt`, `.ref.txt`, its hash `.ref.sha256` (as of `sha256sum`) and `.src.txt`
        to `hypotheses/`. Returns, with a sparse output map, "search", see `search_summary`.
        """
        path = folder.path / HYPOTHESES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        sides = {"txt": self.texts, "ref.txt": self.references, "src.txt": self.sources}
        for end, lines in sides.items():
            write_lines(Path(f"{path}.{end}"), lines)
        digest = file_digest(Path(f"{path}.ref.txt"))
        write_text(Path(f"{path}.ref.sha256"), f"{digest}  {path.name}.ref.txt\n")
        rows = list(zip(self.sources, self.references, self.texts, strict=True))[:MAX_LOGGED]
        tracker.log_table(f"hypotheses/{name}", ["source", "reference", "hypothesis"], rows)
        searches = search_summary(translation.search for translation in self.translations)
        notes = super().write(folder, name, tracker)
        return {**notes, "search": searches} if searches else notes


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write one sentence per line, see `one_line`."""
    write_text(path, "".join(f"{one_line(line)}\n" for line in lines))


def one_line(sentence: str) -> str:
    """The sentence with spaces instead of line breaks of any kind."""
    return " ".join(sentence.splitlines())


def search_summary(searches: Iterable[SearchRecord | None]) -> dict[str, float]:
    """Statistics of the searches with a sparse output (Peters et al. 2019).

    Returns:
        "exact", the share of sentences whose search dropped no hypothesis of nonzero probability,
        and "support", the mean number of tokens of nonzero probability per step.
        Empty without records: a dense output, or only empty lines.
    """
    recorded = [search for search in searches if search is not None]
    if not recorded:
        return {}
    return {
        "exact": sum(search.is_exact for search in recorded) / len(recorded),
        "support": sum(s.n_possible for s in recorded) / max(sum(s.n_steps for s in recorded), 1),
    }

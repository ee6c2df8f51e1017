"""Batches of sentences of similar length for decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def length_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Places in `lengths`, each once, longest first, as batches of at most `max_tokens`.

    A batch counts with its padding: sentences times the longest. A sentence that is longer than
    `max_tokens` is a batch of its own. Longest first shows a want of memory at the start.
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch

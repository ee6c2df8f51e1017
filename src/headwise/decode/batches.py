"""Batches of sentences of similar length for decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def length_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices into `lengths`, longest first, of at most `max_tokens` each.

    Padding counts: the size is sentences times the longest. A sentence longer than `max_tokens`
    is a batch by itself. Longest first, so that out-of-memory errors occur at the start.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch

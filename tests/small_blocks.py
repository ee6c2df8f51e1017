"""Little data in many blocks, so that every border of a block is crossed."""

import pytest

BLOCKS = {
    "stream.music.BLOCK": 5000,  # frames of audio
    "stream.stream.BATCH_BYTES": 9,
    "stream.text.MAX_CHUNK": 100,
    "translation.encoding.SHARD_PAIRS": 7,  # more shards than two workers get at once
    "translation.corpus.CHUNK_PAIRS": 13,
}
POOLS = {"translation.encoding.POOL_PAIRS": 30, "translation.prepare.POOL_PAIRS": 30}


def set_sizes(monkeypatch, sizes):
    for name, size in sizes.items():
        monkeypatch.setattr(f"headwise.tasks.{name}", size)


@pytest.fixture
def small_blocks(monkeypatch):
    set_sizes(monkeypatch, BLOCKS)


@pytest.fixture
def small_pools(monkeypatch):
    """Processes are started for little data, too."""
    set_sizes(monkeypatch, POOLS)

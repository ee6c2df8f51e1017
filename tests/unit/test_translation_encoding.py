"""One shard of a corpus: random draws and counts."""

import pytest

from headwise.config.schema import TokenizerConfig
from headwise.data.tokenizer import UNK, TokenizerPair
from headwise.data.tokenizer_training import train_tokenizer
from headwise.tasks.translation.encoding import EncodingJob, ShardEncoder, write_encoded
from headwise.tasks.translation.text import write_pairs

SENTENCES = ["banane rubin", "salbei banner", "linsen und salbei"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter(SENTENCES * 9), TokenizerConfig(vocab_size=30))


def job_of(folder, tokenizer, pairs, **options):
    """Shards of three pairs each."""
    text = folder / "text.de", folder / "text.en"
    write_pairs(iter(pairs), text)
    return EncodingJob(text, TokenizerPair(tokenizer, tokenizer, True), shard_pairs=3, **options)


def test_sides_and_shards_use_different_random_draws(tmp_path, tokenizer):
    job = job_of(tmp_path, tokenizer, [(text, text) for text in SENTENCES] * 4, dropout=0.4)
    samples = [ids for shard in range(4) for ids, _ in ShardEncoder(job).encode(shard).sides]
    assert {text for ids in samples for text in tokenizer.decode([ids])} == {" ".join(SENTENCES)}
    assert len({ids.tobytes() for ids in samples}) == 8


def test_unknown_tokens_are_counted_per_side(tmp_path, tokenizer):
    pairs = [("banane", "q"), ("rubin q", "q q q"), ("linsen", "salbei"), ("q", "banner")]
    job = job_of(tmp_path, tokenizer, pairs)
    counts = write_encoded(job, tmp_path / "ids", 1, progress=False)
    for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        ids = [token_id for row in tokenizer.encode(texts) for token_id in row]
        assert counts[f"{side}_pieces"] == len(ids)
        assert counts[f"{side}_mean_pieces"] == len(ids) / len(pairs)
        assert counts[f"{side}_unknown_share"] == ids.count(UNK) / len(ids) > 0
    assert counts["source_unknown_share"] != counts["target_unknown_share"]

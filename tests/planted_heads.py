"""A Transformer whose heads are given their roles by hand, and a text to see them at work.

The first layers read embeddings as they are (post-norm): one-hot positions, and what a token is.
Queries and keys of a head pick the features that shall meet.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from headwise.analysis.survey import ColumnText
from headwise.attention.heads import MultiHeadAttention
from headwise.data.batch import Batch
from headwise.data.batching import evaluation_batches
from headwise.data.store import EncodedSplit
from headwise.model.transformer import Transformer

E = 32  # head width
N_POSITIONS = 24
# where the features stand
POSITION, ASKS, MARK, RARE, END, WORD, HELD = 0, 24, 25, 26, 27, 32, 64
SHARP = 12.0  # scores where features meet

SINGLES = ["▁ab", "▁cd", "▁ef", "▁gh", "▁ij", "▁kl"]
SPLIT = [["▁mn", "op"], ["▁qr", "st", "uv"], ["▁wx", "-", "yz"], ["▁ba", "dc", "fe", "hg"]]
RARES = [f"▁rare{letter}" for letter in "abcdefghijklmnopqrst"]
ASKING = ["▁was", "▁wer"]
MARKS = [".", "?"]
PIECES = ["<pad>", "<unk>", "<s>", "</s>", *SINGLES, *chain(*SPLIT), *RARES, *ASKING, *MARKS]
IDS = {piece: number for number, piece in enumerate(PIECES)}
WORDS = [[single] for single in SINGLES] + SPLIT

ROLES = {  # what each head of the encoder is made to do
    1: "previous", 2: "next", 3: "merging", 4: "interrogation", 5: "rare", 6: "uniform",
    7: "current", 8: "offset+2", 9: "end",
}  # fmt: skip
DECODER_ROLES = {1: "previous", 2: "current", 3: "merging", 4: "uniform"}
D = E * len(ROLES)
SETTINGS = (
    "model=tiny", f"model.d_model={D}", f"model.n_heads={len(ROLES)}", "model.d_ff=8",
    "model.encoder_layers=1", "model.decoder_layers=1", "norm=post", "positions=learned",
    f"positions.max_positions={N_POSITIONS}", "model.share_embeddings=all",
)  # fmt: skip


def sentences(n: int = 40, seed: int = 1, split: bool = True) -> list[list[str]]:
    """Pieces of questions and statements, each with one rare word, some with question words.

    Args:
        split: each has a word of several pieces as well.
    """
    chosen = random.Random(seed)
    found = []
    for number in range(n):
        words = [[word] for word in chosen.sample(SINGLES, 3)]
        if split:
            words.append(chosen.choice(SPLIT))
        words.append([RARES[number % len(RARES)]])
        chosen.shuffle(words)
        if number % 3:
            words.insert(chosen.randrange(3), [chosen.choice(ASKING)])
        found.append([*chain(*words), MARKS[number % 2]])
    return found


def side(pieces: Sequence[Sequence[str]], language: str = "de") -> ColumnText:
    return ColumnText(language, [[IDS[p] for p in row] for row in pieces], PIECES.__getitem__)


def batches(pieces: Sequence[Sequence[str]], max_tokens: int = 300) -> list[Batch]:
    ids = [[IDS[piece] for piece in row] for row in pieces]
    return list(evaluation_batches(EncodedSplit.from_lists(ids, ids), max_tokens))


def token_features(width: int = D) -> Tensor:
    """What every token is, (V, D)."""
    table = torch.zeros(len(PIECES), width)
    for number, word in enumerate(WORDS):
        for place, piece in enumerate(word):
            table[IDS[piece], WORD + number] = 1.0
            # what the other pieces of a word look at is its first piece
            table[IDS[piece], HELD + number] = 1.0 if place == 0 else 0.4
    for number, piece in enumerate([*ASKING, *MARKS], start=len(WORDS)):
        table[IDS[piece], [WORD + number, HELD + number]] = 1.0
    for piece in RARES:  # one word feature for all: no sentence has two
        table[IDS[piece], [WORD + 31, HELD + 31, RARE]] = 1.0
    table[[IDS[piece] for piece in ASKING], ASKS] = 1.0
    table[IDS["?"], MARK] = 1.0
    table[IDS["</s>"], END] = 1.0
    return table


def plant(model: Transformer, table: Tensor) -> Transformer:
    """Give the heads of the first layers their roles.

    Args:
        table: features of tokens.
    """
    with torch.no_grad():
        scale = model.source_embedding.scale
        for embedding in (model.source_embedding, model.target_embedding):
            embedding.token.weight.copy_(table / scale)
            positions = embedding.positions.table.weight  # type: ignore[union-attr]
            positions.zero_()
            positions[:, POSITION : POSITION + N_POSITIONS] = torch.eye(N_POSITIONS)
        if model.source_embedding.registers is not None:
            model.source_embedding.registers.weight.zero_()
        for site, _, attention in model.attentions():
            for part in (attention.query, attention.key):
                part.weight.zero_()
                part.bias.zero_()
            roles = {"encoder_self": ROLES, "decoder_self": DECODER_ROLES}.get(site, {})
            for number, role in roles.items():
                _plant_head(attention, number - 1, role)
    return model


def _plant_head(attention: MultiHeadAttention, head: int, role: str) -> None:
    """Features f of queries and g of keys that meet: score SHARP where both are there."""
    pairs: list[tuple[int | None, int]] = []  # feature of the query (None: any), of the key
    offset = {"previous": -1, "next": 1, "current": 0, "offset+2": 2}.get(role)
    if offset is not None:
        places = [(p, p + offset) for p in range(N_POSITIONS) if 0 <= p + offset < N_POSITIONS]
        pairs = [(POSITION + p, POSITION + other) for p, other in places]
    elif role == "merging":
        pairs = [(WORD + number, HELD + number) for number in range(E)]
    elif role == "interrogation":
        pairs = [(ASKS, MARK)]
    elif role in ("rare", "end"):
        pairs = [(None, RARE if role == "rare" else END)]
    for index, (query, key) in enumerate(pairs):
        row = head * E + index
        attention.key.weight[row, key] = 1.0
        if query is None:
            attention.query.bias[row] = SHARP * math.sqrt(E)
        else:
            attention.query.weight[row, query] = SHARP * math.sqrt(E)


def planted(make: Any, *overrides: str, heads: Any = None) -> Transformer:
    """The model, from the real configuration."""
    from headwise.config.schema import typed
    from headwise.model.build import build_model

    config = typed(make([*SETTINGS, *overrides]))
    config.model.heads = heads
    model = build_model(config, len(PIECES), len(PIECES), True).eval()
    return plant(model, token_features()) if heads is None else model

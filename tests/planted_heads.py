"""A Transformer whose heads have known roles, and a text for them.

The first layers read the embeddings unchanged (post-norm): one-hot positions and token features.
The query and key weights of a head select the features that match.
"""

import math
import random
from itertools import chain

import torch

from headwise.analysis.survey import ColumnText
from headwise.config.register import typed
from headwise.model.build import build_model
from headwise.tasks.translation.batches import evaluation_batches
from headwise.tasks.translation.corpus import EncodedSplit

E = 32  # head width
N_POSITIONS = 24
# dimensions of the features
POSITION, QUESTION_WORD, QUESTION_MARK, RARE, END, WORD, WORD_KEY = 0, 24, 25, 26, 27, 32, 64
SHARP = 12.0  # score of matching features

SINGLES = ["▁ab", "▁cd", "▁ef", "▁gh", "▁ij", "▁kl"]
SPLIT_WORDS = [["▁mn", "op"], ["▁qr", "st", "uv"], ["▁wx", "-", "yz"], ["▁ba", "dc", "fe", "hg"]]
RARES = [f"▁rare{letter}" for letter in "abcdefghijklmnopqrst"]
QUESTION_WORDS = ["▁was", "▁wer"]
MARKS = [".", "?"]
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
TOKENS = [*SPECIAL, *SINGLES, *chain(*SPLIT_WORDS), *RARES, *QUESTION_WORDS, *MARKS]
IDS = {token: number for number, token in enumerate(TOKENS)}
WORDS = [[single] for single in SINGLES] + SPLIT_WORDS

ROLES = {  # role of each encoder head
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


def sentences(n=40):
    """Tokens of questions and statements, each with a rare word and a word of several tokens."""
    generator = random.Random(1)
    rows = []
    for number in range(n):
        words = [[word] for word in generator.sample(SINGLES, 3)]
        words.append(generator.choice(SPLIT_WORDS))
        words.append([RARES[number % len(RARES)]])
        generator.shuffle(words)
        if number % 3:
            words.insert(generator.randrange(3), [generator.choice(QUESTION_WORDS)])
        rows.append([*chain(*words), MARKS[number % 2]])
    return rows


def column_text(tokens, language="de"):
    return ColumnText(language, [[IDS[p] for p in row] for row in tokens], TOKENS.__getitem__)


def batches(tokens, max_tokens=300):
    ids = [[IDS[token] for token in row] for row in tokens]
    return list(evaluation_batches(EncodedSplit.from_lists(ids, ids), max_tokens))


def token_features(width=D):
    """Features of every token (V, D)."""
    table = torch.zeros(len(TOKENS), width)
    for number, word in enumerate(WORDS):
        for place, token in enumerate(word):
            table[IDS[token], WORD + number] = 1.0
            # the other tokens of a word attend to its first token
            table[IDS[token], WORD_KEY + number] = 1.0 if place == 0 else 0.4
    for number, token in enumerate([*QUESTION_WORDS, *MARKS], start=len(WORDS)):
        table[IDS[token], [WORD + number, WORD_KEY + number]] = 1.0
    for token in RARES:  # they share a word feature: no sentence has two
        table[IDS[token], [WORD + 31, WORD_KEY + 31, RARE]] = 1.0
    table[[IDS[token] for token in QUESTION_WORDS], QUESTION_WORD] = 1.0
    table[IDS["?"], QUESTION_MARK] = 1.0
    table[IDS["</s>"], END] = 1.0
    return table


def plant(model, table):
    """Set the weights of the first layers so that heads have their roles.

    Args:
        table: features of tokens.
    """
    with torch.no_grad():
        scale = model.source_embedding.scale
        for embedding in (model.source_embedding, model.target_embedding):
            embedding.token.weight.copy_(table / scale)
            positions = embedding.positions.table.weight
            positions.zero_()
            positions[:, POSITION : POSITION + N_POSITIONS] = torch.eye(N_POSITIONS)
        if model.source_embedding.cls is not None:
            model.source_embedding.cls.weight.zero_()
        for site, _, attention in model.attentions():
            for part in (attention.query, attention.key):
                part.weight.zero_()
                part.bias.zero_()
            roles = {"encoder_self": ROLES, "decoder_self": DECODER_ROLES}.get(site, {})
            for number, role in roles.items():
                _plant_head(attention, number - 1, role)
    return model


def _plant_head(attention, head, role):
    """Score SHARP for pairs of a query feature and a key feature."""
    pairs = []  # feature of the query (None: any), of the key
    offset = {"previous": -1, "next": 1, "current": 0, "offset+2": 2}.get(role)
    if offset is not None:
        places = [(p, p + offset) for p in range(N_POSITIONS) if 0 <= p + offset < N_POSITIONS]
        pairs = [(POSITION + p, POSITION + other) for p, other in places]
    elif role == "merging":
        pairs = [(WORD + number, WORD_KEY + number) for number in range(E)]
    elif role == "interrogation":
        pairs = [(QUESTION_WORD, QUESTION_MARK)]
    elif role in ("rare", "end"):
        pairs = [(None, RARE if role == "rare" else END)]
    for index, (query, key) in enumerate(pairs):
        row = head * E + index
        attention.key.weight[row, key] = 1.0
        if query is None:
            attention.query.bias[row] = SHARP * math.sqrt(E)
        else:
            attention.query.weight[row, query] = SHARP * math.sqrt(E)


def planted(make, *overrides, heads=None):
    """The model of a composed configuration, with planted heads."""
    config = typed(make([*SETTINGS, *overrides]))
    config.model.heads = heads
    model = build_model(config, len(TOKENS), len(TOKENS), True).eval()
    return plant(model, token_features()) if heads is None else model

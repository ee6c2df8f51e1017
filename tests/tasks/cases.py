"""The cases of the contract of tasks: every task on small data."""

import numpy as np

from command_line import write_corpus
from headwise.data.lossless import text_ids
from headwise.data.tokenizer import Tokenizer
from tasks import data, scores
from tasks.data import LENGTH, N_ROWS, PICTURE, SHAPE, VALUES
from tasks.scores import MUSIC_WINDOW, WINDOW
from tasks.trained import TaskCase

DOCUMENTS = ("data.documents=line", "data.document_mask=true")


def listed(values):
    """A list as an override."""
    return str(list(values)).replace(" ", "")


def spelled(text):
    return text.replace(" ", "▁")


def translation_page(trained):
    de, en = (trained.data(f"test_a.{end}").read_text().splitlines() for end in ("de", "en"))
    return [
        ({"source": source, "reference": target}, f"▁{spelled(source)}</s>")
        for source, target in zip(de, en, strict=True)
    ]


def text_page(trained):
    text = trained.data("test.txt").read_text(encoding="utf-8").encode()
    windows = [text[i : i + WINDOW] for i in range(0, len(text), WINDOW)]
    return [
        ({"text": window}, f"<s>{spelled(window[:-1])}")
        for window in (part.decode(errors="ignore") for part in windows)
    ]


def masked_page(trained):
    tokenizer = Tokenizer.load(trained.run / "tokenizer.model")
    ids = text_ids(trained.data("test.txt").read_text(encoding="utf-8"), tokenizer).tolist()
    windows = [tokenizer.decode([ids[i : i + WINDOW]])[0] for i in range(0, len(ids), WINDOW)]
    return [({"text": window}, spelled(window)) for window in windows]


def image_page(trained):
    images = np.load(trained.data("test.npy"))
    return [({"image": "image of test"}, image.tobytes()) for image in images]


def music_page(trained):
    values = np.concatenate(data.codes("test")).tobytes()
    windows = [values[i : i + MUSIC_WINDOW] for i in range(0, len(values), MUSIC_WINDOW)]
    return [({"window": "window of test"}, window) for window in windows]


def class_page(trained):
    n_texts = 2 if "data.pair=other" in trained.overrides else 1
    return [
        (
            {"text": "\t".join(texts[:n_texts]), "label": label},
            "".join(["CLS token 1CLS token 2", *(f"{spelled(t)}</s>" for t in texts[:n_texts])]),
        )
        for label, *texts in data.rows("test")
    ]


def picture_page(trained):
    return [
        ({"image": "image of test", "label": label}, image.tobytes())
        for label, images in data.pictures("test").items()
        for image in images
    ]


def sequence_page(trained):
    loaded, items = trained.loaded(), []
    for number in range(9):
        batch = loaded.task.layout.batch(loaded.task.rows("12", [number]), [0])
        ids = next(iter(batch.columns.values())).ids_BN[0].tolist()
        items.append(({"row": f"12 {number}"}, "".join("·" if i == 13 else str(i) for i in ids)))
    return items


def majority_page(trained):
    items = [list(map(str, bits)) for bits in data.majority_bits("test")]
    return [({"bits": " ".join(bits)}, "".join(bits)) for bits in items]


BOTH = ("encoder_self", "decoder_self", "cross")
TEXT = ("data=text", f"data.window={WINDOW}", "model.layers=2")
LABELLED = (
    "data=labelled", "tokenizer=byte", "model.n_heads=2", "model.layers=2", "model.cls_tokens=2",
    "trainer.max_tokens=400", "scheduler=constant", "optimizer.lr=0.01",
)  # fmt: skip
LONGER = ("trainer.max_updates=40", "trainer.validate_every=20", "trainer.save_every=20")
RECALL = (
    "data=recall", "data.rows.keys=8", "data.rows.values=3", "data.rows.asked=2",
    "data.min_length=8", "data.max_length=12", "data.first_length=4", "data.curriculum=4",
    "data.test_lengths=[12,40]", "data.n_test=9", "data.epoch_batches=5", "positions=nape",
    "model.n_heads=2", "trainer.max_tokens=80",
)  # fmt: skip
MAJORITY = (
    "data=majority", f"task.length={LENGTH}", "task.n_train=40", f"task.n_test={N_ROWS}",
    "model.layers=2",
)  # fmt: skip

ALL = [
    TaskCase(
        "translation",
        ("data=files", "data.source=de", "data.target=en", "tokenizer.vocab_size=60",
         "model.n_heads=2", "model.encoder_layers=1", "model.decoder_layers=1",
         "decode.max_length_extra=3", "trainer.max_tokens=256"),
        dict.fromkeys(BOTH, (1, 2)),
        scores.translation_scores,
        translation_page,
        write_corpus,
        greedy=("decode.beam=1",),
    ),
    TaskCase(
        "text",
        TEXT,
        {"decoder_self": (2, 4)},
        scores.text_scores,
        text_page,
        data.write_texts,
    ),
    TaskCase(
        "documents",
        (*TEXT, *DOCUMENTS, "positions=rotary", "attention=softmax"),
        {"decoder_self": (2, 4)},
        scores.text_scores,
        text_page,
        data.write_texts,
    ),
    TaskCase(
        "images",
        ("data=images", f"data.shape={listed(SHAPE)}", f"data.window={VALUES}",
         "positions=data_dims", "pattern=strided", "pattern.stride=15", "model.layers=2",
         "trainer.max_tokens=120"),
        {"decoder_self": (2, 4)},
        scores.image_scores,
        image_page,
        data.write_images,
    ),
    TaskCase(
        "music",
        ("data=music", f"data.window={MUSIC_WINDOW}", "positions=attention_dims",
         "positions.width=5", "model.layers=2", "trainer.max_tokens=80"),
        {"decoder_self": (2, 4)},
        scores.music_scores,
        music_page,
        data.write_music,
    ),
    TaskCase(
        "masked_lm",
        ("task=masked_lm", *TEXT, "tokenizer=bpe", "tokenizer.vocab_size=300", "data.language=de"),
        {"encoder_self": (2, 4)},
        scores.masked_scores,
        masked_page,
        data.write_texts,
    ),
    TaskCase(
        "classes",
        (*LABELLED, *LONGER, "data.max_length=40"),
        {"encoder_self": (2, 2)},
        scores.class_scores,
        class_page,
        data.write_labelled,
    ),
    TaskCase(
        "pairs",
        (*LABELLED, "data.pair=other", "data.max_length=80"),
        {"encoder_self": (2, 2)},
        scores.class_scores,
        class_page,
        data.write_labelled,
    ),
    TaskCase(
        "pictures",
        ("data=image_folder", f"data.shape={listed(PICTURE)}", "positions=data_dims",
         "model.n_heads=2", "model.layers=2", "model.cls_tokens=3", "model.dropout=0",
         "model.attention_dropout=0", "model.activation_dropout=0", "trainer.max_tokens=96",
         *LONGER, "scheduler.warmup_updates=5"),
        {"encoder_self": (2, 2)},
        scores.class_scores,
        picture_page,
        data.write_bars,
    ),
    TaskCase(
        "sequence",
        (*RECALL, "task.layout=decoder", "model.layers=1"),
        {"decoder_self": (1, 2)},
        scores.sequence_scores,
        sequence_page,
    ),
    TaskCase(
        "sequence_pair",
        (*RECALL, "task.layout=encoder_decoder", "model.encoder_layers=1",
         "model.decoder_layers=1", "model.share_embeddings=decoder"),
        dict.fromkeys(BOTH, (1, 2)),
        scores.sequence_scores,
        sequence_page,
        slow=True,
    ),
    TaskCase(
        "own",
        (*MAJORITY, "task.site=decoder_self"),
        {"decoder_self": (2, 4)},
        scores.majority_scores,
        majority_page,
    ),
    TaskCase(
        "own_encoder",
        (*MAJORITY, "task.site=encoder_self"),
        {"encoder_self": (2, 4)},
        scores.majority_scores,
        majority_page,
        slow=True,
    ),
]  # fmt: skip
CASES = {case.name: case for case in ALL}

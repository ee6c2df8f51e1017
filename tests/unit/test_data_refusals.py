"""Wrong files of every reader: a message of one line names the file, and the place in it."""

import base64
import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from corpus_writers import encode_lines, open_named_corpus, table_pairs, wmt_sgm
from headwise.data.sources.lines import aligned_segments, file_pairs, read_segments
from headwise.errors import DataError
from published_images import idx, idx_labels, random_images, wav

GREY, COLOUR, CLEAR = (random_images(3, 4, 4, n) for n in (1, 3, 4))
FIRST = tuple(map(int, COLOUR[0, 0, 0]))
DEEP = base64.b64decode(  # one pixel of three channels of 16 bits, as png
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABEAIAAADA54+dAAAAD0lEQVR4nGNgYGRiZmEFAAAqABAazIwkAAAAAElFTkSu"
    "QmCC"
)


def read_lines(folder):
    return file_pairs(*sorted(folder.glob("*.de*")), *sorted(folder.glob("*.en*")))


def read_sgm(folder):
    sides = [read_segments(path.open("rb"), path.name) for path in sorted(folder.iterdir())]
    return aligned_segments(*sides, "a.de", "a.en") if len(sides) == 2 else sides


def read_tables(folder):
    return table_pairs(list(folder.iterdir()), "de", "en")


def read_named(folder, name, labelled=True, split="train", **changes):
    corpus = open_named_corpus(folder, name, labelled, dir=str(folder), **changes)
    return corpus.rows(split) if labelled and hasattr(corpus, "rows") else corpus.chunks(split)


def read_text(folder, **changes):
    return read_named(folder, "text", **changes)


def read_labelled(folder, **changes):
    for split in ("valid", "test"):
        for path in folder.glob("train.*"):
            path.with_stem(split).write_bytes(path.read_bytes())
    return read_named(folder, "labelled", **changes)


def read_trec(folder):
    return read_named(folder, "trec")


def read_images(folder):
    return read_named(folder, "images", labelled=False, shape=[4, 4, 3], window=48)


def read_classes(folder, split="train"):
    return read_named(folder, "image_folder", split=split, shape=[4, 4, 3])


def read_mnist(folder, split="train"):
    corpus = open_named_corpus(folder, "mnist", True, dir=str(folder))
    corpus.config.splits["train"][0]["images"] = [0, 3]
    return corpus.rows(split)


def read_music(folder):
    return read_named(folder, "music")


def array(content):
    file = io.BytesIO()
    np.save(file, content)
    return file.getvalue()


def saved(images, kind="PNG", n_colours=0, **options):
    image, *more = (Image.fromarray(image.squeeze()) for image in images)
    image, file = image.quantize(n_colours) if n_colours else image, io.BytesIO()
    options |= {"save_all": True, "append_images": more} if more else {}
    image.save(file, kind, **options)
    return file.getvalue()


def parquet(*columns, names):
    file = io.BytesIO()
    arrays = [pyarrow.array([cell]).cast("string", safe=False) for cell in columns]
    pyarrow.parquet.write_table(pyarrow.table(arrays, names=names), file)
    return file.getvalue()


def sides(source, target):
    return {"a.de": source, "a.en": target}


def documents(texts, tag):
    """One document per letter, each with one segment."""
    return "".join(f'<doc {tag}><seg id="1">{text}</seg></doc>\n' for text in texts).encode()


def picture(content):
    return {"train/a.png": saved(COLOUR[:1]), "train/z.png": content}


def labels(*header, rows=()):
    return {"train.tsv": encode_lines(["\t".join(header), *map("\t".join, rows)])}


PACKED = gzip.compress("".join(f"{i} {i * i}\n" for i in range(5000)).encode())
LINES, MORE = b"1\n2\n3\n", b"1\n2\n3\n4\n5\n"
SEGMENTS, FEWER = (wmt_sgm([f"{side}{i}" for i in range(n)]) for side, n in (("s", 4), ("t", 3)))
NAMED = 'docid="7"'
IDX, IDX_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"
DIGITS = {IDX: gzip.compress(idx(random_images(9, 28, 28, 1)))}
FEW, LOW = (gzip.compress(idx(random_images(2, n, 28, 1))) for n in (28, 20))
TEST = {"t10k-images-idx3-ubyte.gz": DIGITS[IDX], "t10k-labels-idx1-ubyte": idx_labels([1, 2])}
LABELS = {"labels": ["no", "yes"]}
OTHER_BITS = "z.png must be .*, got another number of bits"

WRONG = {
    read_lines: [
        (sides(b"eins\rzwei\r", LINES), "a.de ends its lines with carriage returns"),
        (sides(b"eins\n" + b"e" * 2**21, LINES), "a.de, line 2: above 1048576 bytes"),
        (sides("eins\n".encode("utf-16-le"), LINES), "a.de, line 1: a NUL character"),
        (sides(LINES, b"1\n\xff\n3\n"), "a.en, line 2: not UTF-8"),
        (sides(MORE, LINES), "misaligned: .*a.de has 5 lines, .*a.en has 3"),
        (sides(LINES, MORE), "misaligned: .*a.de has 3 lines, .*a.en has 5"),
        (sides(b"", LINES), "a.de is empty"),
        (sides(LINES, b""), "a.en is empty"),
        (sides(b"", b""), "a.de is empty"),
        ({"a.de.gz": PACKED[:-900], "a.en.gz": PACKED}, "a.de.gz is truncated or damaged"),
        ({"a.de.gz": PACKED, "a.en.gz": b"no gzip at all\n"}, "a.en.gz is truncated or damaged"),
    ],
    read_sgm: [
        ({"a.de": b"just text\n"}, "a.de.*has no <seg>"),
        ({"a.de": b""}, "a.de.*has no <seg>"),
        ({"a.de": b'<doc docid="1">' + b'<seg id="1">a</seg>' * 2}, "a.de.*occurs twice"),
        ({"a.de": b'<doc docid="1">\n<seg id="1">\xff</seg></doc>'}, "a.de, line 2: not UTF-8"),
        *(
            (sides(*pair), "misaligned.*document 'paper.2', segment '2'")
            for pair in ((SEGMENTS, FEWER), (FEWER, SEGMENTS))
        ),
        *(
            (sides(documents(one, tag), documents(two, tag)), "misaligned.*document 1, segment '1'")
            for one, two in (("ab", "x"), ("a", "xy"))
            for tag in ("", NAMED)
        ),
    ],
    read_tables: [
        ({"a.tsv": b"de\tfr\nx\ty\n"}, "no columns 'en'; got de, fr"),
        ({"a.tsv": b"gut\tgood\n"}, "first line of a .tsv .*must be de⇥en"),
        ({"a.tsv": b"de\ten\nx\n"}, "line 2: 1 cells, the header has 2"),
        ({"a.tsv": b"de\ten\n"}, "is empty"),
        ({"a.jsonl": b'{"de": "x"}\n'}, "line 1: no text for language 'en'; got de"),
        ({"a.jsonl": b'{"de": "x", "en": null}\n'}, "no text for language 'en'"),
        ({"a.jsonl": b'{"de": "x", "en": "y"}\n{"de": \n'}, "line 2: not JSON"),
        ({"a.jsonl": b"[1]\n"}, "line 1: not a JSON object"),
        ({"a.jsonl": b'{"de": "\xff", "en": "y"}\n'}, "line 1: not UTF-8"),
        ({"a.jsonl": b"[" * 100_000 + b"\n"}, "line 1: not JSON"),
        ({"a.jsonl": rb'{"de": "\ud800", "en": "y"}'}, "line 1: half of a surrogate pair"),
        ({"a.jsonl": rb'{"de": "\u0000", "en": "y"}'}, "line 1: a NUL character"),
        ({"a.parquet": b"PAR1 but not really"}, "truncated, not Parquet"),
        ({"a.parquet": b""}, "truncated, not Parquet"),
        ({"a.parquet": parquet(b"x", b"\xff", names=["de", "en"])}, "not UTF-8"),
        ({"a.parquet": parquet(*[b"x"] * 3, names=["de", "en", "en"])}, "2 columns 'en'"),
    ],
    read_text: [
        ({"train.txt.gz": PACKED[:-12]}, "train.txt.gz is truncated or damaged"),
        ({"train.tsv": b"label\tbody\n"}, "no columns 'text'; .*Set data.column",
         {"column": "text"}),
    ],
    read_labelled: [
        (labels("label", "body"), "no columns 'text'; got label, body. .*data.text="),
        (labels("klass", "text", rows=["xy"]), "no columns 'label'; got klass, text"),
        ({"train.jsonl": b'{"label": 1, "body": "x"}\n'}, "line 1: no columns 'text'"),
        (labels("label", "text", rows=["xy"]), "no columns 'b'; .*null: single", {"pair": "b"}),
        (labels(*["label", "a", "b"], rows=["xyz"]), "got label, a, b.*data.pair="),
        (labels("label", "text", "text"), "2 columns 'text'"),
        (labels("label", "text", rows=["x"]), "line 2: 1 cells, the header has 2"),
        ({"train.csv": b"label,text\nx,y\nx,y,z\n"}, "line 3: 3 cells, the header has 2"),
        ({"train.csv": b'label,text\nx,"y\nz\n'}, "line 3: unexpected end of data"),
        ({"train.csv": b"\n\n"}, "no columns 'text'; got none"),
        (labels(*"xyz"), "line 1: 3 cells, columns are 2", {"columns": ["label", "text"]}),
        (labels("label", "text", rows=["x "]), "line 2: no text in the column 'text'; got ' '"),
        ({"train.jsonl": b'{"label": "x", "text": 3}\n'}, "no text in the column 'text'; got 3"),
        ({"train.jsonl": b'{"label": null, "text": "x"}\n'}, "line 1: no label in"),
        (labels("label", "text", rows=[("", "y")]), "line 2: no label"),
        (labels("label", "text", rows=[("yess", "y")]), "label must .*mean yes", LABELS),
        (labels("label", "text", rows=["2y"]), "line 2: the label must be one", LABELS),
        (labels("label", "text"), "is empty"),
        *(
            ({"train.jsonl": b'{"label": %s, "text": "x"}' % label}, "line 1: the label .* must be")
            for label in (b"NaN", b"0.5", b"[0]", b'{"x": 1}')
        ),
    ],
    read_trec: [
        (
            {"train_5500.label": b"DESC:x How ?\nWhat ?\n", "TREC_10.label": b"DESC:x How ?\n"},
            "label, line 2 must start with CLASS:subclass",
        ),
    ],
    read_images: [
        (picture(saved(random_images(1, 4, 5, 3))), r"z.png has the shape \[4,5,3\], but data."),
        (picture(b"no picture"), "z.png is not a picture that can be read"),
        (picture(saved(COLOUR[:1])[:60]), "z.png is not a picture that can be read"),
        (picture(saved(GREY[:1])), r"z.png has the shape \[4,4,1\]"),
        (picture(saved(CLEAR[:1])), "z.png must be grey or RGB .* got Pillow's mode RGBA"),
        (picture(saved([np.ones((4, 4), np.uint16)])), "z.png must be grey or RGB with 8 bits"),
        (picture(DEEP), f"{OTHER_BITS}. Convert it, for example with magick"),
        (picture(b"P6 4 4 1000\n" + bytes(96)), OTHER_BITS),
        (picture(saved(COLOUR[:1], "SGI", bpc=2)), OTHER_BITS),
        (picture(saved(COLOUR[:1], n_colours=8, transparency=0)), "z.png .*transparent pixels"),
        (picture(saved(COLOUR[:1], transparency=FIRST)), "z.png .*transparent pixels"),
        *((picture(saved(COLOUR, k)), "z.png .*several frames") for k in ("GIF", "PNG", "TIFF")),
        ({"train.npy": array(np.zeros((2, 4, 4, 3)))}, "train.npy must be uint8 .* got float64"),
        ({"train.npy": b"no array"}, "train.npy is damaged or not a .npy file"),
        ({"train.npy": array(COLOUR)[:-50]}, "train.npy is truncated after image 1"),
        ({"train.txt": b""}, "has no train: folders of pictures, or arrays"),
    ],
    read_classes: [
        ({"train/0000.png": saved(COLOUR[:1])}, "0000.png must be in a folder named"),
        ({"train/a/0.png": DEEP}, r"has no valid: .* per class. Splits there: train; move a part",
         {"split": "valid"}),
    ],
    read_mnist: [
        (DIGITS | {IDX_LABELS: idx_labels([1, 2])}, "labels-idx1-ubyte has too few labels"),
        (DIGITS | {IDX_LABELS: idx_labels([1] * 9)[:-7]}, "labels-idx1-ubyte is truncated"),
        (TEST, "idx1-ubyte has another number of labels than there are images", {"split": "test"}),
        (DIGITS, f"put {IDX_LABELS}.gz or {IDX_LABELS} into"),
        (DIGITS | {f"{IDX_LABELS}.gz": DIGITS[IDX]}, "magic number is 2051, not 2049"),
        (DIGITS | {IDX: FEW, IDX_LABELS: idx_labels([1, 2])}, "gz has too few images for 0 to 3"),
        (TEST | {"t10k-images-idx3-ubyte.gz": LOW}, r"image 1 has the shape \[20,28,1\]",
         {"split": "test"}),
        ({IDX: FEW, IDX_LABELS: b""}, "put t10k-images-idx3-ubyte.gz or t10k-images",
         {"split": "test"}),
    ],
    read_music: [
        ({"train/a.wav": b"no audio"}, "a.wav is not audio that can be read"),
        ({"train/a.wav": wav(np.zeros((999, 1)), 12_000)[:900]}, "a.wav is cut short or"),
    ],
}  # fmt: skip


def rows():
    for read, cases in WRONG.items():
        for number, (files, words, *changes) in enumerate(cases):
            name = f"{read.__name__}-{number}"
            yield pytest.param(read, files, words, changes[0] if changes else {}, id=name)


@pytest.mark.parametrize(("read", "files", "words", "changes"), list(rows()))
def test_wrong_files_are_refused(tmp_path, read, files, words, changes):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as refusal:
        list(read(tmp_path, **changes))
    message = str(refusal.value)
    assert "\n" not in message
    names = [part for name in files for part in Path(name).with_suffix("").parts]
    assert "put " in message or any(name in message for name in names)

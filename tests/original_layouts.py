"""Writers of tiny corpora in the archives of the publishers."""

from functools import partial

from corpus_writers import (
    encode_lines,
    iwslt_tags,
    iwslt_xml,
    sentences,
    translations,
    wmt_sgm,
    write_parquet,
    write_tar,
    write_text,
    write_zip,
)

TRAIN = [*sentences("s", "t", 3, "train"), ("Tom & <Jerry>", "R&D")]
VALID = sentences("s", "t", 5, "valid & <more>")
TEST = sentences("s", "t", 5, "test")


def sides_of(pairs, source, target):
    return {source: [s for s, _ in pairs], target: [t for _, t in pairs]}


def sgm_sides(stem, source, target, pairs, reverse=False):
    """The two files of a WMT test set; `reverse` reverses the documents of the target."""
    sides = sides_of(pairs, source, target)
    return {
        f"{stem}-src.{source}.sgm": wmt_sgm(sides[source]),
        f"{stem}-ref.{target}.sgm": wmt_sgm(sides[target], reverse=reverse),
    }


def write_iwslt(folder, name="de-en.tgz", write=write_tar):
    members = {}
    for code, lines in sides_of(TRAIN, "de", "en").items():
        members[f"de-en/train.tags.de-en.{code}"] = iwslt_tags(lines)
    for year, pairs in {"dev2010": VALID, "tst2013": TEST, "tst2014": TEST[:2]}.items():
        for code, lines in sides_of(pairs, "de", "en").items():
            members[f"de-en/IWSLT17.TED.{year}.de-en.{code}.xml"] = iwslt_xml(lines, code)
    write(folder / name, members)


def write_multi30k(folder):
    tests = {"test_2016_flickr": TEST, "test_2017_flickr": TEST}
    for stem, pairs in {"train": TRAIN, "val": VALID, **tests}.items():
        write_text(folder, stem, ("de", "en"), pairs, gz=True)


def write_kftt(folder):
    members = {}
    for kind, mark in (("orig", ""), ("tok", " .")):
        for stem, pairs in {"train": TRAIN, "dev": VALID, "test": TEST, "tune": TEST}.items():
            name = f"{stem}.cln" if (kind, stem) == ("tok", "train") else stem
            for code, lines in sides_of(pairs, "ja", "en").items():
                key = f"kftt-data-1.0/data/{kind}/kyoto-{name}.{code}"
                members[key] = encode_lines([line + mark for line in lines])
    write_tar(folder / "kftt-data-1.0.tar.gz", members)


def write_wmt16(folder):
    first, second = sides_of(TRAIN[:2], "ro", "en"), sides_of(TRAIN[2:], "ro", "en")
    europarl = {
        f"training-parallel-ep-v8/europarl-v8.ro-en.{c}": encode_lines(first[c]) for c in first
    }
    write_tar(folder / "training-parallel-ep-v8.tgz", europarl)
    setimes = {f"SETIMES.en-ro.{c}": encode_lines(second[c]) for c in second}
    write_zip(folder / "en-ro.txt.zip", {"README": b"about\n", **setimes})
    for kind, name, pairs in (("dev", "newsdev2016", VALID), ("test", "newstest2016", TEST)):
        write_tar(folder / f"{kind}.tgz", sgm_sides(f"{kind}/{name}-roen", "ro", "en", pairs, True))


def write_wmt14(folder):
    parts = {
        ("training-parallel-europarl-v7.tgz", "training/europarl-v7.de-en"): TRAIN[:1],
        ("training-parallel-commoncrawl.tgz", "commoncrawl.de-en"): TRAIN[1:3],
        ("training-parallel-nc-v9.tgz", "training/news-commentary-v9.de-en"): TRAIN[3:],
    }
    for (archive, member), pairs in parts.items():
        sides = sides_of(pairs, "en", "de")
        write_tar(folder / archive, {f"{member}.{c}": encode_lines(sides[c]) for c in sides})
    for archive, stem, pairs in (
        ("dev.tgz", "dev/newstest2013", VALID),
        ("test-full.tgz", "test-full/newstest2014-deen", TEST),
    ):
        write_tar(folder / archive, sgm_sides(stem, "en", "de", pairs))


ORIGINALS = {
    "multi30k": ("multi30k", write_multi30k),
    "iwslt17-zip": ("iwslt17", partial(write_iwslt, name="de-en.zip", write=write_zip)),
    "iwslt17-tgz": ("iwslt17", write_iwslt),
    "kftt": ("kftt", write_kftt),
    "wmt16_ro_en": ("wmt16_ro_en", write_wmt16),
    "wmt14_en_de": ("wmt14_en_de", write_wmt14),
}
# layout on the hub, source and target language
HUB = {
    "iwslt17": ("iwslt2017-de-en/{}/0000.parquet", "de", "en"),
    "kftt": ("en-ja/{}/0000.parquet", "ja", "en"),
    "wmt16_ro_en": ("ro-en/{}-00000-of-00001.parquet", "ro", "en"),
    "wmt14_en_de": ("de-en/{}-00000-of-00001.parquet", "en", "de"),
}


def write_hub_copy(folder, name, top):
    layout, source, target = HUB[name]
    # IWSLT's test split is six sets in a row; the third and fourth would be tst2012, tst2013.
    before, after = (4701, 993 - len(TEST) + 1305) if name == "iwslt17" else (0, 0)
    filler = [("x", "y")]
    test = [*filler * before, *TEST, *filler * after]
    columns = (target, source)  # in the order of wmt14 on the hub
    layout = layout if top else layout.split("/", 1)[1]
    for split, pairs in {"train": TRAIN, "validation": VALID, "test": test}.items():
        rows = translations(columns, [(t, s) for s, t in pairs])
        write_parquet(folder / layout.format(split), rows)

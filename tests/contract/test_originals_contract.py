"""Contract of every published corpus: its files are read in each form in which they are found."""

import copy
import re
from unittest.mock import Mock

import pytest

from corpus_writers import data_config, open_config, parallel_corpora, serve_folder
from headwise.data.sources.digest import file_digest
from headwise.errors import DataError
from originals import ORIGINALS, pairs_of
from published_images import idx_labels

every_original = pytest.mark.parametrize("original", ORIGINALS, ids=lambda one: one.name)


def config_of(original, **changes):
    config = copy.deepcopy(data_config(original.name, **original.changes, **changes))
    for split, numbers in original.images.items():
        config.splits[split][0]["images"] = numbers
    return config


def opened(config, folder):
    return open_config(config, folder / "cache", labelled=bool(getattr(config, "labels", None)))


def check(original, corpus):
    for split, content in original.content.items():
        assert original.read(corpus, split) == content, split


@pytest.mark.parametrize(
    ("original", "form"),
    [pytest.param(one, form, id=f"{one.name}-{form}") for one in ORIGINALS for form in one.forms],
)
def test_every_form_is_read(tmp_path, monkeypatch, original, form):
    """From the folder of the user, and from the folder of that name in HEADWISE_DATA."""
    config = config_of(original)
    folder = tmp_path / "shelf" / config.folder
    folder.mkdir(parents=True)
    original.forms[form](folder)
    given = opened(config_of(original, dir=str(folder)), tmp_path)
    check(original, given)
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path / "shelf"))
    corpus = opened(config, tmp_path)
    check(original, corpus)
    assert corpus.hashes() == given.hashes() == opened(config, tmp_path).hashes()
    assert len(set(corpus.hashes())) == 2
    assert not (tmp_path / "cache" / "downloads").exists()


def entries_of(config):
    """The downloads of each archive."""
    groups = [getattr(config, "archives", {})]
    groups += [origin.get("archives", {}) for origin in getattr(config, "origins", [])]
    listed = [archive.get("downloads") or [] for group in groups for archive in group.values()]
    return [entries for entries in [*listed, getattr(config, "downloads", [])] if entries]


@pytest.mark.parametrize(
    "original", [one for one in ORIGINALS if "archive" in one.forms], ids=lambda one: one.name
)
def test_downloads_are_checked_and_read_again_offline(tmp_path, original):
    config = config_of(original)
    if hasattr(config, "origins"):
        config.origins = [o for o in config.origins if not o["_target_"].endswith("hub.Hub")]
    (tmp_path / "site").mkdir()
    original.forms["archive"](tmp_path / "site")
    with serve_folder(tmp_path / "site") as address:
        for entry in (entry for entries in entries_of(config) for entry in entries):
            entry |= {"md5": None, "sha1": None, "sha256": "0" * 64}
            entry["url"] = f"{address}/{entry['file']}"
        with pytest.raises(DataError, match="not the published file"):
            check(original, opened(config, tmp_path))
        for entry in (entry for entries in entries_of(config) for entry in entries):
            path = tmp_path / "site" / entry["file"]
            entry["sha256"] = path.exists() and file_digest(path)
        check(original, opened(config, tmp_path))
    check(original, opened(config, tmp_path))  # the network is blocked
    downloaded = next(
        path for path in (tmp_path / "cache" / "downloads").rglob("*.*") if path.is_file()
    )
    downloaded.write_bytes(downloaded.read_bytes() + b"more")
    with pytest.raises(DataError, match=r"is not the published file: sha256 .* Delete it"):
        check(original, opened(config, tmp_path))


@every_original
def test_missing_original_names_its_files(tmp_path, monkeypatch, original):
    calls = []

    def no_network(*arguments, **options):
        calls.append((arguments, options))
        raise ConnectionError("no network\nlong trace")

    monkeypatch.setattr("datasets.load_dataset", no_network)
    monkeypatch.setattr("pooch.retrieve", Mock(side_effect=OSError("no network")))
    with pytest.raises(DataError) as refusal:
        opened(config_of(original), tmp_path).hashes()
    message = str(refusal.value)
    for part in original.missing:
        assert part in message
    assert len(message.splitlines()) <= 6
    if original.name == "iwslt17":
        hub = {"data_dir": "iwslt2017-de-en", "revision": "refs/convert/parquet"}
        assert (calls[0][0], {**calls[0][1], **hub}) == (("IWSLT/iwslt2017",), calls[0][1])
        assert str(tmp_path / "cache" / "downloads" / "iwslt17") in message


@every_original
def test_originals_are_pinned_and_documented(original):
    config = data_config(original.name)
    assert config.licence
    assert config.folder
    if original.read is not pairs_of:  # checksums of most pairs are not published
        for entry in (entry for entries in entries_of(config) for entry in entries):
            assert {"md5", "sha256"} & entry.keys(), entry
        hubs = [o for o in getattr(config, "origins", []) if o["_target_"].endswith("hub.Hub")]
        assert all(re.fullmatch("[0-9a-f]{40}", origin["revision"]) for origin in hubs)


@pytest.mark.parametrize("name", parallel_corpora())
def test_pairs_are_documented(name):
    config = data_config(name)
    assert config.licence
    assert config.notes
    assert set(config.test) <= set(config.files) or name == "builtin"
    if name not in ("builtin", "files"):
        # a corpus without a published split needs a folder
        assert len(config.origins) >= 1 or "no official split" in config.notes


def test_published_images_have_the_numbers_of_the_papers():
    splits = {name: data_config(name).splits for name in ("cifar10", "mnist")}
    assert [splits["cifar10"][s][0]["images"] for s in ("train", "valid")] == [
        [0, 48_000],
        [48_000, 50_000],
    ]
    assert splits["mnist"]["valid"][0]["images"] == [55_000, 60_000]


def test_labels_of_another_file_are_part_of_the_data(tmp_path):
    (mnist,) = (one for one in ORIGINALS if one.name == "mnist")
    mnist.forms["plain"](tmp_path)
    before = opened(config_of(mnist, dir=str(tmp_path)), tmp_path).hashes()
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_labels(range(9)))
    after = opened(config_of(mnist, dir=str(tmp_path)), tmp_path).hashes()
    assert not {*before} & {*after}

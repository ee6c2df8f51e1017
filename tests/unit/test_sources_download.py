import hashlib
import os
import time

import pytest

from corpus_writers import serve_folder
from headwise.data.sources import digest
from headwise.data.sources.digest import FileHashes
from headwise.data.sources.download import download, verify
from headwise.errors import DataError

BODY = b"an archive, let us say" * 1000
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def site(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "served.tgz").write_bytes(BODY)
    with serve_folder(tmp_path / "site") as address:
        yield address


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256"])
def test_published_checksum_is_compared(tmp_path, site, algorithm):
    checksum = hashlib.new(algorithm, BODY).hexdigest()
    entry = {"url": f"{site}/served.tgz", "file": "sub/a.tgz", algorithm: checksum.upper()}
    path = download([entry], tmp_path / "got")
    assert path == tmp_path / "got" / "sub" / "a.tgz"
    assert path.read_bytes() == BODY
    verify(path, entry, FileHashes(tmp_path))
    path.write_bytes(BODY + b"more")
    with pytest.raises(DataError, match=rf"is not the published file: {algorithm} .* Delete it"):
        verify(path, entry, FileHashes(tmp_path))


def test_wrong_checksum_leaves_no_file(tmp_path, site):
    entry = {"url": f"{site}/served.tgz", "file": "a.tgz", "md5": "0" * 32}
    with pytest.raises(DataError, match=r"not the published file: MD5 .*expected md5:0000"):
        download([entry], tmp_path / "got")
    assert list((tmp_path / "got").iterdir()) == []


def test_without_a_published_checksum_the_first_download_is_recorded(tmp_path, site, caplog):
    path = download([{"url": f"{site}/served.tgz", "file": "a.tgz"}], tmp_path / "got")
    assert "no published checksum" in caplog.text
    assert (tmp_path / "got" / "a.tgz.sha256").read_text() == f"{SHA256}  a.tgz\n"
    verify(path, None, FileHashes(tmp_path))
    path.write_bytes(b"another")
    with pytest.raises(DataError, match=r"is not the file recorded in .*a\.tgz\.sha256: sha256"):
        verify(path, None, FileHashes(tmp_path))


def test_second_address_is_used_when_the_first_fails(tmp_path, site):
    names = {"nowhere.tgz": "a.tgz", "served.tgz": "b.tgz"}
    entries = [{"url": f"{site}/{there}", "file": here} for there, here in names.items()]
    assert download(entries, tmp_path / "got").name == "b.tgz"
    with pytest.raises(DataError, match=r"nowhere\.tgz: 404"):
        download(entries[:1], tmp_path / "other")
    closed = [{"url": "http://127.0.0.1:9/x.tgz", "file": "x.tgz"}]
    with pytest.raises(DataError, match=r"x\.tgz: .*refused"):
        download(closed, tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def test_hashes_are_cached(tmp_path, monkeypatch):
    path, hashed = tmp_path / "text", []
    path.write_bytes(BODY)
    monkeypatch.setattr(digest, "TICK_NS", 0)

    def count(p, algorithm):
        hashed.append(algorithm)
        return f"{algorithm} {p.stat().st_size}"

    monkeypatch.setattr(digest, "file_digest", count)
    first = FileHashes(tmp_path / "cache")(path)
    assert FileHashes(tmp_path / "cache")(path) == first
    assert hashed == ["sha256"]
    path.write_bytes(BODY * 2)
    assert FileHashes(tmp_path / "cache")(path) != first
    assert FileHashes(tmp_path / "cache")(path, "md5").startswith("md5")


def test_edit_of_the_same_size_and_time_is_seen(tmp_path):
    path, hashes = tmp_path / "text", FileHashes(tmp_path / "cache")
    path.write_bytes(b"one")
    time.sleep(2 * digest.TICK_NS / 1e9)
    status, before = path.stat(), hashes(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert hashes(path) == hashlib.sha256(b"two").hexdigest() != before
    path.write_bytes(b"six")  # at once: in the tick of the edit before
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert hashes(path) == hashlib.sha256(b"six").hexdigest()


def test_cache_of_many_files_is_written_once(tmp_path, monkeypatch):
    paths, written = [tmp_path / f"{i}.txt" for i in range(5)], []
    for path in paths:
        path.touch()
    monkeypatch.setattr(digest, "TICK_NS", 0)
    monkeypatch.setattr(digest, "write_text", lambda *call: written.append(call))
    FileHashes(tmp_path / "cache").of(paths)
    assert len(written) == 1


def test_unwritable_cache_is_no_error(tmp_path):
    (tmp_path / "text").write_bytes(BODY)
    (tmp_path / "file").touch()  # no user can make a folder in it
    assert FileHashes(tmp_path / "file" / "cache")(tmp_path / "text") == SHA256


@pytest.mark.parametrize("content", ["{ not json", "[]"])
def test_damaged_hash_cache_is_no_error(tmp_path, content):
    hashes = FileHashes(tmp_path)
    hashes.path.write_text(content)
    (tmp_path / "text").write_bytes(BODY)
    assert hashes(tmp_path / "text") == SHA256

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from headwise.data.digest import FileMemo
from headwise.data.download import download
from headwise.errors import DataError

BODY = b"an archive, let us say" * 1000


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "served.tgz").write_bytes(BODY)
    return (tmp_path / "served.tgz").as_uri()


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256"])
def test_verified_download_and_manifest(tmp_path: Path, url: str, algorithm: str) -> None:
    checksum = hashlib.new(algorithm, BODY).hexdigest()
    entry = {"url": url, "file": "sub/a.tgz", algorithm: checksum.upper()}
    path = download([entry], tmp_path / "got", progress=False)
    assert path.read_bytes() == BODY
    record = json.loads((tmp_path / "got" / "manifest.json").read_text())["sub/a.tgz"]
    assert record["verified_against"] == f"{algorithm}:{checksum}"
    assert record["bytes"] == len(BODY)
    assert record["sha256"] == hashlib.sha256(BODY).hexdigest()


def test_wrong_checksum_keeps_nothing(tmp_path: Path, url: str) -> None:
    entry = {"url": url, "file": "a.tgz", "md5": "0" * 32}
    with pytest.raises(DataError, match=r"not the published file: md5 .* expected 0000"):
        download([entry], tmp_path / "got", progress=False)
    assert list((tmp_path / "got").iterdir()) == []


def test_unverified_download_says_so(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    download([{"url": url, "file": "a.tgz"}], tmp_path / "got", progress=False)
    assert "no checksum was published" in capsys.readouterr().out
    record = json.loads((tmp_path / "got" / "manifest.json").read_text())["a.tgz"]
    assert record["verified_against"] is None


def test_second_address_serves_when_the_first_fails(tmp_path: Path, url: str) -> None:
    entries = [
        {"url": (tmp_path / "nowhere.tgz").as_uri(), "file": "a.tgz"},
        {"url": url, "file": "b.tgz"},
    ]
    assert download(entries, tmp_path / "got", progress=False).name == "b.tgz"
    with pytest.raises(DataError, match=r"nowhere\.tgz"):
        download(entries[:1], tmp_path / "other", progress=False)
    assert not (tmp_path / "other").exists()


def test_memo_works_once_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("one")
    calls = []

    def compute(p: Path) -> str:
        calls.append(p)
        return p.read_text()

    assert FileMemo(tmp_path / "cache").recall(path, "fact", compute) == "one"
    assert FileMemo(tmp_path / "cache").recall(path, "fact", compute) == "one"
    assert len(calls) == 1
    path.write_text("other")
    assert FileMemo(tmp_path / "cache").recall(path, "fact", compute) == "other"


def test_a_cache_that_cannot_be_written_costs_only_the_work(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(BODY)
    (tmp_path / "file").touch()  # no folder can be made in it, whoever asks
    memo = FileMemo(tmp_path / "file" / "cache")
    assert memo.sha256(tmp_path / "text") == hashlib.sha256(BODY).hexdigest()


def test_a_full_disk_leaves_the_old_memo_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo = FileMemo(tmp_path / "cache")
    (tmp_path / "text").write_bytes(BODY)
    memo.sha256(tmp_path / "text")
    before = memo.path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert memo.checksum(tmp_path / "text", "md5") == hashlib.md5(BODY).hexdigest()
    assert [path.name for path in memo.path.parent.iterdir()] == ["files.json"]
    assert memo.path.read_bytes() == before


def test_damaged_memo_costs_only_the_work(tmp_path: Path) -> None:
    memo = FileMemo(tmp_path)
    memo.path.write_text("{ not json")
    (tmp_path / "text").write_bytes(BODY)
    assert memo.sha256(tmp_path / "text") == hashlib.sha256(BODY).hexdigest()

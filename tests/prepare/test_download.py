import shutil
import socket
from collections import namedtuple

import pytest
from local_server import LocalServer

from benchmarks_toybox_ilab.prepare.download import DownloadError, download
from benchmarks_toybox_ilab.tables.frame import FrameTableError

CONTENT = bytes(range(256)) * 4000  # a megabyte, so that it comes in several pieces


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with LocalServer(CONTENT) as server:
        yield server


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_once_and_verified(server, tmp_path):
    seen = []
    file = download(f"{server.url}/x.zip", tmp_path / "new/x.zip", server.md5, lambda *step: seen.append(step))
    assert file == tmp_path / "new/x.zip" and file.read_bytes() == CONTENT and names(file.parent) == ["x.zip"]
    assert seen[-1] == (len(CONTENT), len(CONTENT)) and [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) > 1
    assert download(server.url, file, server.md5) == file and download(server.url, file) == file
    assert server.asked == [""]
    file.write_bytes(b"something else")
    with pytest.raises(DownloadError, match=rf"x.zip exists, .* while {server.md5} is expected. Delete it"):
        download(server.url, file, server.md5)
    assert file.read_bytes() == b"something else"  # not ours to delete


def test_a_broken_connection_is_reported_and_the_same_call_resumes(server, tmp_path):
    server.stop_after = 300_000
    with pytest.raises(DownloadError) as raised:
        download(f"{server.url}/x.zip", tmp_path / "x.zip", server.md5)
    part = tmp_path / "x.zip.part"
    assert part.read_bytes() == CONTENT[:300_000] and names(tmp_path) == ["x.zip.part"]
    message = str(raised.value)
    assert f"cannot download {server.url}/x.zip: the connection ended after 300000 of 1024000 bytes" in message
    assert f"300.0 kB are kept in {part} and the same command resumes" in message
    assert "download the file elsewhere and give it with --source" in message

    seen = []
    download(f"{server.url}/x.zip", tmp_path / "x.zip", server.md5, lambda *step: seen.append(step))
    assert server.asked == ["", "bytes=300000-"] and names(tmp_path) == ["x.zip"]
    assert (tmp_path / "x.zip").read_bytes() == CONTENT and seen[-1] == (len(CONTENT), len(CONTENT))
    assert seen[0][0] > 300_000


def test_a_partial_file_may_be_complete_and_the_length_unknown(server, tmp_path):
    (tmp_path / "x.zip.part").write_bytes(CONTENT)
    download(server.url, tmp_path / "x.zip", server.md5)
    assert server.asked == [f"bytes={len(CONTENT)}-"] and names(tmp_path) == ["x.zip"]
    server.announce = False
    for name, begun in (("new.zip", b""), ("begun.zip", CONTENT[:100])):
        (tmp_path / f"{name}.part").write_bytes(begun)
        seen = []
        download(server.url, tmp_path / name, server.md5, lambda *step, seen=seen: seen.append(step))
        assert (tmp_path / name).read_bytes() == CONTENT and seen[-1] == (len(CONTENT), 0)


def test_a_wrong_checksum_deletes_the_file(server, tmp_path):
    with pytest.raises(DownloadError) as raised:
        download(f"{server.url}/x.zip", tmp_path / "x.zip", "0" * 32)
    message = str(raised.value)
    assert f"of {server.url}/x.zip has the MD5 checksum {server.md5}, but {'0' * 32} is expected" in message
    assert "it was deleted" in message and "download x.zip elsewhere and give it with --source" in message
    assert names(tmp_path) == []


def test_errors_of_the_server_and_of_the_network(server, tmp_path):
    server.status = 503
    with pytest.raises(DownloadError, match=r"cannot download http.*503.*Run the command again; or download"):
        download(server.url, tmp_path / "x.zip")
    (tmp_path / "x.zip.part").write_bytes(b"begun")
    with pytest.raises(DownloadError, match=r"503.*5 bytes are kept in .*x.zip.part and the same command resumes"):
        download(server.url, tmp_path / "x.zip")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(DownloadError, match=r"cannot download http.*Connection refused"):
            download(f"http://127.0.0.1:{unused.getsockname()[1]}/x.zip", tmp_path / "x.zip")
    assert names(tmp_path) == ["x.zip.part"]


def test_a_redirection_is_followed_but_not_to_local_files(server, tmp_path, monkeypatch):
    with LocalServer(b"elsewhere") as other:
        server.redirect = f"{other.url}/x.zip"
        assert download(server.url, tmp_path / "x.zip").read_bytes() == b"elsewhere"
    (tmp_path / "secret").write_bytes(b"secret")
    places = {(tmp_path / "secret").as_uri(): "cannot download", "ftp://127.0.0.1/x.zip": "unknown url type: ftp"}
    for number, (place, fact) in enumerate(places.items()):
        server.redirect = place
        with pytest.raises(DownloadError, match=fact):
            download(server.url, tmp_path / f"{number}.zip")


def test_too_little_room_is_reported_before_the_download(server, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 24_000))
    (tmp_path / "x.zip.part").write_bytes(CONTENT[:900_000])
    with pytest.raises(FrameTableError, match=r"downloading x.zip needs 124.0 kB more, but only 24.0 kB are free at"):
        download(server.url, tmp_path / "x.zip", server.md5)
    (tmp_path / "x.zip.part").write_bytes(CONTENT[:1_000_000])
    download(server.url, tmp_path / "x.zip", server.md5)

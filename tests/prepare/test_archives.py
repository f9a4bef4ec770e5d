"""Archives are unpacked below the target alone, any members and damage included."""

import io
import shutil
import socket
import stat
import tarfile
import zipfile
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from faults import check, damaged
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from made_downloads import FILES, LocalServer, in_folder, write_tar, write_zip
from noted_bar import NotedBar

from benchmarks_toybox_ilab.prepare import archives
from benchmarks_toybox_ilab.prepare.archives import unpack
from benchmarks_toybox_ilab.prepare.download import DownloadError, download
from benchmarks_toybox_ilab.tables.frame import FrameTableError

pytestmark = pytest.mark.filterwarnings("ignore:Duplicate name")

WRITERS = {
    "x.zip": write_zip,
    "deflated.zip": lambda path: write_zip(path, method=zipfile.ZIP_DEFLATED),
    "x.tar": write_tar,
    "x.tar.gz": lambda path: write_tar(path, mode="w:gz"),
    "x.tgz": lambda path: write_tar(path, mode="w:gz"),
}


@pytest.mark.parametrize(
    ("name", "write"),
    # The content tells the kind.
    [*WRITERS.items(), ("wrong.zip", write_tar), ("download", write_zip)],
)
def test_all_kinds_unpack_to_the_same_files(tmp_path, name, write):
    bar = NotedBar()
    out = tmp_path / "out"
    assert unpack(write(tmp_path / name), out, progress=bar) == 3
    assert in_folder(out) == FILES
    assert bar.numbers == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
def test_files_with_the_right_size_are_kept(tmp_path, name):
    archive = WRITERS[name](tmp_path / name)
    out = tmp_path / "out"
    bar = NotedBar()
    unpack(archive, out)
    (out / "a/1.png").write_bytes(b"ONE" * 5000)  # the right size: kept
    (out / "a/b/2.png").write_bytes(b"half")
    assert unpack(archive, out, progress=bar) == 1
    assert in_folder(out) == {**FILES, "a/1.png": b"ONE" * 5000}
    assert bar.numbers == [(2, 3), (3, 3)]
    assert unpack(archive, out) == 0


def test_an_interruption_leaves_no_partial_file(tmp_path):
    archive = write_zip(tmp_path / "x.zip")
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        unpack(archive, out, progress=NotedBar(stop=(1, 3)))
    assert in_folder(out) == {"a/1.png": FILES["a/1.png"]}
    assert unpack(archive, out) == 2
    assert in_folder(out) == FILES


def test_what_a_power_failure_left_is_removed(tmp_path):
    out = tmp_path / "out"
    (out / "a/b").mkdir(parents=True)
    (out / "a/b/.2.png.0123456789abcdef.part").write_bytes(b"t")
    assert unpack(write_zip(tmp_path / "x.zip"), out) == 3
    assert in_folder(out) == FILES


def test_only_chooses(tmp_path):
    archive = write_zip(tmp_path / "x.zip")
    out = tmp_path / "out"

    def below_b(name):
        return name if name.startswith("a/b") else None

    assert unpack(archive, out, only=below_b) == 1
    assert in_folder(out) == {"a/b/2.png": b"two"}


def test_only_renames(tmp_path):
    archive = write_zip(tmp_path / "x.zip")
    out = tmp_path / "out"

    def to_c(name):
        return f"c/{name[2:]}" if name.startswith("a/") else None

    unpack(archive, out, only=to_c)
    assert in_folder(out) == {"c/1.png": FILES["a/1.png"], "c/b/2.png": b"two"}


def test_two_files_of_one_name(tmp_path):
    def same(name):
        return "same" if name.endswith("png") else None

    words = r"holds both a/1.png and a/b/2.png; only one can be same"
    with pytest.raises(FrameTableError, match=words):
        unpack(write_zip(tmp_path / "x.zip"), tmp_path / "out", only=same)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def asked(monkeypatch):
    """Paths whose disk was looked at; 15,002 bytes are free."""
    asked = []

    def usage(path):
        asked.append(Path(path))
        return namedtuple("usage", "total used free")(10**6, 0, 15_002)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return asked


def test_too_little_room_is_reported_before(tmp_path, asked):
    out = tmp_path / "deep/out"
    words = r"x.zip needs 15.0 kB more, but only 15.0 kB are free at .*deep/out"
    with pytest.raises(FrameTableError, match=words):
        unpack(write_zip(tmp_path / "x.zip"), out)
    assert asked == [tmp_path]
    assert not out.exists()


@pytest.mark.usefixtures("asked")
def test_room_for_what_is_missing_is_enough(tmp_path):
    out = tmp_path / "out"
    (out / "a/b").mkdir(parents=True)
    (out / "a/b/2.png").write_bytes(b"two")
    assert unpack(write_zip(tmp_path / "x.zip"), out) == 2
    assert in_folder(out) == FILES


def test_files_before_a_damaged_member_are_kept(tmp_path):
    members = {"1.png": b"first", "2.png": b"second", "3.png": b"third"}
    archive = write_zip(tmp_path / "x.zip", members)
    archive.write_bytes(archive.read_bytes().replace(b"second", b"sEcond"))
    words = r"x.zip is damaged .*2.png.*Download it again.*are kept"
    with pytest.raises(FrameTableError, match=words):
        unpack(archive, tmp_path / "out")
    assert in_folder(tmp_path / "out") == {"1.png": b"first"}


SECOND_HEADER = 512 + 15_360  # of the .tar file


def deflated(path):
    return write_zip(path, {"1.png": b"first"}, zipfile.ZIP_DEFLATED).read_bytes()


def changed_pixels(path):
    content = deflated(path)
    return content[:35] + b"\xff" + content[36:]


def two_zip_files(path):
    return deflated(path) * 2


def two_tar_files(path):
    return write_tar(path).read_bytes() * 2


def cut_tar_file(path):
    return write_tar(path).read_bytes()[:SECOND_HEADER]


def tar_file_without_a_header(path):
    content = write_tar(path).read_bytes()
    return content[:SECOND_HEADER] + bytes(512) + content[SECOND_HEADER + 512 :]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (changed_pixels, "invalid block type"),
        (two_zip_files, "another archive comes before it"),
        (
            two_tar_files,
            "it breaks off after 3 members, or another archive follows",
        ),
        (cut_tar_file, "it breaks off after 1 members"),
        (tar_file_without_a_header, "it breaks off after 1 members"),
    ],
)
def test_a_damaged_archive(tmp_path, damage, words):
    archive = tmp_path / "x.zip"
    archive.write_bytes(damage(tmp_path / "x.zip"))
    with pytest.raises(FrameTableError, match=f"x.zip is damaged .*{words}"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "x.zip",
            r"x.zip is no archive.*begins with b'<!DOCTYPE html>.*a web page",
        ),
        ("empty.tar", r"empty.tar is no archive"),
        ("nowhere.zip", r"there is no archive .*nowhere.zip; give a .zip, .tar"),
    ],
)
def test_files_that_are_no_archives(tmp_path, name, words):
    (tmp_path / "x.zip").write_text("<!DOCTYPE html><p>Please log in")
    (tmp_path / "empty.tar").touch()
    with pytest.raises(FrameTableError, match=words):
        unpack(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("writer", [write_zip, write_tar])
@pytest.mark.parametrize(
    "name", ["a/../../evil.txt", "/evil.txt", "..\\evil.txt", "C:evil.txt"]
)
def test_members_outside_the_target_are_refused(tmp_path, writer, name):
    archive = writer(tmp_path / "x", {"good.txt": b"good", name: b"evil"})
    with pytest.raises(FrameTableError) as raised:
        unpack(archive, tmp_path / "out")
    message = str(raised.value)
    words = (
        f"archive {archive} is refused, and nothing was unpacked: its member {name!r}"
    )
    assert f"{words} lies outside" in message
    assert "unpack it yourself and give the folder" in message
    assert set(in_folder(tmp_path)) == {"x"}


SMALL = 20_000  # bytes that are unpacked in any case; a bomb is larger
GOOD = (
    "a.png",
    "train/cup/1.png",
    "train/cup/2.png",
    "val/ä b.txt",
    "deep/" * 20 + "x",
    "a" * 200,
)
OUTSIDE = (
    "../escaped",
    "a/../../escaped",
    "..\\escaped",
    "C:\\escaped",
    "C:escaped",
    "train/../../../escaped",
    "..",
)
ODD = (
    "",
    ".",
    "/",
    "a//b",
    "a/./b",
    "nul\0byte",
    "line\nbreak",
    "a.png/",
    "train",
    "x" * 300,
    "\udcff",
    "a.png ",
)
LINKS = (
    "a.png",
    "../escaped",
    "/etc/passwd",
    "train",
    ".",
    "nowhere",
    "link",
    "x" * 5000,
)
KINDS = ("file",) * 8 + ("symlink", "symlink", "hardlink", "device", "folder", "bomb")
MODES = {"symlink": stat.S_IFLNK, "device": stat.S_IFCHR, "folder": stat.S_IFDIR}
TYPES = {
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "folder": tarfile.DIRTYPE,
}


@dataclass
class Made:
    """A member of an archive.

    Attributes:
        name: Its name.
        kind: One of `KINDS`.
        content: Its bytes.
        link: What it leads to, if it is a link.
    """

    name: str
    kind: str = "file"
    content: bytes = b""
    link: str = ""


# Two of three are good.
names_of_members = (
    st.sampled_from(GOOD) | st.sampled_from(GOOD) | st.sampled_from(OUTSIDE + ODD)
)


@st.composite
def members(draw):
    """Some members of an archive."""
    folders = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(KINDS))
        if kind == "bomb":
            content = bytes(50 * SMALL)
        elif kind == "folder":
            content = b""
        else:
            content = draw(st.binary(max_size=3000))
        link = draw(st.sampled_from(LINKS))
        folders.append(Made(draw(names_of_members), kind, content, link))
    return folders


def zip_of(members):
    """Return the bytes of a .zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in members:
            name = member.name.encode("utf-8", "replace").decode()
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (MODES.get(member.kind, stat.S_IFREG) | 0o644) << 16
            is_link = member.kind == "symlink"
            archive.writestr(info, member.link if is_link else member.content)
    return buffer.getvalue()


def tar_of(members, mode):
    """Return the bytes of a .tar file; `mode` may compress it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type = TYPES.get(member.kind, tarfile.REGTYPE)
            if "link" in member.kind:
                info.linkname = member.link
            if info.type == tarfile.REGTYPE:
                info.size = len(member.content)
            archive.addfile(info, io.BytesIO(member.content))
    return buffer.getvalue()


def packed(form, members):
    """Return the bytes of an archive."""
    if form == "zip":
        return zip_of(members)
    return tar_of(members, "w:gz" if form == "tar.gz" else "w")


GOOD_AND = [Made("a/good.txt", content=b"good"), Made("b.txt", content=b"good")]


@pytest.mark.parametrize(
    ("form", "kind", "words"),
    [
        ("tar", "hardlink", "'x' is a link, not a file"),
        ("tar", "device", "'x' is a device, not a file"),
        ("zip", "symlink", "'x' is a link, not a file"),
        ("zip", "device", "'x' is a device, not a file"),
    ],
)
def test_what_is_no_file_is_refused(tmp_path, form, kind, words):
    archive = tmp_path / "archive"
    archive.write_bytes(packed(form, [*GOOD_AND, Made("x", kind, link="/etc/passwd")]))
    with pytest.raises(FrameTableError, match=words):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("form", "kind"),
    [("tar", "hardlink"), ("tar", "device"), ("zip", "symlink"), ("zip", "device")],
)
def test_what_is_no_file_may_be_left_out(tmp_path, form, kind):
    archive = tmp_path / "archive"
    archive.write_bytes(packed(form, [*GOOD_AND, Made("x", kind, link="/etc/passwd")]))

    def texts(name):
        return name if name.endswith(".txt") else None

    assert unpack(archive, tmp_path / "out", only=texts) == 2
    assert set(in_folder(tmp_path / "out")) == {"a/good.txt", "b.txt"}


def wrong_entries(target, contents, limit):
    """Return what lies below a target and should not.

    Links, what is no file, files of other contents, and more than `limit` bytes.
    """
    wrong = []
    size = 0
    for path in target.rglob("*"):
        if path.is_symlink():
            wrong.append(path)
        elif path.is_file():
            size += path.stat().st_size
            if path.read_bytes() not in contents:
                wrong.append(path)
        elif not path.is_dir():
            wrong.append(path)
    if size > limit:
        wrong.append("a bomb")
    return wrong


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz"])
@settings(max_examples=30, phases=[Phase.generate])
@given(made=members(), data=st.data())
def test_any_archive(tmp_path_factory, form, made, data):
    folder = tmp_path_factory.mktemp("archive")
    inner = folder / "inner"
    target = inner / "target"
    inner.mkdir()
    (inner / "kept.txt").write_text("kept")
    content = packed(form, made)
    # Nothing in a plain .tar says what the bytes of a file were.
    if form != "tar" and data.draw(st.booleans()):
        content = damaged(data.draw, content)
    path = folder / f"archive.{form}"
    path.write_bytes(content)
    contents = {b"", *(member.content for member in made)}
    limit = max(SMALL, archives.MOST_RATIO * len(content))

    def act():
        with mock.patch.object(archives, "_SMALL", SMALL):  # so that bombs may be small
            archives.unpack(path, target)
        return wrong_entries(target, contents, limit)

    check(act, lambda wrong: wrong == [], (form, made))
    assert {entry.name for entry in inner.iterdir()} <= {"target", "kept.txt"}
    assert not (folder / "escaped").exists()
    assert (inner / "kept.txt").read_text() == "kept"


CONTENT = bytes(range(256)) * 4000  # a megabyte, so that it comes in several pieces


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with LocalServer(CONTENT) as server:
        yield server


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_and_verified(server, tmp_path):
    bar = NotedBar()
    file = download(f"{server.url}/x.zip", tmp_path / "new/x.zip", server.md5, bar)
    assert file == tmp_path / "new/x.zip"
    assert file.read_bytes() == CONTENT
    assert names(file.parent) == ["x.zip"]
    assert bar.seen[0] == ("downloading x.zip", "B", 0, len(CONTENT))
    assert len(bar.seen) > 2
    assert bar.numbers == sorted(bar.numbers)
    assert bar.numbers[-1] == (len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("verified", [True, False])
def test_a_file_is_downloaded_once(server, tmp_path, verified):
    md5 = server.md5 if verified else None
    file = download(server.url, tmp_path / "x.zip", md5)
    assert download(server.url, file, md5) == file
    assert server.asked == [""]


def test_another_file_of_that_name_stays(server, tmp_path):
    file = tmp_path / "x.zip"
    file.write_bytes(b"something else")
    words = rf"x.zip exists, .* while {server.md5} is expected. Delete it"
    with pytest.raises(DownloadError, match=words):
        download(server.url, file, server.md5)
    assert file.read_bytes() == b"something else"


def test_a_broken_connection_is_reported(server, tmp_path):
    server.stop_after = 300_000
    with pytest.raises(DownloadError) as raised:
        download(f"{server.url}/x.zip", tmp_path / "x.zip", server.md5)
    partial_file = tmp_path / "x.zip.part"
    assert names(tmp_path) == ["x.zip.part"]
    assert partial_file.read_bytes() == CONTENT[:300_000]
    message = str(raised.value)
    assert f"cannot download {server.url}/x.zip: the connection ended" in message
    assert "after 300000 of 1024000 bytes" in message
    assert (
        f"300.0 kB are kept in {partial_file} and the same command resumes" in message
    )
    assert "download the file elsewhere and give it with --source" in message


def test_the_same_call_resumes(server, tmp_path):
    (tmp_path / "x.zip.part").write_bytes(CONTENT[:300_000])
    bar = NotedBar()
    download(server.url, tmp_path / "x.zip", server.md5, bar)
    assert server.asked == ["bytes=300000-"]
    assert names(tmp_path) == ["x.zip"]
    assert (tmp_path / "x.zip").read_bytes() == CONTENT
    assert bar.numbers[0] == (300_000, len(CONTENT))
    assert bar.numbers[-1] == (len(CONTENT), len(CONTENT))


def test_another_range_than_asked_for_starts_over(server, tmp_path):
    server.early = 1000
    (tmp_path / "x.zip.part").write_bytes(CONTENT[:300_000])
    download(server.url, tmp_path / "x.zip", server.md5)
    assert server.asked == ["bytes=300000-", ""]
    assert (tmp_path / "x.zip").read_bytes() == CONTENT


def test_a_partial_file_may_be_complete(server, tmp_path):
    (tmp_path / "x.zip.part").write_bytes(CONTENT)
    download(server.url, tmp_path / "x.zip", server.md5)
    assert server.asked == [f"bytes={len(CONTENT)}-"]
    assert names(tmp_path) == ["x.zip"]


@pytest.mark.parametrize(
    ("begun", "announced"), [(b"", ""), (CONTENT[:100], ""), (b"", "many")]
)
def test_the_length_may_be_unknown(server, tmp_path, begun, announced):
    server.announce = announced
    (tmp_path / "x.zip.part").write_bytes(begun)
    bar = NotedBar()
    download(server.url, tmp_path / "x.zip", server.md5, bar)
    assert (tmp_path / "x.zip").read_bytes() == CONTENT
    assert bar.numbers[-1] == (len(CONTENT), None)


def test_a_wrong_checksum_deletes_the_file(server, tmp_path):
    with pytest.raises(DownloadError) as raised:
        download(f"{server.url}/x.zip", tmp_path / "x.zip", "0" * 32)
    message = str(raised.value)
    assert (
        f"of {server.url}/x.zip has the MD5 checksum {server.md5}, but {'0' * 32} is "
        f"expected" in message
    )
    assert (
        "it was deleted" in message
        and "download x.zip elsewhere and give it with --source" in message
    )
    assert names(tmp_path) == []


def test_an_error_of_the_server(server, tmp_path):
    server.status = 503
    words = r"cannot download http.*503.*Run the command again; or download"
    with pytest.raises(DownloadError, match=words):
        download(server.url, tmp_path / "x.zip")


def test_an_error_keeps_what_has_arrived(server, tmp_path):
    server.status = 503
    (tmp_path / "x.zip.part").write_bytes(b"begun")
    words = r"503.*5 bytes are kept in .*x.zip.part and the same command resumes"
    with pytest.raises(DownloadError, match=words):
        download(server.url, tmp_path / "x.zip")
    assert names(tmp_path) == ["x.zip.part"]


def test_an_error_of_the_network(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/x.zip"
        words = r"cannot download http.*Connection refused"
        with pytest.raises(DownloadError, match=words):
            download(url, tmp_path / "x.zip")


def test_a_redirection_is_followed(server, tmp_path):
    with LocalServer(b"elsewhere") as second_server:
        server.redirect = f"{second_server.url}/x.zip"
        assert download(server.url, tmp_path / "x.zip").read_bytes() == b"elsewhere"


def test_a_redirection_to_a_local_file(server, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    server.redirect = (tmp_path / "secret").as_uri()
    with pytest.raises(DownloadError, match="cannot download"):
        download(server.url, tmp_path / "x.zip")


def test_a_redirection_to_ftp(server, tmp_path):
    server.redirect = "ftp://127.0.0.1/x.zip"
    with pytest.raises(DownloadError, match="unknown url type: ftp"):
        download(server.url, tmp_path / "x.zip")


def test_too_little_room_is_reported_before_the_download(server, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 24_000))
    (tmp_path / "x.zip.part").write_bytes(CONTENT[:900_000])
    with pytest.raises(
        FrameTableError,
        match=r"downloading x.zip needs 124.0 kB more, but only 24.0 kB are free at",
    ):
        download(server.url, tmp_path / "x.zip", server.md5)
    (tmp_path / "x.zip.part").write_bytes(CONTENT[:1_000_000])
    download(server.url, tmp_path / "x.zip", server.md5)

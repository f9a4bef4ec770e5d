"""Archives are unpacked below the target alone, any members and damage included."""

import io
import shutil
import socket
import stat
import tarfile
import zipfile
from collections import namedtuple
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


def test_all_kinds_unpack_to_the_same_files_and_the_content_tells_the_kind(tmp_path):
    for number, (name, write) in enumerate(
        [*WRITERS.items(), ("wrong.zip", write_tar), ("download", write_zip)]
    ):
        bar, out = NotedBar(), tmp_path / f"out{number}"
        assert unpack(write(tmp_path / name), out, progress=bar) == 3
        assert in_folder(out) == FILES and bar.numbers == [
            (0, 3),
            (1, 3),
            (2, 3),
            (3, 3),
        ]


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
def test_files_with_the_right_size_are_kept(tmp_path, name):
    archive, out, bar = WRITERS[name](tmp_path / name), tmp_path / "out", NotedBar()
    unpack(archive, out)
    (out / "a/1.png").write_bytes(b"ONE" * 5000)  # the right size: kept
    (out / "a/b/2.png").write_bytes(b"half")
    assert unpack(archive, out, progress=bar) == 1
    assert in_folder(out) == {**FILES, "a/1.png": b"ONE" * 5000}
    assert bar.numbers == [(2, 3), (3, 3)]
    assert unpack(archive, out) == 0


def test_an_interruption_leaves_no_partial_file_and_the_same_call_resumes(tmp_path):
    archive, out = write_zip(tmp_path / "x.zip"), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        unpack(archive, out, progress=NotedBar(stop=(1, 3)))
    assert in_folder(out) == {"a/1.png": FILES["a/1.png"]}
    (out / "a/b").mkdir()
    (out / "a/b/.2.png.0123456789abcdef.part").write_bytes(
        b"t"
    )  # left by a power failure
    assert unpack(archive, out) == 2 and in_folder(out) == FILES


def test_only_chooses_and_renames(tmp_path):
    archive = write_zip(tmp_path / "x.zip")
    assert (
        unpack(
            archive,
            tmp_path / "chosen",
            only=lambda name: name if name.startswith("a/b") else None,
        )
        == 1
    )
    assert in_folder(tmp_path / "chosen") == {"a/b/2.png": b"two"}
    unpack(
        archive,
        tmp_path / "renamed",
        only=lambda name: f"c/{name[2:]}" if name.startswith("a/") else None,
    )
    assert in_folder(tmp_path / "renamed") == {
        "c/1.png": FILES["a/1.png"],
        "c/b/2.png": b"two",
    }
    with pytest.raises(
        FrameTableError, match=r"holds both a/1.png and a/b/2.png; only one can be same"
    ):
        unpack(
            archive,
            tmp_path / "clash",
            only=lambda name: "same" if name.endswith("png") else None,
        )
    assert not (tmp_path / "clash").exists()


def test_too_little_room_is_reported_before_anything_is_written(tmp_path, monkeypatch):
    archive, out, asked = write_zip(tmp_path / "x.zip"), tmp_path / "deep/out", []

    def usage(path):
        asked.append(Path(path))
        return namedtuple("usage", "total used free")(10**6, 0, 15_002)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(
        FrameTableError,
        match=r"x.zip needs 15.0 kB more, but only 15.0 kB are free at .*deep/out",
    ):
        unpack(archive, out)
    assert asked == [tmp_path] and not out.exists()
    (out / "a/b").mkdir(parents=True)
    (out / "a/b/2.png").write_bytes(
        b"two"
    )  # then exactly what is free is still missing
    assert unpack(archive, out) == 2 and in_folder(out) == FILES


def test_a_damaged_member_is_reported_and_the_files_before_it_are_kept(tmp_path):
    archive = write_zip(
        tmp_path / "x.zip", {"1.png": b"first", "2.png": b"second", "3.png": b"third"}
    )
    archive.write_bytes(archive.read_bytes().replace(b"second", b"sEcond"))
    with pytest.raises(
        FrameTableError, match=r"x.zip is damaged .*2.png.*Download it again.*are kept"
    ):
        unpack(archive, tmp_path / "out")
    assert in_folder(tmp_path / "out") == {"1.png": b"first"}
    deflated = write_zip(
        archive, {"1.png": b"first"}, zipfile.ZIP_DEFLATED
    ).read_bytes()
    whole, second = (
        write_tar(tmp_path / "x.tar").read_bytes(),
        512 + 15_360,
    )  # where its second header begins
    for content, words in (
        (deflated[:35] + b"\xff" + deflated[36:], "invalid block type"),
        (deflated * 2, "another archive comes before it"),
        (whole * 2, "it breaks off after 3 members, or another archive follows"),
        (whole[:second], "it breaks off after 1 members"),
        (
            whole[:second] + bytes(512) + whole[second + 512 :],
            "it breaks off after 1 members",
        ),
    ):
        archive.write_bytes(content)
        with pytest.raises(FrameTableError, match=f"x.zip is damaged .*{words}"):
            unpack(archive, tmp_path / "other")


def test_files_that_are_no_archives(tmp_path):
    (tmp_path / "x.zip").write_text("<!DOCTYPE html><p>Please log in")
    (tmp_path / "empty.tar").touch()
    for name, words in (
        ("x.zip", "x.zip is no archive.*begins with b'<!DOCTYPE html>.*a web page"),
        ("empty.tar", "empty.tar is no archive"),
        ("nowhere.zip", "there is no archive .*nowhere.zip; give a .zip, .tar"),
    ):
        with pytest.raises(FrameTableError, match=words):
            unpack(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("writer", [write_zip, write_tar])
@pytest.mark.parametrize(
    "name", ["a/../../evil.txt", "/evil.txt", "..\\evil.txt", "C:evil.txt"]
)
def test_members_outside_the_target_are_refused_before_anything_is_written(
    tmp_path, writer, name
):
    archive = writer(tmp_path / "x", {"good.txt": b"good", name: b"evil"})
    with pytest.raises(FrameTableError) as raised:
        unpack(archive, tmp_path / "out")
    words = f"archive {archive} is refused, and nothing was unpacked: its member {name!r} lies outside"
    assert words in str(
        raised.value
    ) and "unpack it yourself and give the folder" in str(raised.value)
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


@st.composite
def members(draw):
    """Name, kind, content and link of some members."""
    names = (
        st.sampled_from(GOOD) | st.sampled_from(GOOD) | st.sampled_from(OUTSIDE + ODD)
    )
    found = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(KINDS))
        content = {"bomb": bytes(50 * SMALL), "folder": b""}.get(kind) or draw(
            st.binary(max_size=3000)
        )
        found.append(
            (
                draw(names),
                kind,
                b"" if kind == "folder" else content,
                draw(st.sampled_from(LINKS)),
            )
        )
    return found


def packed(form, some):
    """The bytes of an archive."""
    buffer = io.BytesIO()
    if form == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, kind, content, link in some:
                info = zipfile.ZipInfo(name.encode("utf-8", "replace").decode())
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = (MODES.get(kind, stat.S_IFREG) | 0o644) << 16
                archive.writestr(info, link if kind == "symlink" else content)
    else:
        with tarfile.open(
            fileobj=buffer, mode="w:gz" if form == "tar.gz" else "w"
        ) as archive:
            for name, kind, content, link in some:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = (
                    TYPES.get(kind, tarfile.REGTYPE),
                    link if "link" in kind else "",
                )
                info.size = len(content) if info.type == tarfile.REGTYPE else 0
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "form, kind",
    [*zip(("tar", "tar", "zip", "zip"), ("hardlink", "device", "symlink", "device"))],
)
def test_what_is_no_file_is_refused_unless_it_is_left_out(tmp_path, form, kind):
    good = [(name, "file", b"good", "") for name in ("a/good.txt", "b.txt")]
    (tmp_path / "archive").write_bytes(
        packed(form, [*good, ("x", kind, b"", "/etc/passwd")])
    )
    with pytest.raises(
        FrameTableError,
        match=f"'x' is a {'link' if 'link' in kind else kind}, not a file",
    ):
        unpack(tmp_path / "archive", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    only = lambda member: member if member.endswith(".txt") else None  # noqa: E731
    assert unpack(tmp_path / "archive", tmp_path / "out", only=only) == 2
    assert set(in_folder(tmp_path / "out")) == {"a/good.txt", "b.txt"}


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz"])
@settings(max_examples=30, phases=[Phase.generate])
@given(some=members(), data=st.data())
def test_any_archive(tmp_path_factory, form, some, data):
    folder = tmp_path_factory.mktemp("archive")
    inner, target = folder / "inner", folder / "inner" / "target"
    inner.mkdir()
    (inner / "kept.txt").write_text("kept")
    content = packed(form, some)
    if form != "tar" and data.draw(
        st.booleans()
    ):  # nothing in a plain .tar says what the bytes of a file were
        content = damaged(data.draw, content)
    path = folder / f"archive.{form}"
    path.write_bytes(content)

    def act():
        with mock.patch.object(archives, "_SMALL", SMALL):  # so that bombs may be small
            archives.unpack(path, target)
        found = [
            one for one in target.rglob("*") if one.is_symlink() or not one.is_dir()
        ]
        wrong = [one for one in found if one.is_symlink() or not one.is_file()]
        known = {b"", *(content for *_, content, _ in some)}
        wrong += [
            one for one in found if one.is_file() and one.read_bytes() not in known
        ]
        size = sum(one.stat().st_size for one in found)
        return wrong + ["a bomb"] * (
            size > max(SMALL, archives.MOST_RATIO * path.stat().st_size)
        )

    check(act, lambda found: found == [], (form, some))
    assert {one.name for one in inner.iterdir()} <= {"target", "kept.txt"} and not (
        folder / "escaped"
    ).exists()
    assert (inner / "kept.txt").read_text() == "kept"


CONTENT = bytes(range(256)) * 4000  # a megabyte, so that it comes in several pieces


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with LocalServer(CONTENT) as server:
        yield server


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_once_and_verified(server, tmp_path):
    bar = NotedBar()
    file = download(f"{server.url}/x.zip", tmp_path / "new/x.zip", server.md5, bar)
    assert (
        file == tmp_path / "new/x.zip"
        and file.read_bytes() == CONTENT
        and names(file.parent) == ["x.zip"]
    )
    assert bar.seen[0] == (
        "downloading x.zip",
        "B",
        0,
        len(CONTENT),
    ) and bar.numbers == sorted(bar.numbers)
    assert len(bar.seen) > 2 and bar.numbers[-1] == (len(CONTENT), len(CONTENT))
    assert (
        download(server.url, file, server.md5) == file
        and download(server.url, file) == file
    )
    assert server.asked == [""]
    file.write_bytes(b"something else")
    with pytest.raises(
        DownloadError,
        match=rf"x.zip exists, .* while {server.md5} is expected. Delete it",
    ):
        download(server.url, file, server.md5)
    assert file.read_bytes() == b"something else"  # not ours to delete


def test_a_broken_connection_is_reported_and_the_same_call_resumes(server, tmp_path):
    server.stop_after = 300_000
    with pytest.raises(DownloadError) as raised:
        download(f"{server.url}/x.zip", tmp_path / "x.zip", server.md5)
    part = tmp_path / "x.zip.part"
    assert part.read_bytes() == CONTENT[:300_000] and names(tmp_path) == ["x.zip.part"]
    message = str(raised.value)
    assert (
        f"cannot download {server.url}/x.zip: the connection ended after 300000 of 1024000 bytes"
        in message
    )
    assert f"300.0 kB are kept in {part} and the same command resumes" in message
    assert "download the file elsewhere and give it with --source" in message

    bar = NotedBar()
    download(f"{server.url}/x.zip", tmp_path / "x.zip", server.md5, bar)
    assert server.asked == ["", "bytes=300000-"] and names(tmp_path) == ["x.zip"]
    assert (tmp_path / "x.zip").read_bytes() == CONTENT and bar.numbers[-1] == (
        len(CONTENT),
        len(CONTENT),
    )
    assert bar.numbers[0] == (300_000, len(CONTENT))


def test_a_partial_file_may_be_complete_and_the_length_unknown(server, tmp_path):
    (tmp_path / "x.zip.part").write_bytes(CONTENT)
    download(server.url, tmp_path / "x.zip", server.md5)
    assert server.asked == [f"bytes={len(CONTENT)}-"] and names(tmp_path) == ["x.zip"]
    cases = (
        ("new.zip", b"", ""),
        ("begun.zip", CONTENT[:100], ""),
        ("odd.zip", b"", "many"),
    )
    for name, begun, server.announce in cases:
        (tmp_path / f"{name}.part").write_bytes(begun)
        bar = NotedBar()
        download(server.url, tmp_path / name, server.md5, bar)
        assert (tmp_path / name).read_bytes() == CONTENT and bar.numbers[-1] == (
            len(CONTENT),
            None,
        )


def test_a_wrong_checksum_deletes_the_file(server, tmp_path):
    with pytest.raises(DownloadError) as raised:
        download(f"{server.url}/x.zip", tmp_path / "x.zip", "0" * 32)
    message = str(raised.value)
    assert (
        f"of {server.url}/x.zip has the MD5 checksum {server.md5}, but {'0' * 32} is expected"
        in message
    )
    assert (
        "it was deleted" in message
        and "download x.zip elsewhere and give it with --source" in message
    )
    assert names(tmp_path) == []


def test_errors_of_the_server_and_of_the_network(server, tmp_path):
    server.status = 503
    with pytest.raises(
        DownloadError,
        match=r"cannot download http.*503.*Run the command again; or download",
    ):
        download(server.url, tmp_path / "x.zip")
    (tmp_path / "x.zip.part").write_bytes(b"begun")
    with pytest.raises(
        DownloadError,
        match=r"503.*5 bytes are kept in .*x.zip.part and the same command resumes",
    ):
        download(server.url, tmp_path / "x.zip")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(
            DownloadError, match=r"cannot download http.*Connection refused"
        ):
            download(
                f"http://127.0.0.1:{unused.getsockname()[1]}/x.zip", tmp_path / "x.zip"
            )
    assert names(tmp_path) == ["x.zip.part"]


def test_a_redirection_is_followed_but_not_to_local_files(
    server, tmp_path, monkeypatch
):
    with LocalServer(b"elsewhere") as other:
        server.redirect = f"{other.url}/x.zip"
        assert download(server.url, tmp_path / "x.zip").read_bytes() == b"elsewhere"
    (tmp_path / "secret").write_bytes(b"secret")
    places = {
        (tmp_path / "secret").as_uri(): "cannot download",
        "ftp://127.0.0.1/x.zip": "unknown url type: ftp",
    }
    for number, (place, fact) in enumerate(places.items()):
        server.redirect = place
        with pytest.raises(DownloadError, match=fact):
            download(server.url, tmp_path / f"{number}.zip")


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

"""Archives of any members, some damaged: what is unpacked lies below the target and is what the archive holds."""

import io
import stat
import tarfile
import zipfile
from unittest import mock

import pytest
from faults import check, damaged
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from benchmarks_toybox_ilab.prepare import archives

pytestmark = pytest.mark.filterwarnings("ignore:Duplicate name")
SMALL = 20_000  # bytes that are unpacked in any case; a bomb is larger
GOOD = ("a.png", "train/cup/1.png", "train/cup/2.png", "val/ä b.txt", "deep/" * 20 + "x", "a" * 200)
OUTSIDE = ("../escaped", "a/../../escaped", "..\\escaped", "C:\\escaped", "C:escaped", "train/../../../escaped", "..")
ODD = ("", ".", "/", "a//b", "a/./b", "nul\0byte", "line\nbreak", "a.png/", "train", "x" * 300, "\udcff", "a.png ")
LINKS = ("a.png", "../escaped", "/etc/passwd", "train", ".", "nowhere", "link", "x" * 5000)
KINDS = ("file",) * 8 + ("symlink", "symlink", "hardlink", "device", "folder", "bomb")
MODES = {"symlink": stat.S_IFLNK, "device": stat.S_IFCHR, "folder": stat.S_IFDIR}
TYPES = {"symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE, "device": tarfile.CHRTYPE, "folder": tarfile.DIRTYPE}


@st.composite
def members(draw):
    """Name, kind, content and link of some members."""
    names = st.sampled_from(GOOD) | st.sampled_from(GOOD) | st.sampled_from(OUTSIDE + ODD)
    found = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(KINDS))
        content = {"bomb": bytes(50 * SMALL), "folder": b""}.get(kind) or draw(st.binary(max_size=3000))
        found.append((draw(names), kind, b"" if kind == "folder" else content, draw(st.sampled_from(LINKS))))
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
        with tarfile.open(fileobj=buffer, mode="w:gz" if form == "tar.gz" else "w") as archive:
            for name, kind, content, link in some:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = TYPES.get(kind, tarfile.REGTYPE), link if "link" in kind else ""
                info.size = len(content) if info.type == tarfile.REGTYPE else 0
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def check_archive(folder, form, some, data):
    inner, target = folder / "inner", folder / "inner" / "target"
    inner.mkdir()
    (inner / "kept.txt").write_text("kept")
    content = packed(form, some)
    if form != "tar" and data.draw(st.booleans()):  # nothing in a plain .tar says what the bytes of a file were
        content = damaged(data.draw, content)
    path = folder / f"archive.{form}"
    path.write_bytes(content)

    def act():
        with mock.patch.object(archives, "_SMALL", SMALL):  # so that bombs may be small
            archives.unpack(path, target)
        found = [one for one in target.rglob("*") if one.is_symlink() or not one.is_dir()]
        wrong = [one for one in found if one.is_symlink() or not one.is_file()]
        known = {b"", *(content for *_, content, _ in some)}
        wrong += [one for one in found if one.is_file() and one.read_bytes() not in known]
        size = sum(one.stat().st_size for one in found)
        return wrong + ["a bomb"] * (size > max(SMALL, archives.MOST_RATIO * path.stat().st_size))

    check(act, lambda found: found == [], (form, some))
    assert {one.name for one in inner.iterdir()} <= {"target", "kept.txt"} and not (folder / "escaped").exists()
    assert (inner / "kept.txt").read_text() == "kept"


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz"])
@settings(max_examples=30, phases=[Phase.generate])
@given(some=members(), data=st.data())
def test_any_archive(tmp_path_factory, form, some, data):
    check_archive(tmp_path_factory.mktemp("archive"), form, some, data)

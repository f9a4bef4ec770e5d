"""Malicious and damaged archives: names that lead outside, links, devices, bombs, flipped bytes."""

import io
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path
from random import Random
from unittest import mock

from support.faults.case import Kind
from support.faults.damage import damaged

from benchmarks_toybox_ilab.prepare import archives

SMALL = 20_000  # bytes that are unpacked in any case; a bomb is larger
NAMES = ("a.png", "train/cup/1.png", "train/cup/2.png", "val/ä b.txt", "deep/" * 20 + "x", "a" * 200)
OUTSIDE = ("../escaped", "/tmp/escaped-by-campaign", "a/../../escaped", "..\\escaped", "C:\\escaped", "C:escaped")
OUTSIDE += ("train/../../../escaped", "\\escaped", "./../escaped", "..", "a/..")
ODD = ("", ".", "/", "a//b", "a/./b", "nul\0byte", "line\nbreak", "a.png/", "train", "x" * 300, "\udcff", "a.png ")
LINKS = ("a.png", "../escaped", "/etc/passwd", "train", ".", "nowhere", "link", "train/cup/1.png", "x" * 5000)


class Archives(Kind):
    """What is unpacked lies below the target, is what the archive holds, and is no bomb."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.target, self.outside = folder / "inner" / "target", folder / "inner"
        self.outside.mkdir()
        (self.outside / "kept.txt").write_text("kept")

    def damage(self, random: Random) -> str:
        self.contents: dict[str, set[bytes]] = {}
        kind = random.choice(("zip", "tar", "tar.gz"))
        self.path = self.folder / f"archive.{kind}"
        members = [self.member(random) for _ in range(random.randint(1, 5))]
        data = zipped(members, random) if kind == "zip" else tarred(members, kind == "tar.gz", random)
        what = f"{kind} of " + ", ".join(f"{how} {name[:30]!r} {link[:30]!r}" for name, _, how, link in members)
        if kind != "tar" and random.random() < 0.4:  # nothing in a plain .tar says what the bytes of a file were
            more, data = damaged(data, random)
            what += f"; {more}"
        self.path.write_bytes(data)
        return what

    def member(self, random: Random) -> tuple[str, bytes, str, str]:
        """Name, content, kind and link of a member."""
        name = random.choice(random.choices((NAMES, OUTSIDE, ODD), (6, 1, 1))[0])
        how = random.choices(("file", "symlink", "hardlink", "device", "folder", "bomb"), (10, 2, 1, 1, 1, 1))[0]
        content = (
            b""
            if how == "folder"
            else bytes(50 * SMALL)
            if how == "bomb"
            else random.randbytes(random.choice((0, 1, 500, 3000)))
        )
        self.contents.setdefault(name, set()).add(content)
        return name, content, how, random.choice(LINKS)

    def act(self):
        with mock.patch.object(archives, "_SMALL", SMALL):  # so that bombs may be small
            archives.unpack(self.path, self.target)
        found = {path.relative_to(self.target).as_posix(): path for path in self.target.rglob("*")}
        wrong = [name for name, path in found.items() if not (path.is_dir() or path.is_file()) or path.is_symlink()]
        every = set().union(*self.contents.values())
        wrong += [name for name, path in found.items() if path.is_file() and path.read_bytes() not in every]
        size = sum(path.stat().st_size for path in found.values() if path.is_file())
        wrong += ["a bomb"] if size > max(SMALL, archives.MOST_RATIO * self.path.stat().st_size) else []
        return wrong

    def right(self, found: list[str]) -> bool:
        return not found

    def restore(self) -> None:
        escaped = [path for path in self.outside.iterdir() if path not in (self.target, self.outside / "kept.txt")]
        escaped += [path for path in (self.folder / "escaped", Path("/tmp/escaped-by-campaign")) if path.exists()]
        if escaped or (self.outside / "kept.txt").read_text() != "kept":
            raise RuntimeError(f"an archive wrote outside its target: {escaped}")  # ends the campaign
        shutil.rmtree(self.target, ignore_errors=True)
        self.path.unlink()


def zipped(members: list, random: Random) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content, how, link in members:
            info = zipfile.ZipInfo(name.encode("utf-8", "replace").decode())
            info.compress_type = archive.compression
            modes = {"symlink": stat.S_IFLNK, "device": stat.S_IFCHR, "folder": stat.S_IFDIR}
            info.external_attr = (modes.get(how, stat.S_IFREG) | 0o644) << 16
            archive.writestr(info, link if how == "symlink" else b"" if how == "folder" else content)
    return buffer.getvalue()


def tarred(members: list, compressed: bool, random: Random) -> bytes:
    buffer = io.BytesIO()
    formats = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    with tarfile.open(fileobj=buffer, mode="w:gz" if compressed else "w", format=random.choice(formats)) as archive:
        for name, content, how, link in members:
            info = tarfile.TarInfo(name)
            kinds = {"symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE, "folder": tarfile.DIRTYPE}
            kinds |= {"device": random.choice((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE))}
            info.type, info.linkname = kinds.get(how, tarfile.REGTYPE), link if "link" in how else ""
            info.size = len(content) if info.type == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()

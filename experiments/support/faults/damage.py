"""Damage of files, drawn by a seeded generator."""

import os
from collections.abc import Iterable
from pathlib import Path
from random import Random

from benchmarks_toybox_ilab.tables import digests
from crumb_avalanche.runs import run_folder

SECTOR = 512


def damaged(data: bytes, random: Random) -> tuple[str, bytes]:
    """Damage some bytes; returns what was done, and other bytes than given."""
    while True:
        what, found = random.choices(DAMAGES, WEIGHTS)[0](data, random)
        if found != data:
            return what, found


def flip(data: bytes, random: Random) -> tuple[str, bytes]:
    if not data:
        return "one byte", bytes([random.randrange(256)])
    place, out = random.randrange(len(data)), bytearray(data)
    if random.random() < 0.3:  # headers are short and decide most
        place = random.randrange(min(len(data), 1024))
    out[place] ^= 1 << random.randrange(8) if random.random() < 0.5 else random.randrange(1, 256)
    return f"byte {place} changed", bytes(out)


def zeros(data: bytes, random: Random) -> tuple[str, bytes]:
    start, end = span(data, random)
    return f"bytes {start} to {end} zeroed", data[:start] + bytes(end - start) + data[end:]


def noise(data: bytes, random: Random) -> tuple[str, bytes]:
    start, end = span(data, random)
    return f"bytes {start} to {end} random", data[:start] + random.randbytes(end - start) + data[end:]


def cut(data: bytes, random: Random) -> tuple[str, bytes]:
    end = random.choice([0, len(data) // 2, max(0, len(data) - 1), random.randrange(len(data) + 1)])
    return f"cut to {end} of {len(data)} bytes", data[:end]


def longer(data: bytes, random: Random) -> tuple[str, bytes]:
    more = random.choice([b"\0", b"\n", bytes(SECTOR), random.randbytes(random.randrange(1, 200)), data[:SECTOR]])
    return f"{len(more)} bytes at the end", data + more


def moved(data: bytes, random: Random) -> tuple[str, bytes]:
    start, end = span(data, random)
    target = random.randrange(len(data) + 1)
    out = data[:target] + data[start:end] + data[target + end - start :]
    return f"bytes {start} to {end} copied to {target}", out


def less(data: bytes, random: Random) -> tuple[str, bytes]:
    start, end = span(data, random)
    return f"bytes {start} to {end} left out", data[:start] + data[end:]


def digit(data: bytes, random: Random) -> tuple[str, bytes]:
    """Change a digit, which keeps most text files valid."""
    places = [place for place, byte in enumerate(data[:20_000]) if 48 <= byte <= 57]
    if not places:
        return flip(data, random)
    place, out = random.choice(places), bytearray(data)
    out[place] = random.choice(b"0123456789")
    return f"digit {place} changed", bytes(out)


def span(data: bytes, random: Random) -> tuple[int, int]:
    """A sector, or some bytes."""
    if len(data) > SECTOR and random.random() < 0.5:
        start = random.randrange(len(data) // SECTOR) * SECTOR
        return start, start + SECTOR
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.randrange(1, 65))


DAMAGES = (flip, digit, zeros, noise, cut, longer, moved, less)
WEIGHTS = (8, 2, 2, 1, 2, 1, 1, 1)


def damage_file(path: Path, random: Random) -> str:
    """Damage a file, or remove it; half of the time it keeps its modification time, as on a failing disk."""
    if random.random() < 0.02:
        path.unlink()
        return f"{path.name} removed"
    before = path.stat()
    what, data = damaged(path.read_bytes(), random)
    path.write_bytes(data)
    if random.random() < 0.5:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        what += ", same time"
    return f"{path.name}: {what}"


def damage_some(paths: Iterable[Path], random: Random) -> str:
    """Damage one file of several, or, one in ten times, up to three."""
    paths = list(paths)
    count = 1 if random.random() < 0.9 else random.randint(1, min(3, len(paths)))
    what = "; ".join(damage_file(path, random) for path in random.sample(paths, count))
    forget_digests()
    return what


def forget_digests() -> None:
    """Forget digests of files that keep size and time, as a new process would."""
    digests._content.cache_clear()
    run_folder._file_hash.cache_clear()
    run_folder._table_hash.cache_clear()


class Tree:
    """The files below a folder as they are now, to be restored later.

    Args:
        folder: with small files only.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.kept = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in self.files()}

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file() or path.is_symlink())

    def restore(self) -> None:
        """Remove new files and write back the others."""
        for path in set(self.files()) - self.kept.keys():
            path.unlink()
        for path, (data, time) in self.kept.items():
            if not path.is_file() or path.stat().st_mtime_ns != time or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                os.utime(path, ns=(time, time))

"""Unpack archives of data sets safely; an interrupted call resumes."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks_toybox_ilab.prepare.archive_kinds import (
    ENDINGS,
    Archive,
    Member,
    damage_named,
    open_archive,
    refused,
    safe_name,
)
from benchmarks_toybox_ilab.tables.disk import atomic_write, check_room, readable_size
from benchmarks_toybox_ilab.tables.folders import visible_entries
from benchmarks_toybox_ilab.tables.frame import FrameTableError

MOST_RATIO = 100  # of unpacked to packed bytes; of images it is at most 10
_CHUNK = 1 << 20
_SMALL = 100_000_000  # bytes that are unpacked in any case

Choose = Callable[[str], bool | str | None]


def unpack(
    archive: str | Path,
    target: str | Path,
    progress: Callable[[int, int], object] | None = None,
    only: Choose | None = None,
) -> int:
    """Unpack a .zip, .tar or .tar.gz file (or copy a folder) below `target`.

    The content tells the kind of archive. A file that exists with the right size is kept, so the same call resumes
    after an interruption. Every file is written atomically. A link to a file of the archive becomes a copy of it.

    Args:
        archive: The archive, or a folder.
        target: Folder for the files; created if missing.
        progress: Called with (files done, total number of files), first with the number of files that exist already.
        only: Called with each name (forward slashes): True takes the file, a string takes it under that name, False or
            None leaves it out.

    Returns:
        The number of files written.

    Raises:
        FrameTableError: If the archive does not exist, a member lies outside the target or is no file, or the disk has
            too little room (nothing is written in these cases), or the archive is damaged (files before the damage are
            kept).
    """
    archive, target = Path(archive), Path(target)
    with open_archive(archive) as source:
        with damage_named(archive):
            members = _wanted(_without_target(source.members(), archive, target), archive, only)
        missing = [member for member in members if not _exists(target / member.name, member.size)]
        _check_ratio(archive, sum(member.size for member in members))
        check_room(target, sum(member.size for member in missing), f"unpacking {archive}")
        done = len(members) - len(missing)
        if progress is not None:
            progress(done, len(members))
        for written, member in enumerate(missing, 1):
            _write(source, member, target / member.name, archive)
            if progress is not None:
                progress(done + written, len(members))
    return len(missing)


def holds(archive: Path, only: Choose) -> bool:
    """Whether an archive holds anything that `unpack` would take.

    Raises:
        FrameTableError: If it is no archive, or is damaged.
    """
    with open_archive(archive) as source, damage_named(archive):
        return any(only(safe_name(member.name, archive)) for member in source.members())


def archives_in(folder: Path) -> list[Path]:
    """The archives directly in a folder, in natural order of their names."""
    return [entry for entry in visible_entries(folder) if entry.name.lower().endswith(ENDINGS) and entry.is_file()]


def _check_ratio(archive: Path, unpacked: int) -> None:
    packed = archive.stat().st_size if archive.is_file() else unpacked
    if unpacked > max(_SMALL, MOST_RATIO * packed):
        raise FrameTableError(
            f"archive {archive} is refused, and nothing was unpacked: {readable_size(packed)} would become "
            f"{readable_size(unpacked)}, more than {MOST_RATIO} times as much, which no images do. Download it from "
            "its original source, or unpack it yourself and give the folder."
        )


def _exists(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except (FileNotFoundError, NotADirectoryError):
        return False


def _write(source: Archive, member: Member, path: Path, archive: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, bulk=True) as file:
        for chunk in _chunks(source, member, archive):
            file.write(chunk)


def _chunks(source: Archive, member: Member, archive: Path) -> Iterator[bytes]:
    length = 0
    with damage_named(archive), source.open(member.key) as stream:
        while chunk := stream.read(_CHUNK):
            length += len(chunk)
            yield chunk
        if length != member.size:
            raise EOFError(f"{member.name} has {length} of {member.size} bytes")


def _without_target(members: Iterable[Member], archive: Path, target: Path) -> Iterator[Member]:
    """Leave out the files of the target if it lies inside the folder to copy."""
    folder, target = archive.resolve(), target.resolve()
    if folder not in target.parents:
        return iter(members)
    prefix = f"{target.relative_to(folder).as_posix()}/"
    return (member for member in members if not member.name.startswith(prefix))


def _wanted(members: Iterable[Member], archive: Path, only: Choose | None) -> list[Member]:
    """The members to unpack under safe names, in archive order; of two with one name the last, as tar does."""
    wanted: dict[str, Member] = {}
    origin: dict[str, str] = {}
    for member in members:
        name = safe_name(member.name, archive)
        choice = True if only is None else only(name)
        if choice:
            if not name:
                raise refused(archive, member.name, "has no name below the target folder")
            if member.link is not None:
                member = member.link()
            new = safe_name(choice, archive) if isinstance(choice, str) else name
            if origin.setdefault(new, name) != name:
                raise FrameTableError(f"archive {archive} holds both {origin[new]} and {name}; only one can be {new}.")
            wanted.pop(new, None)
            wanted[new] = Member(new, member.size, member.key)
    for name in wanted:
        for end in (place for place, letter in enumerate(name) if letter == "/"):
            if name[:end] in wanted:
                raise FrameTableError(
                    f"archive {archive} holds {name[:end]} both as a file and as the folder of {name}."
                )
    return list(wanted.values())

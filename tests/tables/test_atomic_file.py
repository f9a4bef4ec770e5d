"""Atomic writes: a file is complete or absent, also if a writer fails or is killed."""

import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks_toybox_ilab.tables.atomic_file import (
    PART,
    atomic_write,
    remove_abandoned,
    write_text,
)

ABANDONED = ".0123456789abcdef.part"
posix = pytest.mark.skipif(os.name != "posix", reason="files as POSIX has them")
# A process that prints a line while it writes a file, and waits.
WRITER = """
import sys, time
from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"half")
    print(flush=True)
    time.sleep(60)
"""
# A process that forks while it writes a file; the other one leaves the block at once.
FORKING = """
import os, sys
from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
with atomic_write(sys.argv[1]) as file:
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
    file.write(b"x")
"""
# A process that writes a file of one letter again and again, and reads it each time.
ROUNDS = """
import sys
from pathlib import Path
from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
path, letter, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for _ in range(rounds):
    with atomic_write(path) as file:
        for _ in range(20):
            file.write(letter.encode() * 5000)
            file.flush()
    content = path.read_bytes()
    assert len(content) == 100_000 and len(set(content)) == 1, len(content)
"""
NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]


@pytest.fixture
def writer(tmp_path):
    """A process that is writing ``tmp_path / "file"``."""
    code = [sys.executable, "-c", WRITER, tmp_path / "file"]
    process = subprocess.Popen(code, stdout=subprocess.PIPE)
    assert process.stdout.read(1) == b"\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def without_locks(monkeypatch):
    """A file system that has no locks."""

    def flock(file, operation):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", flock)


def test_file_appears_at_the_end(tmp_path):
    path = tmp_path / "new" / "folder" / "file.txt"
    with atomic_write(path, "w") as file:
        file.write("first")
        assert not path.exists()
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("bulk", "expected"), [(False, [(5, False)]), (True, [])])
def test_content_is_flushed_before(tmp_path, monkeypatch, bulk, expected):
    path = tmp_path / "file.txt"
    flushed = []

    def fsync(descriptor):
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            flushed.append((status.st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_write(path, bulk=bulk) as file:
        file.write(b"first")
    assert flushed == expected


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_error_keeps_the_old_file(tmp_path, error, bulk):
    path = tmp_path / "file.txt"
    path.write_text("first")
    with pytest.raises(type(error)), atomic_write(path, bulk=bulk) as file:
        file.write(b"sec")
        raise error
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_text_is_utf8(tmp_path):
    write_text(tmp_path / "file.txt", "café\n")
    assert (tmp_path / "file.txt").read_bytes() == "café\n".encode()


def test_options_reach_open(tmp_path):
    with atomic_write(tmp_path / "a", "w", encoding="utf-16-be", newline="") as file:
        file.write("a\r\n")
    assert (tmp_path / "a").read_bytes() == "a\r\n".encode("utf-16-be")


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127, ".hidden", "a\nb"])
def test_any_name_can_be_written(tmp_path, name):
    with atomic_write(tmp_path / name) as file:
        file.write(b"x")
    assert os.listdir(tmp_path) == [name]


def test_the_last_of_two_writers_wins(tmp_path):
    path = tmp_path / "file.txt"
    with atomic_write(path, "w") as last:
        last.write("last")
        with atomic_write(path, "w") as first:
            first.write("first")
        assert path.read_text() == "first"
    assert path.read_text() == "last"


@pytest.mark.parametrize("bulk", [False, True])
def test_threads_may_write_one_file(tmp_path, bulk):
    path = tmp_path / "file"
    contents = [bytes([letter]) * 10_000 for letter in b"abcdefgh"]

    def write(content):
        with atomic_write(path, bulk=bulk) as file:
            file.write(content)
        return path.read_bytes()

    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(write, contents * 25))
    assert seen <= set(contents)
    assert os.listdir(tmp_path) == ["file"]


def _namespaces_work():
    if shutil.which("unshare") is None:
        return False
    process = subprocess.run([*NAMESPACE, "true"], capture_output=True)
    return process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(
    not _namespaces_work(), reason="this machine makes no PID namespaces"
)
def test_two_containers_write_one_file(tmp_path):
    """In each of them the writer is process 1, and its thread has number 1."""
    code = [*NAMESPACE, sys.executable, "-c", ROUNDS, tmp_path / "file"]
    writers = [subprocess.Popen([*code, letter, "100"]) for letter in "ab"]
    assert [process.wait() for process in writers] == [0, 0]
    assert os.listdir(tmp_path) == ["file"]


@posix
def test_a_new_file_has_usual_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@posix
@pytest.mark.parametrize("bulk", [False, True])
def test_an_old_file_keeps_its_permissions(tmp_path, bulk):
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o640)
    with atomic_write(path, bulk=bulk) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@posix
def test_permissions_can_be_chosen(tmp_path):
    path = tmp_path / "file"
    path.touch(0o644)
    with atomic_write(path, permissions=0o600) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@posix
@pytest.mark.parametrize(("group", "permissions"), [(66, 0o640), (77, 0o600)])
def test_owner_of_an_old_file(tmp_path, monkeypatch, group, permissions):
    """Owners are refused, as systems do to all but root, and the group 77."""
    path = tmp_path / "file"
    path.touch()
    asked = []

    def chown(path, owner, group):
        asked.append((owner, group))
        if owner != -1 or group == 77:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    before = os.stat_result([stat.S_IFREG | 0o640, 0, 0, 1, 55, group, 0, 0, 0, 0])
    real_stat = Path.stat
    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(
        Path,
        "stat",
        lambda self, **options: before if self == path else real_stat(self, **options),
    )
    write_text(path, "x")
    assert asked == [(55, group), (-1, group)]
    assert stat.S_IMODE(os.stat(path).st_mode) == permissions


@pytest.fixture
def links(tmp_path):
    """``link`` leads to ``middle``, which leads to ``other/file``."""
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("middle")
    (tmp_path / "middle").symlink_to("other/file")
    return tmp_path


@posix
@pytest.mark.parametrize("is_there", [False, True])
def test_a_link_is_followed(links, is_there):
    if is_there:
        (links / "other" / "file").write_text("old")
    write_text(links / "link", "new")
    assert (links / "link").is_symlink()
    assert (links / "other" / "file").read_text() == "new"
    assert os.listdir(links / "other") == ["file"]


@posix
def test_a_reader_keeps_the_old_file(links):
    write_text(links / "link", "old")
    with (links / "link").open() as begun:
        write_text(links / "link", "new")
        assert begun.read() == "old"


@posix
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("loop", "loop|Too many levels"),
        ("folder", "a folder, which no file replaces; give"),
        ("pipe", "a pipe or a device"),
    ],
)
def test_what_is_no_file_is_refused(tmp_path, name, words):
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=words), atomic_write(tmp_path / name):
        pass
    assert sorted(os.listdir(tmp_path)) == ["folder", "loop", "pipe"]


@posix
def test_a_failed_write_names_the_path(tmp_path):
    """The error of a write has no name, as the one of a disk that is full."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with (
            pytest.raises(OSError, match=f"{tmp_path}/file'") as raised,
            atomic_write(tmp_path / "file") as file,
        ):
            file.write(bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == []


@posix
def test_a_lost_folder_names_the_path(tmp_path):
    path = tmp_path / "folder" / "file"
    with pytest.raises(FileNotFoundError) as raised, atomic_write(path):
        shutil.rmtree(path.parent)
    assert raised.value.filename == str(path)
    assert raised.value.filename2 is None


def test_other_errors_keep_their_names(tmp_path):
    error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    with pytest.raises(ConnectionResetError) as raised, atomic_write(tmp_path / "a"):
        raise error
    assert raised.value.filename is None


@posix
def test_a_killed_writer_leaves_nothing(tmp_path, writer):
    writer.kill()
    writer.wait()
    assert PART.fullmatch(*os.listdir(tmp_path))
    write_text(tmp_path / "file", "x")
    assert os.listdir(tmp_path) == ["file"]


@posix
def test_a_living_writer_is_left_alone(tmp_path, writer):
    (unfinished,) = tmp_path.iterdir()
    os.utime(unfinished, (time.time() - 4000,) * 2)
    write_text(tmp_path / "file", "x")
    remove_abandoned(tmp_path)
    assert set(os.listdir(tmp_path)) == {"file", unfinished.name}


@posix
def test_abandoned_files_of_a_folder(tmp_path, writer):
    (tmp_path / "a" / "b").mkdir(parents=True)
    keep = {tmp_path / "a" / ".mine.part", *tmp_path.glob(".file.*")}
    abandoned = [tmp_path / f".x{ABANDONED}", tmp_path / "a" / "b" / f".y{ABANDONED}"]
    for path in [*keep, *abandoned]:
        path.touch()
    remove_abandoned(tmp_path)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == keep


@posix
@pytest.mark.parametrize(
    "name", [f"[b].txt{ABANDONED}", f".[a].txt.mine{ABANDONED}", ".[a].txt.part"]
)
def test_files_of_other_names_stay(tmp_path, name):
    (tmp_path / name).touch()
    write_text(tmp_path / "[a].txt", "x")
    assert set(os.listdir(tmp_path)) == {name, "[a].txt"}


@posix
@pytest.mark.parametrize(("age", "stays"), [(4000, False), (60, True)])
def test_age_decides_without_locks(tmp_path, without_locks, age, stays):
    abandoned = tmp_path / f".file{ABANDONED}"
    abandoned.touch()
    os.utime(abandoned, (time.time() - age,) * 2)
    write_text(tmp_path / "file", "x")
    assert abandoned.exists() == stays
    assert (tmp_path / "file").read_text() == "x"


@posix
def test_a_forked_process_leaves_the_file(tmp_path):
    code = [sys.executable, "-c", FORKING, tmp_path / "file"]
    subprocess.run(code, check=True)
    assert (tmp_path / "file").read_bytes() == b"x"
    assert os.listdir(tmp_path) == ["file"]


@posix
def test_a_link_for_an_abandoned_file_stays(tmp_path):
    (tmp_path / "mine").touch()
    (tmp_path / f".file{ABANDONED}").symlink_to("mine")
    with suppress(OSError):
        write_text(tmp_path / "file", "x")
    assert (tmp_path / "mine").exists()
    assert (tmp_path / "file").read_text() == "x"

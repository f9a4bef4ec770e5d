"""Small archives, and what lies in a folder."""

import io
import tarfile
import zipfile

FILES = {"a/1.png": b"one" * 5000, "a/b/2.png": b"two", "README": b""}


def write_zip(path, files=FILES, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path, files=FILES, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def pack(archive, folder, below=""):
    """An archive of all files of a folder, .zip or .tar.gz by its name, in the folder `below`."""
    content = {f"{below}{name}": data for name, data in in_folder(folder).items()}
    return write_zip(archive, content) if archive.suffix == ".zip" else write_tar(archive, content, "w:gz")


def in_folder(folder):
    """Name and content of every file below a folder, including hidden ones, sorted by name."""
    found = (path for path in sorted(folder.rglob("*")) if not path.is_dir())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def files(folder):
    """Names of all files below a folder but the hashes of tables."""
    return sorted(name for name in in_folder(folder) if not name.endswith(".sha256"))

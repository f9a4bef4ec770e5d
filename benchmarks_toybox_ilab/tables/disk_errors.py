"""Errors of disks and paths, and what a user can do about each."""

import errno
import os

# Error numbers of a full disk and of an exceeded quota.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# Error numbers of a write, whose errors do not name the file.
WRITE_ERRORS = (*DISK_FULL, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE)

_MAKE_ROOM = "make room on that disk and give the same command again"
_CHANGE_PERMISSIONS = "change its permissions, or choose another path"
CURES = {
    errno.ENOSPC: _MAKE_ROOM,
    errno.EDQUOT: _MAKE_ROOM,
    errno.EFBIG: (
        "a limit (ulimit -f) or the file system takes no file that large: raise it, "
        "or choose another disk"
    ),
    errno.EROFS: "choose another folder, or make the disk writable",
    errno.EACCES: _CHANGE_PERMISSIONS,
    errno.EPERM: _CHANGE_PERMISSIONS,
    errno.ENOENT: "check the path; some folders, such as /proc, take no files",
    errno.ENOTDIR: "a part of the path is a file: choose another path",
    errno.EISDIR: "give a file",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "a link leads back to itself: choose another path",
    errno.EMFILE: "raise the limit (ulimit -n), or lower --workers",
    errno.EIO: (
        "the disk or its connection may be failing: check it, or choose another one"
    ),
    errno.ESTALE: ("the connection to the disk was lost: give the same command again"),
}


def disk_advice(error: OSError) -> str | None:
    """Return a message for an error of a disk: path, reason, and what a user can do.

    ``None`` for an error of another kind, such as that of a connection.
    """
    cure = CURES.get(error.errno or 0)
    if cure is None:
        return None
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"{reason}; {cure}"
    if error.errno == errno.EACCES and not os.path.lexists(error.filename):
        # A new file, which the folder does not let in.
        folder = os.path.dirname(os.path.abspath(error.filename))
        cure = cure.replace(
            "its permissions", f"the permissions of the folder {folder}"
        )
    return f"{error.filename}: {reason}; {cure}"

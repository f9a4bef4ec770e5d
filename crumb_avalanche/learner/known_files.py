"""What a learner knows of its files, so that it replaces no work of others."""

import os

from crumb_avalanche.learner.header import is_learner
from crumb_avalanche.system.file_metadata import digest_of


class ReplacedError(OSError):
    """Another program replaced the file of a learner since it was read or written."""


class KnownFiles:
    """Checksums of the files that a learner was loaded from or saved to.

    Call ``check`` and ``note_replacement`` while the lock of the file is held.
    """

    def __init__(self) -> None:
        # By the path without links. There are two for a file that is being replaced, or
        # whose replacing was interrupted: it holds what it held, or all that is new.
        self._digests: dict[str, tuple[str | None, ...]] = {}

    def check(self, path: str | os.PathLike, overwrite: bool = False) -> None:
        """Raise an error for a file whose content is not known.

        A file that is gone may be written again.

        Args:
            path: of the file, which is about to be replaced.
            overwrite: whether it may be a learner that nothing is known of.

        Raises:
            FileExistsError: nothing is known of the file, and it is no learner; or it
                is one, and not to be overwritten.
            ReplacedError: the file holds something else than what is known of it.
        """
        if not os.path.exists(path):
            return
        digests = self._digests.get(os.path.realpath(path))
        if digests is None:
            _check_replaceable(path, overwrite)
            return
        if digest_of(path) not in digests:
            raise ReplacedError(
                f"{path} was replaced by another program since this learner was loaded "
                "from it or saved to it, so it stays as it is: load it and repeat the "
                "change, save to another path, or move it away"
            )

    def note_replacement(self, path: str | os.PathLike, digest: str) -> None:
        """Note that a file is about to be replaced by content with this checksum."""
        path = os.path.realpath(path)
        digests = self._digests.get(path)
        if digests is None:
            digests = (digest_of(path),)  # the file stays if the replacement fails
        self._digests[path] = (*digests, digest)

    def note_content(self, path: str | os.PathLike, digest: str | None) -> None:
        """Note what a file holds; ``None`` for content without a checksum."""
        self._digests[os.path.realpath(path)] = (digest,)

    def forget(self, path: str | os.PathLike) -> None:
        """Forget a file, such as a temporary one."""
        self._digests.pop(os.path.realpath(path), None)


def _check_replaceable(path: str | os.PathLike, overwrite: bool) -> None:
    """Raise FileExistsError for a file that is no learner, or not to be overwritten."""
    is_empty = os.path.getsize(path) == 0  # such as a temporary file
    if is_empty:
        return
    if not is_learner(path):
        raise FileExistsError(
            f"{path} exists and is no learner, so it stays as it is: choose another "
            "path"
        )
    if not overwrite:
        raise FileExistsError(
            f"{path} is a learner that this one was neither loaded from nor saved to, "
            "so it stays as it is: Learner.load goes on with it; save(path, "
            "overwrite=True) replaces it"
        )

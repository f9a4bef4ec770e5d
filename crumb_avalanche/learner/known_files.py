"""What a learner knows of its files, so that it replaces no work of others."""

import os

from crumb_avalanche.system.file_metadata import digest_of


class ReplacedError(OSError):
    """Another program replaced the file of a learner since it was read or written."""


class KnownFiles:
    """Checksums of the files that a learner was loaded from or saved to.

    A file that was not loaded from or saved to may be replaced, as by any program. Call
    ``check`` and ``note_replacement`` while the lock of the file is held.
    """

    def __init__(self) -> None:
        # By the path without links. There are two for a file that is being replaced, or
        # whose replacing was interrupted: it holds what it held, or all that is new.
        self._digests: dict[str, tuple[str | None, ...]] = {}

    def check(self, path: str | os.PathLike) -> None:
        """Raise ReplacedError if a file holds something else than what is known of it.

        A file that is gone may be written again.
        """
        digests = self._digests.get(os.path.realpath(path))
        if digests is None or not os.path.exists(path):
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

"""What a worker of a cluster compares with the call that sent it, before it works."""

import json
import os
import secrets
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from crumb_avalanche.runs.run_folder import LIBRARIES, versions
from crumb_avalanche.system.named_values import selected

VERSIONS = "versions.json"
ANSWER = "worker-"  # begins the names of the workers' files


class EngineError(RuntimeError):
    """An engine cannot do anything; one line that says why, and what to do."""


@dataclass(frozen=True)
class Call:
    """A call that workers are sent by; they get it pickled.

    Attributes:
        folder: of this call alone; each worker answers with a file there, empty or with
            the reason why it does not work.
        working_folder: of the command, which the paths of its settings are relative to.
        versions: of the libraries, by name.
    """

    folder: Path
    working_folder: Path
    versions: dict[str, str]

    @classmethod
    def begin(cls, folder: Path) -> "Call":
        """Make the folder of a new call of an engine in a private folder.

        Workers compare themselves with the versions of libraries that are written to
        it.

        Raises:
            EngineError: others may write to the folder.
        """
        make_private(folder)  # makes it; raises if others may write to it
        call = cls(
            folder=folder.resolve() / f"call-{secrets.token_hex(8)}",
            working_folder=Path.cwd(),
            versions=library_versions(),
        )
        call.folder.mkdir()
        write_text(call.folder / VERSIONS, json.dumps(call.versions))
        return call

    def check_in(self) -> None:
        """Compare this worker with the process that starts workers; answer by a file.

        Called in the worker, which then enters the working folder. The answer is a file
        that holds the difference, empty if there is none.

        Raises:
            EngineError: it does not see a folder, or has other versions.
        """
        host = socket.gethostname()
        if not (self.folder / VERSIONS).is_file():
            raise EngineError(
                f"the worker on {host} does not see {self.folder.parent}: choose an "
                "--output on a disk that all nodes share"
            )
        difference = self._difference(host)
        write_text(self.folder / f"{ANSWER}{host}-{os.getpid()}.txt", difference)
        if difference:
            raise EngineError(difference)
        os.chdir(self.working_folder)

    def _difference(self, host: str) -> str:
        """Say in what this worker differs from the call; empty if in nothing.

        Args:
            host: name of the worker's computer, for the text.
        """
        if not self.working_folder.is_dir():
            return (
                f"the worker on {host} does not see {self.working_folder}, where the "
                "command was given: give it in a folder that all nodes share"
            )
        installed = library_versions()
        for name, version in self.versions.items():
            version_here = installed.get(name, "not installed")
            if version_here != version:
                return (
                    f"the worker on {host} has {name} {version_here}, but this "
                    f"computer {version}: give all nodes the same environment"
                )
        return ""

    def answers(self) -> list[str]:
        """Return what the workers answered; empty texts of those that work."""
        paths = sorted(self.folder.glob(f"{ANSWER}*.txt"))
        return [path.read_text() for path in paths]

    def raise_refusals(self) -> None:
        """Raise EngineError with the first reason why a worker does not work."""
        for reason in self.answers():
            if reason:
                raise EngineError(reason)


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that decide results."""
    return selected(versions(), LIBRARIES)


def make_private(folder: Path) -> None:
    """Make a folder in which nobody else writes: workers load pickles from there.

    Raises:
        EngineError: it is another user's, or others may write to it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid():
        raise EngineError(
            f"{folder} belongs to another user, whose files could run code here: "
            "choose another --output"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EngineError(
            f"others may write to {folder}, and their files could run code here: take "
            f"the right away with chmod go-w {folder}"
        )

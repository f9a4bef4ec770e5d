"""What one call of `prepare` was asked for, and how its archives are unpacked."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import Benchmark
from benchmarks_toybox_ilab.prepare.archives import archives_in, unpack
from benchmarks_toybox_ilab.prepare.download import download, md5_of
from benchmarks_toybox_ilab.prepare.findings import describe
from benchmarks_toybox_ilab.tables.disk import readable_size
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

DOWNLOADS = ".download"  # below the root; hidden, so tables ignore it
LARGE = 10**9  # bytes; reading the file list of a larger archive may take minutes


def counts_in_words(table: FrameTable) -> str:
    """Return the numbers of classes and images of a prepared data set, in words."""
    classes = len(table.classes)
    train = table.split.count("train")
    test = table.split.count("test")
    plural = "" if classes == 1 else "es"
    return f"{classes} class{plural}, {train} training and {test} test images"


@dataclass(frozen=True)
class Inventory:
    """What a folder holds of a data set, and what it lacks.

    Attributes:
        present: Lines about what is there, the last of which says if that is all.
        missing: Lines about what is not.
    """

    present: list[str]
    missing: list[str]

    @classmethod
    def of(cls, data: Benchmark, root: Path) -> "Inventory":
        """Compare the files of a data set below a root with the whole data set."""
        try:
            table = data.prepared_table(root)
        except FrameTableError as error:
            return cls(present=[], missing=[str(error)])
        present = [f"{data.name} in {table.root}: {counts_in_words(table)}"]
        missing = data.files.missing(table)
        if not missing:
            present.append(_completeness_in_words(data.files))
        return cls(present, missing)


def _completeness_in_words(layout: Layout) -> str:
    """Say of a copy that lacks nothing which is counted that it is complete."""
    if not layout.counts_images:
        return (
            f"complete as far as is counted: {layout.counted_in_words()}; the number "
            "of images is not known"
        )
    verb = "uses" if layout.owner == Layout.owner else "has"
    return f"complete: everything that {layout.owner} {verb}"


@dataclass(frozen=True)
class Job:
    """One data set to prepare: the arguments of `core.prepare`.

    Attributes:
        data: The data set.
        root: Folder for it.
        source: The download; None uses the files in root, or downloads.
        workers: Number of threads.
        progress: Makes a progress bar; see `terminal_bar`.
        say: Called with lines that report what was done.
    """

    data: Benchmark
    root: Path
    source: Path | None
    workers: int
    progress: Callable[..., Any]
    say: Callable[[str], object]

    @property
    def in_place(self) -> bool:
        """Whether the root itself is the folder of the download."""
        return self.source is None or self.source.resolve() == self.root.resolve()

    def unpack(
        self, archive: Path, only: Callable[[str], str | None] | None = None
    ) -> None:
        """Unpack below the root what the data set needs of an archive.

        Args:
            archive: The archive.
            only: Returns where a file of the archive goes below the root, or None to
                leave it out; default `Layout.unpacked_path`.
        """
        if archive.is_file() and archive.stat().st_size >= LARGE:
            size = readable_size(archive.stat().st_size)
            self.say(f"reading the file list of {archive} ({size})")
        if only is None:
            only = self.data.files.unpacked_path
        n_written = unpack(archive, self.root, self.progress, only)
        plural = "" if n_written == 1 else "s"
        self.say(f"{archive}: {n_written} file{plural} unpacked")

    def bring(self, write: Callable[[Path], object] | None = None) -> None:
        """Bring the data set to the root: unpack archives, or download its own.

        The archives are those of the source, or else of the root. Nothing is done for a
        root that is prepared.

        Args:
            write: Called with the data set's own archive, of verified content; None
                unpacks it.

        Raises:
            FrameTableError: If there is nothing of the data set, or its own archive is
                damaged.
        """
        if self._is_prepared():
            return
        archives = self._archives_to_unpack()  # downloads the data set's own, if any
        for archive in archives:
            if write is not None and self._is_own_archive(archive):
                write(archive)
            else:
                self._check_own_archive(archive)  # raises if it is damaged
                self.unpack(archive)
            is_own_download = archive.parent.name == DOWNLOADS
            if is_own_download:
                self.say(f"{archive} is no longer needed")
        # Files in the root do not count if another source was given that has none
        # (`in_place`: the root is the source).
        has_source = bool(archives) or self.in_place
        is_found = self.data.files.find(self.root) is not None
        if not is_found or not has_source:
            raise self.nothing_found_error()

    @property
    def _name_of_own_archive(self) -> str:
        """File name of the archive that is downloaded; empty if there is none."""
        return self.data.files.url.rpartition("/")[2]

    def _is_prepared(self) -> bool:
        """Whether the root holds a user's own copy, or all that is to be unpacked."""
        if not self._name_of_own_archive or self.source is not None:
            return False
        if self.data.files.find(self.root) is None:
            return False
        downloads = (self.root / DOWNLOADS, self.root / self._name_of_own_archive)
        is_begun = any(path.exists() for path in downloads)
        if not is_begun:
            return True
        return not Inventory.of(self.data, self.root).missing

    def _archives_to_unpack(self) -> list[Path]:
        """Return the archives to unpack; download the own one if there are none."""
        archives = archives_in(self.source or self.root / self._name_of_own_archive)
        if archives or not self._name_of_own_archive or self.source is not None:
            return archives
        layout = self.data.files
        archive = self.root / DOWNLOADS / self._name_of_own_archive
        download(layout.url, archive, layout.md5, self.progress)
        return [archive]

    def _is_own_archive(self, archive: Path) -> bool:
        """Whether an archive is the data set's own by content, whatever its name."""
        self._check_own_archive(archive)
        known_md5 = self.data.files.md5
        return bool(known_md5) and md5_of(archive) == known_md5

    def _check_own_archive(self, archive: Path) -> None:
        """Raise if an archive has the name of the own one, but not its content."""
        name = self._name_of_own_archive
        known_md5 = self.data.files.md5
        if archive.name != name or not known_md5:
            return
        checksum = md5_of(archive)
        if checksum != known_md5:
            raise FrameTableError(
                f"{archive} has the MD5 checksum {checksum}, while that of {name} is "
                f"{known_md5}: it is damaged or incomplete. Download it: "
                f"{self.data.files.url}"
            )

    def nothing_found_error(self) -> FrameTableError:
        """Return the error to raise if there is nothing of the data set to start from.

        It says what is there instead.
        """
        layout = self.data.files
        source = self.source or self.root
        sentences = [
            f"{source} holds nothing of {self.data.name}.",
            describe(source, layout),
            "Download it and give the archive, or the folder of the archives: `crumb "
            f"prepare {self.data.name} --dataset-root {self.root} --source "
            "DOWNLOADED`.",
            f"Source: {layout.source}. Final layout: {layout.tree}",
        ]
        return FrameTableError(" ".join(filter(None, sentences)))

"""A learner that many may ask and teach at the same time, kept in a file."""

import asyncio
import copy
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from PIL import Image

from benchmarks_toybox_ilab.tables.image import (
    TooManyPixelsError,
    open_image,
    other_images,
    to_rgb,
)
from benchmarks_toybox_ilab.tables.names import LONGEST_NAME, check_name
from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.images.boxes import in_box
from crumb_avalanche.images.clips import Clip, Frames
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.lesson import Lesson
from crumb_avalanche.serve.messages import (
    Changed,
    Class,
    Classes,
    Forgotten,
    Found,
    Learned,
    Learning,
    Listed,
)
from crumb_avalanche.system.words import counted

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MOST_PIXELS = 64_000_000  # of an image: more than phones take, 192 MB decoded
# pixels in all scans of a JPEG, each of which costs as much as the whole image
MOST_SCANNED = 1_000_000_000
START_OF_SCAN = b"\xff\xda"
SECONDS_TO_DECODE = (
    10.0  # an image of the thread that decodes it, as the processor counts
)
MOST_WAITING = 16  # calls; each may hold an upload
Result = TypeVar("Result")


class ImageError(ValueError):
    """Bytes that are not an image of a format that is read."""


class TooLargeError(ValueError):
    """An image or an upload is above the limit."""


class BusyError(RuntimeError):
    """Too many calls are waiting."""


class SaveError(OSError):
    """A change could not be saved and was taken back."""


class SharedLearner:
    """A learner that answers from its last saved state while it learns.

    Changes run one after the other, in the order of the calls; so do answers, beside
    them. A change is saved before it has an influence on answers. If it fails, or
    cannot be saved, the learner is as it was.

    Args:
        learner: not to be used elsewhere.
        path: the learner's file, replaced after every change; the caller holds its
            lock, ``locked_file``.
        weights: whether the file holds the network's weights.

    Attributes:
        version: number of changes since the start.
        learning: the lesson that is being learned, if there is one.
    """

    def __init__(self, learner: Learner, path: Path, weights: bool = True):
        self.path, self.version = path, 0
        self.learning: Learning | None = None
        self._weights = weights
        learner.keep_pictures = True
        self._taught, self._asked = (
            learner,
            _copy(learner, copy.deepcopy(learner.network)),
        )
        self._before: Learner | None = (
            None  # the one that answered before the last change
        )
        # A network serves one image at a time: each of the two learners has its own.
        self._networks = learner.network, self._asked.network
        self._asking, self._stops = Lock(), False
        self._changes, self._answers = _Queue(), _Queue()

    @property
    def learner(self) -> Learner:
        """The learner that answers; for reading only."""
        return self._asked

    def classes(self) -> Classes:
        """Describe what was learned."""
        learner = self._asked
        return Classes(
            classes=[Class.model_validate(info) for info in learner.classes],
            bytes=learner.bytes,
            budget_bytes=learner.budget_bytes,
            lessons=len(learner.lessons),
            can_undo=bool(learner.undoable),
            nothing=learner.nothing,
            clips_missing=learner.clips_missing,
            version=self.version,
            learning=self.learning,
        )

    def lessons(self) -> list[Listed]:
        """Describe the lessons, in order."""
        lessons, undoable = self._asked.lessons, self._asked.undoable
        told = [
            {"picture": bool(one.picture), "can_undo": one.number in undoable}
            for one in lessons
        ]
        return [
            Listed.model_validate({**vars(one), **more})
            for one, more in zip(lessons, told)
        ]

    def picture(self, number: int) -> bytes:
        """Return a JPEG of a lesson; empty if there is none."""
        return next(
            (
                lesson.picture
                for lesson in self._asked.lessons
                if lesson.number == number
            ),
            b"",
        )

    async def predict(
        self, images: Sequence[tuple[str, bytes]], box: Sequence[float] | None = None
    ) -> Found:
        """Answer for an image, or for several as a clip, given as names and bytes; with a box for this part of it.

        Raises:
            NothingTaughtError: nothing was taught.
            ImageError, TooLargeError: see ``decoded``.
            BusyError: too many calls are waiting.
        """
        return await self._answers(self._predict, images, box)

    def _predict(
        self, images: Sequence[tuple[str, bytes]], box: Sequence[float] | None
    ) -> Found:
        notes: list[str] = []
        with self._asking:
            clip = Clip("the image", None, self._frames(images, notes))
            answer = self._asked.predict(
                clip if box is None else next(in_box([clip], box))
            )
        return Found(notes=notes, **answer.as_dict())

    async def teach(
        self,
        label: str | None,
        images: Sequence[tuple[str, bytes]],
        new_class: bool = False,
        source: str = "",
        box: Sequence[float] | None = None,
    ) -> Learned:
        """Learn images, given as names and bytes; one call is one lesson.

        Args:
            label: name of the class; ``None`` for images of the empty scene.
            images: names for errors, and bytes.
            new_class: see ``Learner.teach``.
            source: what the images are from, such as ``mug.mp4``; default their number.
            box: where the object is in the only image; see ``boxes_of``.

        Raises:
            ValueError: see ``Learner.teach``.
            ImageError, TooLargeError: an image cannot be read; nothing was learned.
            SaveError, BusyError: see the classes.
        """
        label = None if label is None else check_name(label)
        source = printable(source)[:LONGEST_NAME] or counted(len(images), "image")

        def teach(learner: Learner) -> Lesson:
            notes: list[str] = []
            self.learning = learning = Learning(label or "the empty scene", len(images))

            def progress(count: int) -> None:
                learning.done += count

            try:
                clip = Clip(source, label, self._frames(images, notes))
                if label is None:
                    lesson = learner.teach_nothing(clip, progress=progress)
                else:
                    lesson = learner.teach(
                        clip, box=box, progress=progress, new_class=new_class
                    )
            finally:
                self.learning = None
            return replace(lesson, notes=(*lesson.notes, *notes))

        return _learned(*await self.change(teach))

    async def forget(self, name: str) -> Forgotten:
        """Remove a class; see ``Learner.forget``."""
        remains, version = await self.change(lambda learner: learner.forget(name))
        return Forgotten(remains=remains, version=version)

    async def undo(self, lesson: int | None = None) -> Learned:
        """Take a lesson back; see ``Learner.undo``."""
        return _learned(*await self.change(lambda learner: learner.undo(lesson)))

    async def changed(self, action: Callable[[Learner], None]) -> Changed:
        """Change the learner as ``change`` does, by an action that returns nothing."""
        return Changed(version=(await self.change(action))[1])

    def _frames(self, images: Iterable[tuple[str, bytes]], notes: list[str]) -> Frames:
        """Decode images one at a time; add to ``notes`` what of them is not used."""
        for name, data in images:
            self._goes_on()
            image, others = decoded(name, data)
            notes.extend(others)
            yield name, image

    async def revert(self, version: int) -> Changed:
        """Take the last change back, whatever it was; taken back itself, it is done again.

        Raises:
            ValueError: the last change is not the one that made this version.
            SaveError, BusyError: see the classes.
        """

        def revert(_: Learner) -> None:
            if self._before is None or version != self.version:
                raise ValueError(
                    "this cannot be taken back: something else was changed meanwhile"
                )
            self._taught = _copy(self._before, self._networks[0])

        return await self.changed(revert)

    async def change(self, action: Callable[[Learner], Result]) -> tuple[Result, int]:
        """Change the learner and save it; return what the action returns, and the version of the learner.

        Raises:
            SaveError: the file cannot be written; the learner is as it was.
            BusyError: too many calls are waiting, or the server stops.
        """
        try:
            return await self._changes(self._change, action)
        except asyncio.CancelledError:
            self._stops = True
            self._goes_on()
            raise

    def _goes_on(self) -> None:
        """Raise BusyError if the server stops."""
        if self._stops:
            raise BusyError("the server stops; nothing was changed")

    def _change(self, action: Callable[[Learner], Result]) -> tuple[Result, int]:
        try:
            result = action(self._taught)
            if self._taught.classes:
                self._taught.predict(
                    Image.new("RGB", (8, 8))
                )  # solves the statistics here, not in the next answer
            self._goes_on()
            try:
                self._taught.save(self.path, self._weights, pictures=True, locked=True)
            except OSError as error:
                raise SaveError(
                    f"{self.path} cannot be written ({error.strerror or error}); nothing was changed"
                ) from error
        except BaseException:
            with self._asking:
                self._taught = _copy(self._asked, self._networks[0])
            raise
        asked = _copy(self._taught, self._networks[1])
        with self._asking:
            self._before, self._asked = self._asked, asked
            self.version += 1
        return result, self.version

    async def copied(self) -> bytes:
        """Return the bytes of a file of the learner that answers, without the pictures of its lessons.

        Raises:
            OSError: there is no room for a temporary file.
            BusyError: too many calls are waiting.
        """
        return await self._answers(self._copied)

    def _copied(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder, self._asking:
            path = Path(folder) / self.path.name
            self._asked.save(path, self._weights)
            self._asked._files.forget(path)  # the folder goes; copies share the table
            return path.read_bytes()

    def close(self) -> None:
        """Break off the change that is under way, and drop those that wait; neither is saved."""
        self._stops = True
        self._changes.close()
        self._answers.close()


class _Queue:
    """A thread that calls functions one after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._waiting = 0

    async def __call__(
        self, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        if self._waiting >= MOST_WAITING:
            raise BusyError(
                f"{self._waiting} requests are waiting; try again in some seconds"
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, function, *arguments
            )
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def _learned(lesson: Lesson, version: int) -> Learned:
    return Learned.model_validate({**vars(lesson), "version": version})


def _copy(learner: Learner, network: Any) -> Learner:
    """Copy a learner with another copy of its network, and what it knows of its file, which is the same for all."""
    return copy.deepcopy(
        learner, {id(learner.network): network, id(learner._files): learner._files}
    )


class _Watched(io.BytesIO):
    """Bytes of an image, which cannot be read on once its decoding took `SECONDS_TO_DECODE` of this thread."""

    def __init__(self, data: bytes):
        super().__init__(data)
        self._end = time.thread_time() + SECONDS_TO_DECODE

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as any file."""
        if time.thread_time() > self._end:
            raise TooManyPixelsError(
                f"it takes more than {SECONDS_TO_DECODE:g} s to decode; reduce it"
            )
        return super().read(size)


def decoded(name: str, data: bytes) -> tuple[Image.Image, list[str]]:
    """Decode an image to RGB, rotated as its EXIF orientation says, and say what of it is not used.

    Args:
        name: for errors.
        data: the bytes of its file.

    Raises:
        ImageError: it is not an image of ``FORMATS``, or is damaged.
        TooLargeError: it has more than ``MOST_PIXELS`` pixels, or would take too long
            to decode.
    """
    wrong = f"{len(data):,} bytes that are not an image of these formats: {', '.join(FORMATS)}"
    try:
        image = open_image(_Watched(data), MOST_PIXELS, formats=FORMATS)
        if data.count(
            START_OF_SCAN
        ) * image.width * image.height > MOST_SCANNED and image.format in (
            "JPEG",
            "MPO",
        ):
            raise TooManyPixelsError(
                "it is a JPEG of too many scans; save it again as a usual one"
            )
        wrong = "it is damaged; send it again, or another one"
        others = other_images(image)
        return to_rgb(image, upright=True), [f"{name}: {others}"] if others else []
    except TooManyPixelsError as error:
        raise TooLargeError(f"{name}: {error}") from error
    except Exception as error:  # Pillow raises far more than OSError on damaged bytes
        reason = str(error) if type(error) is ValueError else wrong  # ours says why
        raise ImageError(f"{name}: {reason}") from error

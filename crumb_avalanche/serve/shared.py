"""A learner that many may ask and teach at the same time, kept in a file."""

import asyncio
import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

from PIL import Image

from benchmarks_toybox_ilab.tables.names import LONGEST_NAME, check_name
from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.images.boxes import in_box
from crumb_avalanche.images.clips import Clip, Frames
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.lesson_record import Lesson
from crumb_avalanche.learner.network import Network, are_same
from crumb_avalanche.learner.prediction import RUNNERS_UP
from crumb_avalanche.methods.run_header import LearnerError
from crumb_avalanche.serve.disk import SaveError, temporary_folder
from crumb_avalanche.serve.messages import (
    ChangeResult,
    Class,
    Classes,
    ErrorRates,
    ForgetResult,
    Learning,
    LessonEntry,
    LessonResult,
    PredictionResult,
)
from crumb_avalanche.serve.uploads import decoded
from crumb_avalanche.system.words import counted

MOST_WAITING = 16  # calls; each may hold an upload
Result = TypeVar("Result")
NamedImages = Sequence[tuple[str, bytes]]  # names for errors, and bytes of files
Box = Sequence[float] | None  # left, top, right, bottom in pixels


class BusyError(RuntimeError):
    """Too many calls are waiting."""


@dataclass(frozen=True)
class Change(Generic[Result]):
    """A change that was made and saved.

    Attributes:
        result: what it returned.
        version: of the learner, with this change.
    """

    result: Result
    version: int


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
        pictures: whether the file holds a picture of each lesson.

    Attributes:
        version: number of changes since the start.
        learning: the lesson that is being learned, if there is one.
    """

    def __init__(
        self,
        learner: Learner,
        path: Path,
        weights: bool = True,
        pictures: bool = True,
    ):
        self.path = path
        self.version = 0
        self.learning: Learning | None = None
        self._weights = weights
        learner.keep_pictures = pictures
        # One learner is changed; the other answers, and is replaced by a copy of the
        # first once that is saved. A network serves one image at a time, so each has
        # its own.
        self._working_network = learner.network
        self._answering_network = copy.deepcopy(learner.network)
        self._working = learner
        self._answering = _copy_learner(learner, self._answering_network)
        # The learner that answered before the last change, for ``revert``.
        self._previous: Learner | None = None
        self._answer_lock = Lock()
        self._stops = False
        self._change_queue = _CallQueue()
        self._answer_queue = _CallQueue()
        self._export_queue = _CallQueue()

    @property
    def learner(self) -> Learner:
        """The learner that answers; for reading only."""
        return self._answering

    def classes(self) -> Classes:
        """Describe what was learned: classes, bytes, lessons, and the version of it."""
        learner = self._answering  # the last saved state
        return Classes(
            classes=[Class.model_validate(info) for info in learner.classes],
            bytes=learner.bytes,
            budget_bytes=learner.budget_bytes,
            lessons=len(learner.lessons),
            can_undo=bool(learner.undoable),
            nothing=learner.nothing,
            strict=learner.strict,
            missing_clips=learner.missing_clips,
            rates=_error_rates(learner),
            version=self.version,
            learning=self.learning,
        )

    def lessons(self) -> list[LessonEntry]:
        """Describe the lessons, in order."""
        answering = self._answering
        undoable = answering.undoable
        return [_lesson_of_list(lesson, undoable) for lesson in answering.lessons]

    def picture(self, number: int) -> bytes:
        """Return a JPEG of a lesson; empty if there is none."""
        for lesson in self._answering.lessons:
            if lesson.number == number:
                return lesson.picture
        return b""

    async def predict(
        self, images: NamedImages, box: Box = None, all_classes: bool = False
    ) -> PredictionResult:
        """Answer for an image, or for several as a clip.

        Args:
            images: of one clip.
            box: the part of the only image that is looked at.
            all_classes: whether all other classes are runners-up, not four alone.

        Raises:
            NothingTaughtError: nothing was taught.
            ImageError: an image cannot be read.
            TooLargeError: an image has too many pixels.
            BusyError: too many calls are waiting.
        """
        # `_predict` runs in the thread of answers, after those that wait.
        return await self._answer_queue(self._predict, images, box, all_classes)

    def _predict(
        self, images: NamedImages, box: Box, all_classes: bool
    ) -> PredictionResult:
        """Answer in the thread of answers; see ``predict``."""
        notes: list[str] = []
        with self._answer_lock:
            clip = Clip("the image", None, self._frames(images, notes))
            if box is not None:
                clip = next(in_box([clip], box))
            runners_up = RUNNERS_UP
            if all_classes:
                runners_up = len(self._answering.classes)
            (answer,) = self._answering.predict_all(clip, runners_up=runners_up)
        return PredictionResult(notes=notes, **answer.as_dict())

    async def teach(
        self,
        label: str | None,
        images: NamedImages,
        new_class: bool = False,
        source: str = "",
        box: Box = None,
    ) -> LessonResult:
        """Learn images; one call is one lesson.

        Args:
            label: name of the class; ``None`` for images of the empty scene.
            images: of one clip.
            new_class: take the label also if it is nearly the name of another class.
            source: what the images are from, such as ``mug.mp4``; default their number.
            box: where the object is in the only image: left, top, right, bottom.

        Raises:
            ValueError: the label is no name of a class, or nearly that of another one.
            ImageError, TooLargeError: an image cannot be read; nothing was learned.
            SaveError: the learner cannot be saved; nothing was learned.
            BusyError: too many calls are waiting.
        """
        if label is not None:
            label = check_name(label)
        source = printable(source)[:LONGEST_NAME] or counted(len(images), "image")

        def learn_images(learner: Learner) -> Lesson:
            """Learn the images as one lesson.

            Meanwhile ``self.learning`` shows how many are done.
            """
            notes: list[str] = []  # what of the images is not used
            learning = Learning(label or "the empty scene", len(images))
            self.learning = learning

            def count_done(n_images: int) -> None:
                learning.done += n_images

            try:
                clip = Clip(source, label, self._frames(images, notes))
                if label is None:
                    lesson = learner.teach_nothing(clip, progress=count_done)
                else:
                    lesson = learner.teach(
                        clip, box=box, progress=count_done, new_class=new_class
                    )
            finally:
                self.learning = None
            return replace(lesson, notes=(*lesson.notes, *notes))

        return _lesson_of_change(await self.change(learn_images))

    async def forget(self, name: str) -> ForgetResult:
        """Remove a class; see ``Learner.forget``."""
        change = await self.change(lambda learner: learner.forget(name))
        return ForgetResult(remains=change.result, version=change.version)

    async def undo(self, lesson: int | None = None) -> LessonResult:
        """Take a lesson back, the last one by default; see ``Learner.undo``."""
        change = await self.change(lambda learner: learner.undo(lesson))
        return _lesson_of_change(change)

    async def remove_image(
        self, lesson: int, image: int, version: int | None = None
    ) -> ChangeResult:
        """Remove one image of a lesson; see ``Learner.remove_image``.

        Args:
            lesson: its number.
            image: its number in the lesson, from 0; those after it then count one less.
            version: number of changes that the caller knows of; default any.

        Raises:
            ValueError: there is no such image, or something was changed since that
                version.
            SaveError: the learner cannot be saved; nothing was changed.
            BusyError: too many calls are waiting.
        """

        def remove(learner: Learner) -> None:
            """Remove the image, unless its number may be that of another one now."""
            if version not in (None, self.version):
                raise ValueError(
                    f"version is {version}, but something else was changed meanwhile, "
                    "and the image may have another number; read GET /classes and "
                    "GET /lessons again"
                )
            learner.remove_image(lesson, image)

        return await self.changed(remove)

    async def changed(self, action: Callable[[Learner], None]) -> ChangeResult:
        """Change the learner as ``change`` does, by an action that returns nothing."""
        change = await self.change(action)
        return ChangeResult(version=change.version)

    def _frames(self, images: NamedImages, notes: list[str]) -> Frames:
        """Yield the decoded images of a request, one at a time, with their names.

        Adds to ``notes`` what of them is not used.

        Raises:
            BusyError: the server stops.
            ImageError, TooLargeError: see ``decoded``.
        """
        for name, data in images:
            self._check_running()
            image, unused = decoded(name, data)
            notes.extend(unused)
            yield name, image

    async def revert(self, version: int) -> ChangeResult:
        """Take the last change back, whatever it was.

        Taken back itself, it is done again.

        Args:
            version: number of changes that the caller knows of; the last one is that.

        Raises:
            ValueError: the last change is not the one that made this version.
            SaveError: the learner cannot be saved; nothing was changed.
            BusyError: too many calls are waiting.
        """

        def put_back(_: Learner) -> None:
            """Teach on with the learner that answered before the last change."""
            if self._previous is None or version != self.version:
                raise ValueError(
                    "this cannot be taken back: something else was changed meanwhile"
                )
            self._working = _copy_learner(self._previous, self._working_network)

        return await self.changed(put_back)

    async def change(self, action: Callable[[Learner], Result]) -> Change[Result]:
        """Change the learner by an action and save it.

        Raises:
            SaveError: the file cannot be written; the learner is as it was.
            BusyError: too many calls are waiting, or the server stops.
        """
        try:
            return await self._change_queue(self._change, action)
        except asyncio.CancelledError:
            self._stops = True
            self._check_running()
            raise

    def _check_running(self) -> None:
        """Raise BusyError if the server stops."""
        if self._stops:
            raise BusyError("the server stops; nothing was changed")

    def _change(self, action: Callable[[Learner], Result]) -> Change[Result]:
        """Change the learner that is taught; let it answer once it is saved.

        Runs in the thread of changes. ``_working`` is the learner that is changed,
        ``_answering`` its copy that answers meanwhile, and ``_previous`` the copy that
        answered before, for ``revert``. If the change fails, all are as they were.

        Args:
            action: changes the learner, and returns a result.

        Returns:
            The result, and the number of changes since the start.
        """
        try:
            result = action(self._working)
            if self._working.classes:
                # Solves the statistics here, not in the next answer.
                self._working.predict(Image.new("RGB", (8, 8)))
            answering = _copy_learner(self._working, self._answering_network)
            self._check_running()  # raises after ``close``
            self._save()
        except BaseException:
            with self._answer_lock:
                self._working = _copy_learner(self._answering, self._working_network)
            raise
        with self._answer_lock:
            self._previous = self._answering
            self._answering = answering
            self.version += 1
        return Change(result, self.version)

    def _save(self) -> None:
        """Save the learner that is taught.

        Raises:
            SaveError: its file cannot be written, or a value in it is out of range.
        """
        try:
            self._working.save(self.path, self._weights, pictures=True, locked=True)
        except LearnerError as error:
            raise SaveError(f"{error}; nothing was changed") from error
        except OSError as error:
            reason = error.strerror or error
            raise SaveError(
                f"{self.path} cannot be written ({reason}); nothing was changed"
            ) from error

    async def open(self, path: Path) -> ChangeResult:
        """Put the learner of a file in the place of this one; ``revert`` undoes it.

        Args:
            path: a file that a request sent, with the same network.

        Raises:
            LearnerError: the file is no valid learner, or can be asked alone.
            ValueError: its network is another one.
            SaveError: the learner cannot be saved; nothing was changed.
            BusyError: too many calls are waiting.
        """

        def take_over(learner: Learner) -> None:
            """Put what the file holds in the place of what the learner knows.

            The network, which is the same, stays loaded.
            """
            opened = _sent_learner(path)
            opened.check_teachable()  # raises if it can only be asked
            if not are_same(opened.network, learner.network):
                raise ValueError(
                    f"the file is of a learner with {opened.network.backbone}, "
                    f"{opened.network.header()['source']}, and this one has "
                    f"{learner.network.backbone}, {learner.network.source}: end crumb "
                    "serve, and start it with that file"
                )
            self._working = _copy_learner(learner, self._working_network)
            self._working.take_over(opened)

        return await self.changed(take_over)

    async def exported(self) -> bytes:
        """Return the bytes of an ONNX file of the learner that answers.

        Raises:
            ImportError: onnx or onnxruntime is not installed.
            ExportError: see ``export_onnx``.
            BusyError: too many calls are waiting.
        """
        return await self._export_queue(self._onnx_bytes)

    def _onnx_bytes(self) -> bytes:
        """Return the bytes of an ONNX file, in the thread of exports.

        The learner is asked meanwhile; it is copied between two answers.
        """
        from crumb_avalanche.learner.export import export_onnx

        with self._answer_lock:
            learner = self._answering
            private_copy = _copy_learner(learner, copy.deepcopy(learner.network))
        with temporary_folder() as folder:
            path = folder / "learner.onnx"
            export_onnx(private_copy, path)
            return path.read_bytes()

    async def copied(self) -> bytes:
        """Return the bytes of a file of the learner that answers.

        The pictures of its lessons are left out: a copy is for others.

        Raises:
            SaveError: there is no room for a temporary file.
            BusyError: too many calls are waiting.
        """
        return await self._answer_queue(self._file_bytes)

    def _file_bytes(self) -> bytes:
        """Return the bytes of a learner's file, in the thread of answers."""
        with temporary_folder() as folder, self._answer_lock:
            path = folder / self.path.name
            self._answering.save(path, self._weights)
            # Copies share the table of files, and the folder goes.
            self._answering._files.forget(path)
            return path.read_bytes()

    def close(self) -> None:
        """Break off the change that is under way, and drop those that wait.

        Neither is saved.
        """
        self._stops = True
        self._change_queue.close()
        self._answer_queue.close()
        self._export_queue.close()


def _sent_learner(path: Path) -> Learner:
    """Load a learner from the temporary file of what a request sent.

    Raises:
        LearnerError: it is no valid learner; does not name the temporary file.
    """
    try:
        return Learner.load(path, network=False)
    except LearnerError as error:
        problem, _, _ = str(error).partition("; ")  # behind it is advice for a file
        problem = problem.replace(str(path), "the body")
        raise LearnerError(
            f"{problem}; send a file that crumb teach, Learner.save or GET /download "
            "wrote"
        ) from error


class _CallQueue:
    """A thread that calls functions one after the other, in the order of the calls."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._n_calls = 0  # that run or wait

    async def __call__(
        self, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Return what a function returns in the thread; BusyError if many wait."""
        if self._n_calls >= MOST_WAITING:
            raise BusyError(
                f"{self._n_calls} requests are waiting; try again in some seconds"
            )
        self._n_calls += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, function, *arguments
            )
        finally:
            self._n_calls -= 1

    def close(self) -> None:
        """Drop the calls that wait, and wait for the one that runs."""
        self._thread.shutdown(cancel_futures=True)


def _error_rates(learner: Learner) -> ErrorRates | None:
    """Return how often a learner errs about what it knows; see ``Classifier.rates``."""
    if learner.rates is None:
        return None
    return ErrorRates(**learner.rates._asdict())


def _lesson_of_list(lesson: Lesson, undoable: Sequence[int]) -> LessonEntry:
    """Describe a lesson for the list.

    ``undoable`` has the numbers of the lessons that can be taken back.
    """
    values = vars(lesson) | {
        "picture": bool(lesson.picture),
        "can_undo": lesson.number in undoable,
    }
    return LessonEntry.model_validate(values)


def _lesson_of_change(change: Change[Lesson]) -> LessonResult:
    """Describe the lesson that a change learned or took back."""
    return LessonResult.model_validate(
        {**vars(change.result), "version": change.version}
    )


def _copy_learner(learner: Learner, network: Network) -> Learner:
    """Copy a learner, with ``network`` in the place of a copy of its network.

    What it knows of its file is the same for all.
    """
    shared = {id(learner.network): network, id(learner._files): learner._files}
    return copy.deepcopy(learner, shared)

"""A learner that is taught by showing, asked about photos, and kept in one file."""

import contextlib
import copy
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import crumb_avalanche
from benchmarks_toybox_ilab.tables.names import check_name, check_near
from crumb_avalanche.images.boxes import in_box
from crumb_avalanche.images.clips import (
    BadImage,
    Clip,
    OnBad,
    check_class_folders,
    checked,
    label_of,
    path_of,
)
from crumb_avalanche.images.looks import Looks
from crumb_avalanche.images.sources import clips_of
from crumb_avalanche.learner.classifier import CLOSED_FORMS, Classifier, form_of
from crumb_avalanche.learner.file import ReplacedError, read_learner, write_learner
from crumb_avalanche.learner.history import MOST_KEPT, History, Kept, renamed
from crumb_avalanche.learner.lesson import (
    Lesson,
    Strip,
    check_apart,
    check_not_empty,
    learn,
    name_of,
)
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.nothing import NOTHING
from crumb_avalanche.learner.predictor import Predictor
from crumb_avalanche.learner.run_file import DAMAGED, LearnerError, RunAnswers
from crumb_avalanche.models.backbone_names import default_backbone
from crumb_avalanche.system.tensor_file import digest_of

LOOKS = (0.6,)  # see ``Learner``


class Learner(Predictor):
    """Learns to recognise what it is shown, class by class, and answers for new images.

    Classes and images may come in any number of lessons and in any order. Images are
    not kept. Calls from several threads are safe and run one after the other.

    ::

        learner = Learner()
        learner.teach("clips/mug", "mug")
        learner.teach("clips/shoe", "shoe")
        answer = learner.predict("photo.jpg")
        learner.save("mine.safetensors")

    Args:
        method: ``recommended`` (``rda``), or another closed form: ``slda``, ``ncm``,
            ``ranpac``, or any that is registered.
        backbone: a name in ``BACKBONES``, or ``timm:NAME``; default
            ``efficientnet_lite0`` if the extra ``weights`` is installed and no other
            weights are given, else ``squeezenet1_0``.
        weights: ``"torchvision"`` or ``"timm"`` downloads the weights that the
            network's library publishes; or a weight file.
        image_size: side in pixels to which images are resized; default 224, or that of
            a network of timm.
        budget_bytes: most bytes of what is learned; default the size of the network. If
            it is full, ``teach`` says what gives way.
        cut_layer: where the network is cut, if not at the usual layer; see
            ``split_backbone``.
        looks: middle parts of an image that are looked at, in units of its sides; see
            ``Looks``. An image takes as much time as there are looks. How much each
            counts is learned along the stream. One of 0.6 finds an object in the middle
            of a scene, also a small one. ``(1.0,)`` weights all of the image alike, as
            ``crumb run`` does.

    Raises:
        ImportError: a network of timm is asked for, and timm is not installed.
        ValueError: method or backbone is unknown, or the cut is none of the network.
        WeightsError: the weights cannot be fetched or read, or are another network's.

    Attributes:
        keep_pictures: whether lessons from now on keep a small picture of what was
            shown; false at first.
        budget_bytes: see above.
        note: what a person who reads its answers should know; empty for a learner that
            was taught.
    """

    def __init__(
        self,
        method: str = "recommended",
        backbone: str | None = None,
        weights: str | os.PathLike | None = "torchvision",
        image_size: int | None = None,
        budget_bytes: int | None = None,
        cut_layer: int | str | None = None,
        looks: Sequence[float] = LOOKS,
    ):
        method = CLOSED_FORMS[0] if method == "recommended" else method
        if form_of(method) is None:
            raise ValueError(
                f"method is {method!r}; known are recommended, {', '.join(CLOSED_FORMS)}"
            )
        network = FrozenNetwork.build(
            backbone or default_backbone(weights), weights, image_size, cut_layer
        )
        self._set_up(method, network, budget_bytes, None, looks)

    def _set_up(
        self,
        method: str,
        network: FrozenNetwork,
        budget_bytes: int | None,
        moments: dict[str, Any] | None = None,
        looks: Sequence[float] = (1.0,),
    ) -> None:
        """Begin without classes; ``moments`` are arguments of ``FeatureMoments``."""
        self.budget_bytes = network.bytes if budget_bytes is None else budget_bytes
        views = Looks(tuple(looks))
        classifier = Classifier.of_model(
            method, network.model, self.budget_bytes, moments, views
        )
        super().__init__(method, network, classifier)
        self.keep_pictures = False
        self._history = History(min(4 * self.budget_bytes, MOST_KEPT))
        self._files: dict[
            str, str | None
        ] = {}  # the checksum of each file that it was loaded from or saved to

    def teach(
        self,
        source: Any,
        label: str | None = None,
        *,
        box: Any = None,
        on_bad: OnBad = "raise",
        progress: Callable[[int], None] | None = None,
        new_class: bool = False,
    ) -> Lesson:
        """Learn the images of a source; one call is one lesson.

        Args:
            source: path of an image, folder or video; glob pattern; PIL image; ``(H, W,
                C)`` or ``(N, H, W, C)`` array; ``(C, H, W)`` or ``(N, C, H, W)``
                tensor, of 3 channels or 4 with alpha, uint8, uint16 or floating-point
                from 0 to 1; or a list of these, whose single images are the frames of
                one clip (several clips: a list of lists, or a call each). Without
                ``label`` a folder of class folders (``class/...``).
            label: name of the class shown; a new one, or one that was taught before.
            box: where the object is in the image, or a box for each of several images;
                see ``boxes_of``. The scene around it is cut off, but for a margin.
            on_bad: ``raise`` for an error at a file that cannot be read or whose
                features are not finite, ``skip`` to leave it out and list it.
            progress: called with the number of images after each batch.
            new_class: take names as they are given, also if one is nearly that of
                another class (``cup`` and ``Cup``) or class folders look like splits
                (``train``, ``test``).

        Returns:
            What was learned.

        Raises:
            BadFrameError: a file cannot be decoded, and ``on_bad`` is ``raise``.
            DoubtfulNameError: a name is probably not meant as a new class, and
                ``new_class`` is false.
            FileNotFoundError: the path does not exist.
            ImportError: there is a video, and PyAV is not installed.
            LearnerError: see ``check_teachable``.
            TypeError: the source is none of the above.
            ValueError: there is nothing to learn, a name is not allowed, an array has
                another shape or other values, a box is none of the images, or a class
                more does not fit into the budget. After any error, the learner is as it
                was.
        """
        self.check_teachable()

        def read(report: Callable[[BadImage], object]) -> Iterator[tuple[str, Clip]]:
            clips = clips_of(source, label, on_bad=on_bad, report=report)
            clips = clips if box is None else in_box(clips, box)
            clips = clips if new_class else checked(clips, self._classifier.names)
            return ((label_of(clip), clip) for clip in clips)

        with self._lock:
            if not new_class:
                check_class_folders(source if label is None else None, self._names)
                check_near([] if label is None else [check_name(label)], self._names)
            return self._learned(source, read, on_bad, progress)

    def teach_nothing(
        self,
        source: Any,
        *,
        on_bad: OnBad = "raise",
        progress: Callable[[int], None] | None = None,
    ) -> Lesson:
        """Show the empty scene, without any object: the learner calls it unknown from then on, and never by a name.

        What surrounds objects again and again speaks for them; what is shown here does
        so no more. For methods ``recommended`` and ``slda``.

        Args:
            source, on_bad, progress: as for ``teach``; of folders all images are taken.

        Returns:
            The lesson; ``nothing`` is the number of images.

        Raises:
            ValueError: the method is another one. Else see ``teach``. After any error,
                the learner is as it was.
        """
        self.check_teachable()

        def read(report: Callable[[BadImage], object]) -> Iterator[tuple[str, Clip]]:
            return (
                (NOTHING, clip)
                for clip in clips_of(source, "nothing", on_bad=on_bad, report=report)
            )

        return self._learned(source, read, on_bad, progress)

    def _learned(
        self,
        source: Any,
        read: Callable[[Callable[[BadImage], object]], Iterator[tuple[str, Clip]]],
        on_bad: OnBad,
        progress: Callable[[int], None] | None,
    ) -> Lesson:
        """Learn the names and clips that ``read`` yields as one lesson, and add it to the history."""
        unread: list[BadImage] = []
        with self._lock, self._restored_after_errors() as before:
            self._take_fastest_runtime()
            strip, kept, named = Strip(), Kept(self._history.room), read(unread.append)
            if self.keep_pictures:
                named = (
                    (name, replace(clip, frames=strip.noting(clip.frames)))
                    for name, clip in named
                )
            compute = partial(
                self._values, report=unread.append if on_bad == "skip" else None
            )
            clips = ((name, compute(clip)) for name, clip in named)
            lesson = learn(self._classifier, clips, unread, progress, kept.add)
            check_not_empty(lesson)
            told = {
                "number": self._history.next_number,
                "source": name_of(source),
                "runtime": str(self.runtime),
            }
            lesson = replace(
                lesson, picture=strip.jpeg(), id=secrets.randbits(63), **told
            )  # type: ignore[arg-type]
            self._history = self._history.and_lesson(lesson, before, kept)
            return lesson

    @contextlib.contextmanager
    def _restored_after_errors(self) -> Iterator[Classifier]:
        """Yield a copy of what was learned so far, which takes its place again if there is an error."""
        self._classifier.draw_nothing(
            self.network.model
        )  # also for what the lesson is taken back to
        before = copy.deepcopy(self._classifier)
        try:
            yield before
        except BaseException:
            self._classifier = before
            raise

    @property
    def nothing(self) -> int:
        """Number of images that were shown as nothing."""
        return sum(lesson.nothing for lesson in self.lessons)

    @property
    def lessons(self) -> list[Lesson]:
        """What each call of ``teach`` did, in order, without the lessons that were taken back."""
        return list(self._history.lessons)

    @property
    def undoable(self) -> list[int]:
        """Numbers of the lessons that ``undo`` takes back, which are the last ones."""
        return self._history.undoable

    def rename(self, old: str, new: str, new_class: bool = False) -> None:
        """Give a class another name.

        Raises:
            ValueError: there is no class ``old``, or ``new`` is taken, not allowed as a
                name, or, unless ``new_class``, nearly the name of another class.
        """
        self.check_teachable()
        new = check_name(new)
        with self._lock:
            if not new_class:
                check_near([new], [name for name in self._names if name != old])
            self._classifier.rename(old, new)
            self._history.rename(old, new)

    def forget(self, name: str) -> str:
        """Remove class ``name`` with all that is stored of it alone, also from what ``undo`` restores, for good.

        Returns:
            What remains of its images in statistics that classes share; empty if
            nothing does.

        Raises:
            ValueError: there is no class of this name.
        """
        self.check_teachable()
        with self._lock:
            self._classifier.forget(name)
            self._history.forget(name)
            return self._classifier.statistics.remains_after_forget

    def undo(self, lesson: int | None = None) -> Lesson:
        """Take a lesson back and return it: from then on the learner answers as one that never had it.

        The features of the last lessons are kept for this, as many as fit into four
        times ``budget_bytes``, at most 16 MB, and learned again without the one taken
        back. None that was merged can be taken back. See ``undoable``.

        Args:
            lesson: its number; default the last one.

        Raises:
            ValueError: there is no such lesson, or it can no longer be taken back.
        """
        self.check_teachable()
        with self._lock:
            self._history, self._classifier, taken = self._history.with_other(
                lesson, lambda *kept: None
            )
            return taken

    def move(
        self, old: str, new: str, lesson: int | None = None, new_class: bool = False
    ) -> None:
        """Make the images of a class those of another one, for a lesson or a class that was given a wrong name.

        Args:
            old: name of the class that the images were given as.
            new: name of the class that they show, which may be new.
            lesson: number of the only lesson whose images are meant, which is learned
                again; default all.
            new_class: take ``new`` as it is given, also if it is nearly the name of
                another class.

        Raises:
            ValueError: there is no class ``old`` or no such lesson, or it has none of
                its images or can no longer be taken back; or ``new`` is ``old``, not
                allowed, or, unless ``new_class``, nearly another name.
        """
        self.check_teachable()
        new = check_name(new)
        with self._lock:
            self._classifier.find(old)
            if new == old:
                raise ValueError(
                    f"the images are those of {old} already; give the name of another class"
                )
            if not new_class:
                check_near([new], [name for name in self._names if name != old])
            if lesson is not None:
                changed = partial(renamed, old=old, new=new)
                self._history, self._classifier, _ = self._history.with_other(
                    lesson, changed
                )
                return
            with self._restored_after_errors():
                (
                    self._classifier.move
                    if new in self._names
                    else self._classifier.rename
                )(old, new)
            self._history.rename(old, new)

    def merge(self, other: "Learner", new_class: bool = False) -> None:
        """Add what another learner learned, as if this one had been taught its lessons as well.

        Args:
            other: a learner with the same method, network and image size; it is not
                changed.
            new_class: keep classes apart also if their names are nearly the same;
                classes of the same name are one.

        Raises:
            TypeError: the other is no learner.
            DoubtfulNameError: a class of the other has nearly the name of one of this,
                and ``new_class`` is false.
            ValueError: the other is this one or holds one of its lessons, or has
                another method, network or image size; or the classes of both do not fit
                into the budget.
        """
        if not isinstance(other, Learner):
            raise TypeError(
                f"other is {type(other).__name__}; give a Learner, such as Learner.load(path)"
            )
        with self._lock:
            self.check_teachable()
            other.check_teachable()
            if other is self:
                raise ValueError(
                    "a learner cannot be merged with itself; give two that were taught apart"
                )
            self.network.check_same(other.network)
            self._classifier.check_mergeable(other._classifier)
            check_apart(self.lessons, other.lessons)
            if not new_class:
                check_near(other._names, self._names)
            with self._restored_after_errors():
                self._classifier.merge(other._classifier)
            self._history = self._history.and_merged(other.lessons)

    # Keeping

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all that was learned, as plain values and tensors, without the network."""
        with self._lock:
            return copy.deepcopy(self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "budget_bytes": self.budget_bytes,
            "features": self.features,
            "looks": list(self.looks),
            "lessons": [lesson.state_dict() for lesson in self.lessons],
            "history": self._history.state_dict(),
            "pictures": [lesson.picture_state() for lesson in self.lessons],
            **self._classifier.state_dict(),
        }

    def save(
        self, path: str | os.PathLike, weights: bool = True, pictures: bool = False
    ) -> None:
        """Write the learner to a file, atomically; see ``learner.file``.

        Args:
            path: the file; an existing one is replaced.
            weights: whether the file holds the network's weights, so that it answers
                where they cannot be had.
            pictures: whether the file holds the pictures of lessons, see
                ``keep_pictures``.

        Raises:
            LearnerError: see ``check_teachable``.
            OSError: the file cannot be written; an existing one is unchanged.
            ReplacedError: another program replaced it since this learner was loaded
                from it or saved to it.
        """
        self.check_teachable()
        path = path_of(path)
        real = os.path.realpath(path)
        with self._lock:
            if (
                real in self._files
                and os.path.exists(path)
                and digest_of(path) != self._files[real]
            ):
                raise ReplacedError(
                    f"{path} was replaced by another program since this learner was loaded from it or saved to it, so "
                    "it stays as it is: load it and repeat the change, save to another path, or move it away"
                )
            state = self._state()
            state["pictures"] = [
                picture if pictures else None for picture in state["pictures"]
            ]
            self._files[real] = write_learner(path, self.network, state, weights)

    def push_to_hub(self, name: str, **how: Any) -> str:
        """Publish on a model hub; ``name`` and ``how`` are described at ``crumb_avalanche.push_to_hub``."""
        return crumb_avalanche.push_to_hub(self, name, **how)

    @classmethod
    def from_pretrained(cls, name: str, **how: Any) -> "Learner":
        """Fetch from a model hub; ``name`` and ``how`` are described at ``crumb_avalanche.from_pretrained``."""
        return crumb_avalanche.from_pretrained(name, **how)

    @classmethod
    def load(
        cls, path: str | os.PathLike, weights: str | os.PathLike | None = None
    ) -> "Learner":
        """Load a learner from a file, or from the folder of a finished run.

        What a run of another method than a closed form learned can be asked alone: it
        answers as the run's evaluation did, with ``Answer.known`` ``None`` and a
        confidence that is not calibrated.

        Args:
            path: a file that ``save`` or ``crumb run`` wrote.
            weights: the weight file, or ``"torchvision"``, for a file without weights.

        Raises:
            LearnerError: the file is absent, damaged, of a newer version, or needs
                weights.
        """
        path = path_of(path)
        digest = digest_of(path)
        found = read_learner(path, weights)
        learner = cls.__new__(cls)
        if isinstance(found, RunAnswers):
            Predictor.__init__(learner, found.header.strategy, found.network, found)
            learner.budget_bytes, learner._history = 0, History(0)
            return learner
        network, state = found
        lessons = [
            Lesson.of_state(*pair)
            for pair in zip(state["lessons"], state["pictures"], strict=True)
        ]
        try:
            learner._set_up(
                state["method"],
                network,
                state["budget_bytes"],
                state["features"],
                state["looks"],
            )
            empty = copy.deepcopy(learner._classifier)
            learner._classifier.load_state_dict(state)
            learner._history = History.of_state(
                learner._history.room, lessons, state["history"], empty
            )
        except (RuntimeError, ValueError) as error:
            raise LearnerError(
                f"{path} {DAMAGED} ({str(error).splitlines()[0]})"
            ) from error
        learner._files[os.path.realpath(path)] = digest
        return learner

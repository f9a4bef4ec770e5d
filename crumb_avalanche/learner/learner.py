"""A learner that is taught by showing, asked about photos, and kept in one file."""

import contextlib
import copy
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor

import crumb_avalanche
from crumb_avalanche.images.clips import BadImage, Clip, OnBad, path_of
from crumb_avalanche.learner.changes import ChangeableLearner
from crumb_avalanche.learner.classifier import Classifier, form_of
from crumb_avalanche.learner.file import read_learner, write_learner
from crumb_avalanche.learner.header import CLOSED_FORMS
from crumb_avalanche.learner.history import History
from crumb_avalanche.learner.known_files import KnownFiles
from crumb_avalanche.learner.lesson import check_not_empty, learn, name_of
from crumb_avalanche.learner.lesson_features import FeatureRecorder
from crumb_avalanche.learner.lesson_record import Lesson
from crumb_avalanche.learner.network import FrozenNetwork, Network, StoredNetwork
from crumb_avalanche.learner.picture_strip import PictureStrip
from crumb_avalanche.learner.record_fit import STRICT
from crumb_avalanche.learner.run_answers import RunAnswers
from crumb_avalanche.learner.showing import LabelledClips, Report, Showing
from crumb_avalanche.learner.state import State
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.look_shares import RECOMMENDED_LOOKS, shares_of
from crumb_avalanche.methods.looks import Looks
from crumb_avalanche.methods.run_header import DAMAGED, LearnerError
from crumb_avalanche.models.backbone_names import default_backbone
from crumb_avalanche.system.file_metadata import digest_of
from crumb_avalanche.system.folder_lock import locked_file

LOOKS = shares_of(RECOMMENDED_LOOKS)  # see ``Learner``

# Class names, or ``NOTHING``, with batches of paths and features.
FeaturesOfClips = Iterator[tuple[str, Iterator[tuple[list[str], Tensor]]]]


class Learner(ChangeableLearner):
    """Learns to recognise what it is shown, class by class, and answers for new images.

    Classes and images may come in any number of lessons and in any order. Images are
    not kept. Calls from several threads are safe and run one after the other. A change
    is whole or not at all: whatever interrupts it leaves the learner as it was.
    ``Predictor`` has what answers, ``ChangeableLearner`` what changes what was taught.

    ::

        learner = Learner()
        learner.teach("clips/mug", "mug")
        learner.teach("clips/shoe", "shoe")
        answer = learner.predict("photo.jpg")
        learner.save("mine.safetensors")

    Example:
        >>> import numpy as np
        >>> from crumb_avalanche import Learner
        >>> mug = np.full((4, 32, 32, 3), (200, 20, 20), dtype=np.uint8)
        >>> hat = np.full((4, 32, 32, 3), (20, 20, 200), dtype=np.uint8)
        >>> learner = Learner(backbone="small_cnn", weights=None, image_size=32)
        >>> learner.teach(mug, "mug").images
        {'mug': 4}
        >>> learner.teach(hat, "hat").images
        {'hat': 4}
        >>> learner.predict(hat[0]).label
        'hat'

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
            counts is learned along the stream, and the others are given up once one is
            enough, or the budget too small; see ``LookForms``. By default the whole
            image and its middle. ``(0.6,)`` finds an object in the middle of a scene,
            also a small one.
        strict: confidence from which on a class is named, 0.01 to 0.99; the higher, the
            fewer unknown things are named, and the more known ones are not recognised.
            Without effect while there are ``missing_clips``. See ``rates``, and
            ``set_strict``.

    Raises:
        ImportError: a network of timm is asked for, and timm is not installed.
        TypeError: ``looks`` is a number, and no sequence of them.
        ValueError: method or backbone is unknown, or the cut is none of the network.
        WeightsError: the weights cannot be fetched or read, or are another network's.

    Attributes:
        keep_pictures: whether lessons from now on keep a small picture of what was
            shown; false at first.
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
        strict: float = STRICT,
    ):
        if method == "recommended":
            method = CLOSED_FORMS[0]
        if form_of(method) is None:
            known = ", ".join(CLOSED_FORMS)
            raise ValueError(f"method is {method!r}; known are recommended, {known}")
        if isinstance(looks, Real):
            raise TypeError(f"looks is {looks!r}; give a tuple, such as ({looks},)")
        network = FrozenNetwork.build(
            backbone or default_backbone(weights), weights, image_size, cut_layer
        )
        self._set_up(method, network, budget_bytes, None, looks)
        if strict != STRICT:
            self.set_strict(strict)

    def _set_up(
        self,
        method: str,
        network: FrozenNetwork,
        budget_bytes: int | None,
        moments: dict[str, Any] | None = None,
        looks: Sequence[float] = (1.0,),
    ) -> None:
        """Begin without classes: set the network, and a state that knows nothing.

        Args:
            method: name of a closed form.
            network: what computes the features.
            budget_bytes: most bytes of what is learned; ``None`` is those of the
                network.
            moments: arguments of ``FeatureMoments``; default those of the method.
            looks: sides of the middle parts of an image that are looked at, in units of
                its own.
        """
        if budget_bytes is None:
            budget_bytes = network.bytes
        classifier = Classifier.of_model(
            method, network.model, budget_bytes, moments, Looks(tuple(looks))
        )
        self._begin(method, network, State.empty(classifier))

    def _begin(self, method: str, network: Network, state: State) -> None:
        """Begin with a state that was not saved by this learner."""
        super().__init__(method, network, state)
        self.keep_pictures = False
        self._files = KnownFiles()

    @property
    def budget_bytes(self) -> int:
        """Most bytes of what is learned; 0 for what a run of another method left."""
        return self._answering.budget_bytes

    @property
    def nothing(self) -> int:
        """Number of images that were shown as nothing."""
        return sum(lesson.nothing for lesson in self.lessons)

    # Teaching

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
                another shape or other values, a box is none of the images, several
                boxes come with ``on_bad="skip"``, or a class more does not fit into the
                budget. After any error, the learner is as it was.
        """
        self.check_teachable()  # raises if it can only be asked
        showing = Showing(source, label, box, on_bad, new_class)  # raises
        with self._lock:
            showing.check_names(self._names)  # raises
            return self._teach(showing, progress)

    def teach_nothing(
        self,
        source: Any,
        *,
        on_bad: OnBad = "raise",
        progress: Callable[[int], None] | None = None,
    ) -> Lesson:
        """Show the empty scene, without any object, which is unknown from then on.

        What surrounds objects again and again speaks for them; what is shown here does
        so no more, and is never called by a name. For methods ``recommended`` and
        ``slda``.

        Args:
            source: path, images or arrays, as for ``teach``; of folders all images are
                taken.
            on_bad: ``raise`` for an error at a file that cannot be read, ``skip`` to
                leave it out and list it.
            progress: called with the number of images after each batch.

        Returns:
            The lesson; ``nothing`` is the number of images.

        Raises:
            ValueError: the method is another one. Else see ``teach``. After any error,
                the learner is as it was.
        """
        self.check_teachable()
        return self._teach(Showing.of_nothing(source, on_bad), progress)

    def _teach(
        self, showing: Showing, progress: Callable[[int], None] | None
    ) -> Lesson:
        """Compute the features of what is shown, and learn them as one lesson.

        Args:
            showing: gives the clips.
            progress: called with the number of images after each batch.
        """
        with self._lock:
            begun = self._begun_lesson()
            clips = showing.labelled_clips(
                begun.classifier.classes.names, begun.unread.append
            )
            if self.keep_pictures:
                clips = _with_pictures(clips, begun.strip)
            report = begun.unread.append if showing.on_bad == "skip" else None
            features = self._with_features(clips, report)
            return self._learn(begun, features, showing.source, progress)

    def teach_features(
        self,
        features_of: Callable[[list[BadImage]], FeaturesOfClips],
        source: Any,
        progress: Callable[[int], None] | None = None,
    ) -> Lesson:
        """Learn features that ``batches`` of a copy of this learner computed.

        One call is one lesson, as of ``teach``; see ``learner.shards``.

        Args:
            features_of: returns the class name of each clip, or ``NOTHING``, and its
                batches; called with a list to which files that cannot be read are
                added.
            source: what was shown, for the lesson's name.
            progress: called with the number of images after each batch.

        Raises:
            ValueError: there is nothing to learn, or a class more does not fit into the
                budget. After any error, the learner is as it was.
        """
        self.check_teachable()
        with self._lock:
            begun = self._begun_lesson()
            features = features_of(begun.unread)
            return self._learn(begun, features, source, progress)

    def _begun_lesson(self) -> "_BegunLesson":
        """Return a lesson that is learned next, while the lock is held."""
        self._take_fastest_runtime()  # unless the user has chosen one
        # With features of drawn images that show no class, which it compares with.
        state = self._state_with_nothing()
        # A copy learns: an error leaves the state as it was, and answers go on.
        return _BegunLesson(state, copy.deepcopy(state.classifier))

    def _learn(
        self,
        begun: "_BegunLesson",
        features: FeaturesOfClips,
        source: Any,
        progress: Callable[[int], None] | None,
    ) -> Lesson:
        """Learn the features of clips as one lesson, while the lock is held.

        Args:
            begun: the state before it, and what learns.
            features: the class name of each clip, or ``NOTHING``, and its batches.
            source: what was shown, for the lesson's name.
            progress: called with the number of images after each batch.
        """
        state = begun.state
        classifier = begun.classifier
        # Keeps what is learned for ``undo``, as far as its bytes have room.
        recorder = FeatureRecorder(state.history.room)
        lesson = learn(
            classifier,
            features,
            begun.unread,
            progress,
            on_piece=recorder.record,
            taught=state.history.taught_images(classifier.looks.n_views),
        )
        check_not_empty(lesson)  # raises
        picture = begun.strip.picture()
        lesson = replace(
            lesson,
            number=state.history.next_number,
            source=name_of(source),
            runtime=str(self.runtime),
            picture=picture.jpeg,
            pictured=picture.shows,
            id=secrets.randbits(63),
        )
        new_state = state.with_lesson(lesson, classifier, recorder.recorded())
        self._replace_state(state, new_state)
        return lesson

    def batches(
        self, clip: Clip, report: Report | None = None
    ) -> Iterator[tuple[list[str], Tensor]]:
        """Yield the paths and ``(n, D)`` features of a clip's frames, 8 at a time.

        They are what ``teach`` learns and ``teach_features`` takes.

        Args:
            clip: its frames are read.
            report: called with each image whose features are not finite, which is left
                out; ``None`` raises instead.
        """
        self._state_with_nothing()
        yield from self._batches_of(clip, report)

    def _with_features(
        self, clips: LabelledClips, report: Report | None
    ) -> FeaturesOfClips:
        """Yield the class name of each clip, and its batches; see ``_batches_of``."""
        for name, clip in clips:
            yield name, self._batches_of(clip, report)

    # Keeping

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all that was learned, without the network.

        It is of plain values and tensors.
        """
        return copy.deepcopy(self._state.state_dict())

    def save(
        self,
        path: str | os.PathLike,
        weights: bool = True,
        pictures: bool = False,
        locked: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Write the learner to a file, atomically; see ``learner.file``.

        The lock of the file is held while it is compared with what this learner knows
        of it and replaced, so that of two programs that change it the second one is
        refused.

        Args:
            path: the file; one that this learner was loaded from or saved to is
                replaced.
            weights: whether the file holds the network's weights, so that it answers
                where they cannot be had.
            pictures: whether the file holds the pictures of lessons, see
                ``keep_pictures``.
            locked: whether the caller holds the lock of the file, ``locked_file``, as
                commands do from before they load it.
            overwrite: whether the file of another learner is replaced, too.

        Raises:
            FileExistsError: the file exists and is no learner; or it is that of another
                one, and ``overwrite`` is false.
            FolderInUseError: another program holds the lock of the file.
            LearnerError: see ``check_teachable``.
            OSError: the file cannot be written, for instance because the path is a
                folder; an existing one is unchanged.
            ReplacedError: another program replaced it since this learner was loaded
                from it or saved to it.
        """
        self.check_teachable()  # raises if it can only be asked
        path = path_of(path)
        lock = contextlib.nullcontext() if locked else locked_file(path)
        with self._lock, lock:
            # Raises if another program replaced it, or it is not that of this learner.
            self._files.check(path, overwrite)
            self._write(path, weights, pictures)

    def _write(self, path: Path, weights: bool, pictures: bool) -> None:
        """Replace a learner file, whose lock is held; see ``save``."""
        state = self._state.state_dict()
        if not pictures:
            state["pictures"] = [None] * len(state["pictures"])

        def expect(digest: str) -> None:
            """Note the checksum of the file before it is written."""
            self._files.note_replacement(path, digest)

        digest = write_learner(path, self.network, state, weights, expect)
        self._files.note_content(path, digest)

    def push_to_hub(self, name: str, **how: Any) -> str:
        """Publish as ``name`` on a model hub; see ``crumb_avalanche.push_to_hub``."""
        return crumb_avalanche.push_to_hub(self, name, **how)

    @classmethod
    def from_pretrained(cls, name: str, **how: Any) -> "Learner":
        """Fetch ``name`` from a model hub; see ``crumb_avalanche.from_pretrained``."""
        return crumb_avalanche.from_pretrained(name, **how)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        weights: str | os.PathLike | None = None,
        network: bool = True,
    ) -> "Learner":
        """Load a learner from a file, or from the folder of a finished run.

        What a run of another method than a closed form learned can be asked alone: it
        answers as the run's evaluation did, with ``Answer.known`` ``None`` and a
        confidence that is not calibrated.

        Args:
            path: a file that ``save`` or ``crumb run`` wrote.
            weights: the weight file, or ``"torchvision"``, for a file without weights.
            network: whether the network is built, which takes most of the time. Without
                it the learner can be changed (``undo``, ``rename``, ``move``,
                ``forget``) and saved, but neither taught nor asked, and no weights are
                needed.

        Raises:
            LearnerError: the file is absent, damaged, of a newer version, or needs
                weights.
            TypeError: the path is neither text nor a path.
        """
        path = path_of(path)
        digest = digest_of(path)  # before it is read: it may be replaced meanwhile
        content = read_learner(path, weights, build=network)
        learner = cls.__new__(cls)
        if isinstance(content, RunAnswers):
            state = State(content, History(room=0))
            learner._begin(content.header.strategy, content.network, state)
            return learner  # which can be asked alone
        try:
            learner._load_state(content.network, content.state)
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise LearnerError(f"{path} {DAMAGED} ({reason})") from error
        learner._files.note_content(path, digest)
        return learner

    def _load_state(self, network: Network, state: dict[str, Any]) -> None:
        """Begin with what a learner file holds.

        Args:
            network: of the learner, built or not.
            state: what ``state_dict`` returned.

        Raises:
            ValueError: the state is that of another network.
        """
        if isinstance(network, StoredNetwork):
            self._set_up_unbuilt(network, state)
        else:
            self._set_up(
                state["method"],
                network,
                budget_bytes=state["budget_bytes"],
                moments=state["features"],
                looks=state["looks"],
            )
        if state["head_length"] != self._classifier.head_length:
            raise ValueError("head_length is not that of the network")
        lessons = [
            Lesson.of_state(lesson, picture)
            for lesson, picture in zip(state["lessons"], state["pictures"], strict=True)
        ]
        self._state = self._state.loaded(state, lessons)

    def _set_up_unbuilt(self, network: StoredNetwork, state: dict[str, Any]) -> None:
        """Begin without classes and without a network that can be run."""
        classifier = Classifier(
            method=state["method"],
            features=FeatureMoments(**state["features"]),
            length=state["statistics"][0]["settings"]["length"],
            budget_bytes=state["budget_bytes"],
            head_length=state["head_length"],
            looks=Looks(tuple(state["looks"])),
            backbone=network.backbone,
        )
        self._begin(state["method"], network, State.empty(classifier))


@dataclass(frozen=True)
class _BegunLesson:
    """A lesson that is being learned.

    Attributes:
        state: what was learned before it.
        classifier: a copy of the one of the state, which learns it.
        unread: receives the files that cannot be read.
        strip: notes the images of which the lesson keeps a picture.
    """

    state: State
    classifier: Classifier
    unread: list[BadImage] = field(default_factory=list)
    strip: PictureStrip = field(default_factory=PictureStrip)


def _with_pictures(clips: LabelledClips, strip: PictureStrip) -> LabelledClips:
    """Yield clips whose frames a picture notes as they are read."""
    for name, clip in clips:
        yield name, replace(clip, frames=strip.noting(clip.frames))

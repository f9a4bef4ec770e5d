"""What answers for images: a network, and a classifier that was taught or that a run left."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, overload

import torch
from PIL import Image
from torch import Tensor

from benchmarks_toybox_ilab.tables.folders import is_video
from crumb_avalanche.images.boxes import Detector, boxes_of, cut_out
from crumb_avalanche.images.clips import BadImage, Clip, OnBad, warn
from crumb_avalanche.images.sources import (
    AT_A_TIME,
    batches,
    clips_of,
    clips_to_ask,
    is_array,
)
from crumb_avalanche.learner.answer import Answer, ClassInfo
from crumb_avalanche.learner.classifier import CLOSED_FORMS, Classifier
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.run_answers import RunAnswers, cannot_be_taught
from crumb_avalanche.learner.state import State
from crumb_avalanche.learner.watch import Watched, frames_of, same_classes, together
from crumb_avalanche.methods.run_file import LearnerError
from crumb_avalanche.models.extraction import LARGEST_FEATURE, BadFeaturesError
from crumb_avalanche.models.runtimes import TORCH, Runtime, use_runtime
from crumb_avalanche.system.forks import call_in_child
from crumb_avalanche.system.tensor_file import tensor_bytes


class NothingTaughtError(ValueError):
    """The learner was asked before it was taught."""


class Predictor:
    """Answers for images; ``Learner`` adds teaching.

    Args:
        method: name of the method.
        network: what computes the features.
        state: what was taught; or a state whose classifier is ``RunAnswers``.

    Attributes:
        note: what a person who reads the answers should know; empty where the
            confidence is calibrated.
    """

    def __init__(self, method: str, network: FrozenNetwork, state: State):
        self.method = method
        self.network = network
        self._state = state
        self.note = ""
        if isinstance(state.classifier, RunAnswers):
            self.note = state.classifier.note
        self._runtime_chosen = False
        self._was_asked = False
        self._lock = threading.RLock()
        call_in_child(self._begin_in_child)

    def _begin_in_child(self) -> None:
        """Begin with a free lock and one thread, as those of the parent are gone."""
        self._lock = threading.RLock()
        torch.set_num_threads(1)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()
        call_in_child(self._begin_in_child)

    @property
    def _classifier(self) -> Any:
        """What answers: a ``Classifier``, or ``RunAnswers``."""
        return self._state.classifier

    @property
    def runtime(self) -> Runtime:
        """The runtime in use."""
        return self.network.model.runtime

    def use_runtime(self, name: str) -> Runtime:
        """Let a runtime run the frozen layers from now on, and return it.

        By default it is ``auto``, from the first lesson or the second answer on.
        Features differ in the last digits. Each lesson records the runtime that it was
        learned with.

        Args:
            name: ``auto``, or one of ``models.runtimes.RUNTIMES``; see
                ``models.runtimes.use_runtime``.

        Raises:
            RuntimeRefusedError: the runtime is not installed, or computes other
                features than the learner's.
        """
        self._runtime_chosen = True
        with self._lock:
            return use_runtime(self.network.model, name)

    @property
    def clips_missing(self) -> int:
        """Clips of known classes to be learned until the threshold of unknown images is fitted to them.

        A usual one holds until then. A clip counts if at least two classes are known
        and its own is one of them.
        """
        return self._classifier.confidence.lessons_missing

    @property
    def features(self) -> dict[str, Any] | None:
        """The arguments of ``FeatureMoments`` before any features are dropped; ``None`` for what a run left."""
        return (
            dict(vars(self._classifier.features))
            if isinstance(self._classifier, Classifier)
            else None
        )

    @property
    def looks(self) -> tuple[float, ...]:
        """The middle parts of an image that are looked at, in units of its sides."""
        return self._classifier.looks.shares

    @property
    def bytes(self) -> int:
        """Bytes of what was learned, without the network."""
        return tensor_bytes(self._classifier.tensors())

    def _take_fastest_runtime(self) -> None:
        if not self._runtime_chosen and self.runtime == TORCH:
            self.use_runtime("auto")

    @property
    def classes(self) -> list[ClassInfo]:
        """The classes taught, in order of arrival."""
        return self._classifier.classes

    @property
    def _names(self) -> list[str]:
        return [name for name in self._classifier.names if name is not None]

    @property
    def image_size(self) -> int:
        """Side in pixels to which images are resized."""
        return self.network.image_size

    def check_teachable(self) -> None:
        """Raise LearnerError for what a run of another method learned, which can be asked alone."""
        if isinstance(self._classifier, RunAnswers):
            raise LearnerError(
                f"this learner {cannot_be_taught(self._classifier.header)}. It can be asked, with crumb predict or "
                "Learner.predict, but not taught or changed. To teach on, learn its images with crumb teach "
                f"NEW.safetensors FOLDER, or with crumb run --strategy {CLOSED_FORMS[0]}"
            )

    @overload
    def predict(
        self,
        source: Any,
        boxes: None = None,
        *,
        detector: None = None,
        on_bad: OnBad = "raise",
    ) -> Answer: ...

    @overload
    def predict(
        self,
        source: Any,
        boxes: Any = None,
        *,
        detector: Detector | None = None,
        on_bad: OnBad = "raise",
    ) -> list[Answer]: ...

    def predict(
        self,
        source: Any,
        boxes: Any = None,
        *,
        detector: Detector | None = None,
        on_bad: OnBad = "raise",
    ) -> Answer | list[Answer]:
        """Answer for an image or a clip (a video, or a list of frames), or for each box of an image.

        Scores of a clip are means over its frames. What is asked of a box is the square
        around it with a margin; the boxes of an image pass the network together.

        Args:
            source: as for ``teach``; one image or one clip.
            boxes: of an image; see ``boxes_of``.
            detector: function of the RGB image, upright, that returns boxes, if none
                are given.
            on_bad: ``raise`` for an error at a frame that cannot be read, ``skip`` to
                leave it out.

        Returns:
            Label, confidence, whether the class is known, and runners-up; with boxes a
            list of these, in their order.

        Raises:
            NothingTaughtError: nothing was taught.
            ValueError: the source has several clips: use ``predict_all``; or it has
                boxes and several images, or a box is none of the image.
            OSError: see ``teach``: ``BadFrameError`` and ``FileNotFoundError``.
        """
        if boxes is None and detector is None:
            answers = list(self.predict_all(source, on_bad=on_bad))
            if len(answers) != 1:
                raise ValueError(
                    f"the source has {len(answers)} images or clips, not one: use predict_all"
                )
            return answers[0]
        self._check_taught()
        images = list(
            islice(
                chain.from_iterable(
                    clip.frames for clip in clips_of(source, on_bad=on_bad)
                ),
                2,
            )
        )
        if len(images) != 1:
            raise ValueError(
                "boxes are those of one image; ask about each image by itself"
            )
        ((path, image),) = images
        found = boxes_of(detector(image) if boxes is None and detector else boxes)
        parts = Clip(path, None, ((path, cut_out(image, box)) for box in found))
        each = [
            frame
            for answer in self.predict_all(parts)
            for frame in answer.frames or (answer,)
        ]
        return [
            replace(answer, box=box) for answer, box in zip(each, found, strict=True)
        ]

    def predict_all(
        self,
        source: Any,
        on_bad: OnBad = "raise",
        report: Callable[[BadImage], object] = warn,
    ) -> Iterator[Answer]:
        """Answer for each image and clip of a source, in order.

        Photos of a folder are asked one by one, and answered 8 at a time; a video is a
        clip, and so are the frames of a list.

        Args:
            source: as for ``teach``.
            on_bad: ``raise`` or ``skip``.
            report: called with each file that is left out.

        Yields:
            The answer for each image or clip.

        Raises:
            NothingTaughtError: nothing was taught.
            OSError: see ``teach``: ``BadFrameError`` and ``FileNotFoundError``.
        """
        self._check_taught()
        if self._was_asked or not _is_photo(
            source
        ):  # another runtime takes a second to load
            self._take_fastest_runtime()
        self._was_asked = True
        for clip in clips_to_ask(source, self.classes, on_bad=on_bad, report=report):
            values = self._values(clip, report if on_bad == "skip" else None)
            if clip.is_folder:
                for some in values:
                    yield from self._answers(clip, [some])[0]
                continue
            frames, together = self._answers(clip, values)
            if frames:
                yield together

    def watch(
        self,
        source: Any,
        *,
        bgr: bool = False,
        window: float = 1.0,
        fps: float | None = None,
        live: bool | None = None,
    ) -> Iterator[Watched]:
        """Answer for frames as they come; the learner may be taught meanwhile.

        Each answer is that for the frames of the last ``window`` seconds as one clip,
        whose scores are means. ``changed`` marks the moments at which another class, or
        something unknown, was answered for half a window.

        Args:
            source: number or name of a camera; path of a video; address of a stream,
                such as ``rtsp://host/path``; function that returns a frame, or ``None``
                after the last one; or iterator of frames. Frames are ``(H, W, 3)``
                arrays as for ``teach``, or PIL images.
            bgr: whether the channels of the frames are blue, green and red, as those of
                OpenCV.
            window: seconds; 0 answers for each frame alone.
            fps: most answers for a second of the source; default as many as there is
                time for.
            live: whether frames go on while one is answered for: those that come too
                fast are dropped, and each answer is for the newest one. By default true
                for cameras and streams; true plays a video at its own speed.

        Yields:
            The answers.

        Raises:
            CameraError: the camera, stream or video cannot be opened, or stops.
            NothingTaughtError: nothing was taught.
            TypeError: the source or a frame is none of these.
            ValueError: ``window`` is negative, ``fps`` is not above 0, or a frame is
                not as for ``teach``.
        """
        if not 0 <= window < float("inf") or (fps is not None and not fps > 0):
            raise ValueError(
                f"window is {window} and fps {fps}; give seconds from 0, and an fps above 0 or None"
            )
        self._check_taught()
        self._take_fastest_runtime()
        path, frames = frames_of(source, bgr, live, fps)
        held: deque[tuple[float, Any]] = deque()  # evidence of the last seconds
        told: str | None = None  # what the last change was to
        since = "", 0.0  # what is answered, and since when
        for seconds, image, dropped in frames:
            ((_, pixels),) = batches([(path, image)], 1, self._transform)
            values = self._compute(pixels)
            with self._lock:
                found = self._classifier.evidence(values)
                held.append((seconds, found))
                while held[0][0] < seconds - window or not same_classes(
                    held[0][1], found
                ):
                    held.popleft()
                names, known = self._classifier.ranked(
                    together([one for _, one in held])
                )[-1]
            shown = "unknown" if known is False else f"class {names[0][0]}"
            since = since if since[0] == shown else (shown, seconds)
            changed = shown != told and seconds - since[1] >= window / 2
            told = shown if changed else told
            (label, share), *others = names
            yield Watched(
                label,
                share,
                known,
                tuple(others),
                path,
                time=seconds,
                changed=changed,
                dropped=dropped,
            )

    def _check_taught(self) -> None:
        if not self.classes:
            raise NothingTaughtError(
                "nothing was taught yet: call teach(source, label) first"
            )

    def _answers(
        self, clip: Clip, values: Iterable[tuple[list[str], Tensor]]
    ) -> tuple[tuple[Answer, ...], Answer]:
        """Answer for each of some frames of a clip, and for all together; there is no answer for no frame."""
        found = list(values)
        if not found:
            return (), Answer("", 0.0, None)
        paths = [path for some, _ in found for path in some]
        with self._lock:
            ranked = self._classifier.ranked(
                self._classifier.evidence(torch.cat([some for _, some in found]))
            )
        *each, whole = [
            Answer(label, share, known, tuple(others), truth=clip.label)
            for ((label, share), *others), known in ranked
        ]
        frames = tuple(replace(one, path=path) for one, path in zip(each, paths))
        return frames, frames[0] if len(frames) == 1 else replace(
            whole, path=clip.path, frames=frames
        )

    @property
    def explains(self) -> bool:
        """Whether ``explain`` shows where the evidence lies."""
        return not isinstance(self._classifier, RunAnswers)

    def explain(self, photo: Any) -> Tensor:
        """Show where in a photo the evidence for the answer lies; see ``shares_of``.

        Args:
            photo: a single image, as for ``predict``.

        Returns:
            ``(image_size, image_size)`` float32; positive where the image speaks more
            for the answer than elsewhere, negative where it speaks for the runner-up.

        Raises:
            LearnerError: see ``check_teachable``.
            NothingTaughtError: nothing was taught.
            ValueError: the source has several images.
        """
        self.check_teachable()
        self._check_taught()
        pixels = [
            some
            for clip in clips_of(photo)
            for _, some in batches(clip.frames, 2, self._transform)
        ]
        if len(pixels) != 1 or len(pixels[0]) != 1:
            raise ValueError("explain takes a single image")
        with self._lock:
            shares = self._classifier.explain(self.network.model, pixels[0])
        return torch.nn.functional.interpolate(
            shares[None, None], self.image_size, mode="bilinear"
        )[0, 0].float()

    def _values(
        self, clip: Clip, report: Callable[[BadImage], object] | None
    ) -> Iterator[tuple[list[str], Tensor]]:
        """Compute what is learned or asked of a clip's frames, with their paths, for 8 frames at a time.

        Args:
            clip: its frames are read.
            report: called with each image whose features cannot be used, which is left
                out; ``None`` raises instead.

        Raises:
            BadFeaturesError: features are not finite or too large; names the first such
                image.
        """
        for paths, pixels in batches(clip.frames, AT_A_TIME, self._transform):
            try:
                values = self._compute(pixels)
            except BadFeaturesError:
                good = [
                    place
                    for place, path in enumerate(paths)
                    if self._usable(path, pixels[place, None], report)
                ]
                if not good:
                    continue
                # Together: an image may have other last digits alone.
                paths, values = (
                    [paths[place] for place in good],
                    self._compute(pixels[good]),
                )
            yield paths, values

    def _usable(
        self, path: str, image: Tensor, report: Callable[[BadImage], object] | None
    ) -> bool:
        try:
            self._compute(image)
        except BadFeaturesError as error:
            if report is None:
                raise BadFeaturesError(f"{path}: {error}", error.images) from error
            report(BadImage(path, str(error)))
            return False
        return True

    @property
    def _transform(self) -> Callable[[Any], Tensor]:
        return self._classifier.looks.transform(
            self.image_size, self.network.interpolation
        )

    def _compute(self, pixels: Tensor) -> Tensor:
        with self._lock:  # the network's hooks serve one batch at a time
            values = self._classifier.compute(self.network.model, pixels)
        if not bool((values.abs() <= LARGEST_FEATURE).all()):  # false for NaN
            raise BadFeaturesError(
                f"features must be finite and at most {LARGEST_FEATURE:g} in absolute value: leave the image out; if "
                "there are many, look at the weights",
                pixels,
            )
        return values


def _is_photo(source: Any) -> bool:
    """Whether a source is a single image."""
    if isinstance(source, str | os.PathLike):
        return os.path.isfile(source) and not is_video(Path(source))
    return isinstance(source, Image.Image) or (
        is_array(source) and len(source.shape) == 3
    )

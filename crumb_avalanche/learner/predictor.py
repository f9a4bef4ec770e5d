"""What answers for images: a network and a classifier, taught or left by a run."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, overload

import torch
from PIL import Image
from torch import Tensor

from benchmarks_toybox_ilab.tables.folders import is_video
from benchmarks_toybox_ilab.tables.forks import call_in_child
from crumb_avalanche.images.boxes import Detector, boxes_of, cut_out
from crumb_avalanche.images.clips import BadImage, Clip, OnBad, warn_of_bad_image
from crumb_avalanche.images.looks import LookTransform
from crumb_avalanche.images.sources import (
    AT_A_TIME,
    batches,
    clips_of,
    clips_to_ask,
    is_array,
)
from crumb_avalanche.learner.answer import Answer, ClassInfo
from crumb_avalanche.learner.answering import Answering
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.explanation import explanation
from crumb_avalanche.learner.header import CLOSED_FORMS, cannot_be_taught
from crumb_avalanche.learner.network import Network
from crumb_avalanche.learner.prediction import RUNNERS_UP, Ranking
from crumb_avalanche.learner.rates import Rates
from crumb_avalanche.learner.run_answers import RunAnswers
from crumb_avalanche.learner.state import State
from crumb_avalanche.learner.watch import (
    Changes,
    Watched,
    Window,
    frames_of,
)
from crumb_avalanche.methods.run_header import LearnerError
from crumb_avalanche.models.extraction import LARGEST_FEATURE, BadFeaturesError
from crumb_avalanche.models.runtimes import TORCH, Runtime, use_runtime
from crumb_avalanche.system.tensor_file import tensor_bytes


class NothingTaughtError(ValueError):
    """The learner was asked before it was taught."""


class _ClipAnswers(NamedTuple):
    """Answers for each frame of a clip, none if it has none, and for all together."""

    frames: tuple[Answer, ...]
    together: Answer


class Predictor:
    """Answers for images; ``Learner`` adds teaching.

    Args:
        method: name of the method.
        network: what computes the features; one that is not built answers nothing.
        state: what was taught; or one of ``RunAnswers``.
    """

    def __init__(self, method: str, network: Network, state: State):
        self.method = method
        self.network = network
        self._state = state
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
    def _answering(self) -> Answering:
        """What answers: a ``Classifier``, or ``RunAnswers``."""
        return self._state.answering

    @property
    def _classifier(self) -> Classifier:
        """What answers, and can be taught; raises LearnerError for ``RunAnswers``."""
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
    def strict(self) -> float:
        """Confidence from which on a class is named; below it an image is unknown."""
        return self._answering.strict

    @property
    def rates(self) -> Rates | None:
        """How often it errs about what it knows; ``None`` if nobody can tell.

        They follow from clips that were asked before they were learned: how often their
        class was not known, and what the other classes took them for.
        """
        return self._answering.rates

    @property
    def missing_clips(self) -> int:
        """Clips of known classes to be asked before learning, before "unknown" works.

        Until then nearly every image counts as known, however strict the learner is. 0
        once there are enough, and from the start with ``recommended`` or ``slda`` and a
        network of which it was measured how it answers; 0, too, for what a run of
        another method left, which never tells unknown things.
        """
        return self._answering.missing_clips

    @property
    def note(self) -> str:
        """What a person who reads the answers should know; may be empty."""
        return self._answering.note

    @property
    def features(self) -> dict[str, Any] | None:
        """The arguments of ``FeatureMoments`` before any features are dropped.

        ``None`` for what a run left.
        """
        if not isinstance(self._answering, Classifier):
            return None
        return dict(vars(self._answering.features))

    @property
    def looks(self) -> tuple[float, ...]:
        """The middle parts of an image that are looked at, in units of its sides."""
        return self._answering.looks.shares

    @property
    def looks_used(self) -> tuple[float, ...]:
        """Those of ``looks`` that are used.

        One alone is once it is enough, or once the budget has room for one alone.
        """
        return self._answering.shares

    @property
    def bytes(self) -> int:
        """Bytes of what was learned, without the network."""
        return tensor_bytes(self._answering.tensors())

    def _take_fastest_runtime(self) -> None:
        """Let the fastest runtime run the frozen layers, unless one was chosen."""
        if not self._runtime_chosen and self.runtime == TORCH:
            self.use_runtime("auto")

    @property
    def classes(self) -> list[ClassInfo]:
        """The classes taught, in order of arrival."""
        return self._answering.classes.infos

    @property
    def _names(self) -> list[str]:
        """The names of the classes taught."""
        return [name for name in self._answering.classes.names if name is not None]

    @property
    def image_size(self) -> int:
        """Side in pixels to which images are resized."""
        return self.network.image_size

    def check_teachable(self) -> None:
        """Raise LearnerError for what a run of another method learned.

        It can be asked alone.
        """
        if isinstance(self._answering, RunAnswers):
            raise LearnerError(
                f"this learner {cannot_be_taught(self._answering.header)}. It can be "
                "asked, with crumb predict or Learner.predict, but not taught or "
                "changed. To teach on, learn its images with crumb teach "
                "NEW.safetensors FOLDER, or with crumb run --strategy "
                f"{CLOSED_FORMS[0]}"
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
        """Answer for an image, for a clip, or for each box in an image.

        A clip is a video or a list of frames; its scores are means over the frames. Of
        a box, the square around it with a margin is asked.

        Args:
            source: one image or one clip, of any kind that ``teach`` takes.
            boxes: where objects are in an image, see ``boxes_of``; default the whole
                image is asked.
            detector: function that takes the RGB image, upright, and returns such
                boxes; used without ``boxes``.
            on_bad: ``raise`` an error at a frame that cannot be read, or ``skip`` it.

        Returns:
            The answer; with boxes or a detector a list of answers, one for each box, in
            their order.

        Raises:
            NothingTaughtError: nothing was taught.
            ValueError: the source has several clips: use ``predict_all``; or it has
                boxes and several images, or a box is none of the image.
            BadFrameError: a file cannot be decoded, and ``on_bad`` is ``raise``.
            FileNotFoundError: the path does not exist.
        """
        if boxes is not None:
            return self._predict_boxes(source, on_bad, lambda image: boxes)
        if detector is not None:
            return self._predict_boxes(source, on_bad, detector)
        answers = list(self.predict_all(source, on_bad=on_bad))
        if len(answers) != 1:
            raise ValueError(
                f"the source has {len(answers)} images or clips, not one: use "
                "predict_all"
            )
        return answers[0]

    def _predict_boxes(
        self, source: Any, on_bad: OnBad, detector: Detector
    ) -> list[Answer]:
        """Answer for each box of an image, all of which pass the network together.

        Args:
            source: one image, of any kind that ``teach`` takes.
            on_bad: ``raise`` an error if it cannot be read, or ``skip`` it.
            detector: returns the boxes of the RGB image; see ``boxes_of``.
        """
        self._check_taught()  # raises
        clips = clips_of(source, on_bad=on_bad)
        images = chain.from_iterable(clip.frames for clip in clips)
        first_two = list(islice(images, 2))  # a second one is an error
        if len(first_two) != 1:
            raise ValueError(
                "boxes are those of one image; ask about each image by itself"
            )
        ((path, image),) = first_two
        boxes = boxes_of(detector(image))
        # Asked as the frames of a clip, so that they share batches.
        squares = ((path, cut_out(image, box)) for box in boxes)
        answers: list[Answer] = []
        for answer in self.predict_all(Clip(path, None, squares)):
            # One for each frame; of a single frame the answer is that of the clip.
            answers += answer.frames or (answer,)
        answers_and_boxes = zip(answers, boxes, strict=True)
        return [replace(answer, box=box) for answer, box in answers_and_boxes]

    def predict_all(
        self,
        source: Any,
        on_bad: OnBad = "raise",
        report: Callable[[BadImage], object] = warn_of_bad_image,
        runners_up: int = RUNNERS_UP,
    ) -> Iterator[Answer]:
        """Answer for each image and clip of a source, in order.

        Photos of a folder are asked one by one, and answered 8 at a time; a video is a
        clip, and so are the frames of a list.

        Args:
            source: path of an image, folder or video, glob pattern, PIL image, array,
                tensor, or a list of these.
            on_bad: ``raise`` an error at a file that cannot be read, or ``skip`` it.
            report: called with each file that is left out.
            runners_up: most classes that an answer names besides the first.

        Yields:
            The answer for each image or clip.

        Raises:
            NothingTaughtError: nothing was taught.
            BadFrameError: a file cannot be decoded, and ``on_bad`` is ``raise``.
            FileNotFoundError: the path does not exist.
        """
        self._check_taught()  # raises
        # Another runtime takes a second to load: not for a single photo.
        if self._was_asked or not _is_photo(source):
            self._take_fastest_runtime()
        self._was_asked = True
        report_bad = report if on_bad == "skip" else None
        for clip in clips_to_ask(source, self.classes, on_bad=on_bad, report=report):
            batches_of_clip = self._batches_of(clip, report_bad)  # paths and features
            if clip.is_folder:  # each photo has an answer of its own
                for batch in batches_of_clip:
                    yield from self._answers(clip, [batch], runners_up).frames
                continue
            answers = self._answers(clip, batches_of_clip, runners_up)
            if answers.frames:  # else no frame could be read
                yield answers.together

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
            CameraError: the camera or stream cannot be opened, or stops.
            FileNotFoundError: the video does not exist.
            NothingTaughtError: nothing was taught, or all was forgotten meanwhile.
            TypeError: the source or a frame is none of these.
            VideoError: the video cannot be read.
            ValueError: ``window`` is negative, ``fps`` is not above 0, or a frame is
                not as for ``teach``.
        """
        is_window_finite = 0 <= window < float("inf")
        is_fps_positive = fps is None or fps > 0
        if not is_window_finite or not is_fps_positive:
            raise ValueError(
                f"window is {window} and fps {fps}; give seconds from 0, and an fps "
                "above 0 or None"
            )
        self._check_taught()  # raises
        self._take_fastest_runtime()  # unless the user has chosen one
        path, frames = frames_of(source, bgr, live, fps)
        frames_in_window = Window(window)
        changes = Changes(window)
        with closing(frames):  # type: ignore[type-var]
            for seconds, image, dropped in frames:
                transform = self._transform  # which may be another after a lesson
                # A single batch, of one image: its path and its pixels.
                ((_, pixels),) = batches([(path, image)], 1, transform)
                features = self._compute(pixels, transform.shares)
                with self._lock:
                    self._check_taught()  # raises if all was forgotten meanwhile
                    # Scores of the classes, and how typical the frame is of them.
                    evidence = self._answering.evidence(features)
                    clip_evidence = frames_in_window.joined_with(evidence, seconds)
                    # Classes by rank for each frame, and last for all as a clip.
                    *_, clip_ranking = self._answering.ranked(clip_evidence)
                answer = answer_of(clip_ranking, path)
                answer_text = f"class {answer.label}"
                if answer.unknown:
                    answer_text = "unknown"
                yield Watched(
                    **vars(answer),
                    time=seconds,
                    changed=changes.observe(answer_text, seconds),
                    dropped=dropped,
                )

    def _check_taught(self) -> None:
        """Raise NothingTaughtError for a learner without classes."""
        if not self.classes:
            raise NothingTaughtError(
                "nothing was taught yet; teach a class first: teach(source, label), or "
                "crumb teach MODEL SOURCE --label NAME"
            )

    def _answers(
        self,
        clip: Clip,
        batches_of_clip: Iterable[tuple[list[str], Tensor]],
        runners_up: int = RUNNERS_UP,
    ) -> "_ClipAnswers":
        """Answer for each of some frames of a clip, and for all together.

        Args:
            clip: names the path and the true class.
            batches_of_clip: paths of frames, and what ``_compute`` returned of them.
            runners_up: most classes that an answer names besides the first.

        Returns:
            ``frames``, an answer for each, and ``together``, the answer for the clip.
        """
        paths: list[str] = []
        features = []
        for paths_of_batch, features_of_batch in batches_of_clip:
            paths += paths_of_batch
            features.append(features_of_batch)
        if not paths:
            return _ClipAnswers(frames=(), together=Answer("", 0.0, None))
        with self._lock:
            self._check_taught()  # raises if all was forgotten meanwhile
            # Scores of the classes, and how typical each frame is of them.
            evidence = self._answering.evidence(torch.cat(features))
            # Classes by rank for each frame, and last for all as a clip.
            rankings = self._answering.ranked(evidence, runners_up)
        frames = []
        for ranking, path in zip(rankings[:-1], paths, strict=True):
            frames.append(answer_of(ranking, path, clip.label))
        if len(frames) == 1:
            together = frames[0]
            if clip.files == (clip.path,):  # of a video, and not of its frame at 0 s
                together = replace(together, path=clip.path)
            return _ClipAnswers(frames=tuple(frames), together=together)
        together = answer_of(rankings[-1], clip.path, clip.label)
        together = replace(together, frames=tuple(frames))
        return _ClipAnswers(frames=tuple(frames), together=together)

    @property
    def explains(self) -> bool:
        """Whether ``explain`` shows where the evidence lies."""
        return not isinstance(self._answering, RunAnswers)

    def explain(self, photo: Any) -> Tensor:
        """Show which parts of a photo speak for the answer; see ``explanation``.

        Args:
            photo: a single image, as for ``predict``.

        Returns:
            ``(image_size, image_size)`` float32; positive where the image speaks more
            for the answer than elsewhere, negative where it speaks for the runner-up.

        Raises:
            LearnerError: the learner is one that a run left, which can only be asked.
            NothingTaughtError: nothing was taught.
            ValueError: the source has several images.
        """
        # Both raise: what a run left can only be asked.
        self.check_teachable()
        self._check_taught()
        pixels = []
        transform = self._transform
        for clip in clips_of(photo):
            # Batches of 2, so that a second image shows as a row more.
            for _, pixels_of_batch in batches(clip.frames, 2, transform):
                pixels.append(pixels_of_batch)
        if len(pixels) != 1 or len(pixels[0]) != 1:
            raise ValueError("explain takes a single image")
        with self._lock:
            attribution = explanation(
                self._classifier, self.network.model, pixels[0], transform.shares
            )
        # interpolate takes (B, C, H, W).
        enlarged = torch.nn.functional.interpolate(
            attribution[None, None], self.image_size, mode="bilinear"
        )
        return enlarged[0, 0].float()

    def _batches_of(
        self, clip: Clip, report: Callable[[BadImage], object] | None
    ) -> Iterator[tuple[list[str], Tensor]]:
        """Compute the features of a clip's frames, 8 at a time, to learn or to answer.

        Args:
            clip: its frames are read.
            report: called with each image whose features cannot be used, which is left
                out; ``None`` raises instead.

        Yields:
            The paths of the frames, and what was computed of them, a row for each.

        Raises:
            BadFeaturesError: features are not finite or too large; names the first such
                image.
        """
        transform = self._transform  # cuts the parts of an image that are looked at
        compute = partial(self._compute, shares=transform.shares)  # and their sides
        for paths, pixels in batches(clip.frames, AT_A_TIME, transform):
            try:
                features = compute(pixels)
            except BadFeaturesError:
                # Each image by itself, to leave out those that cannot be used.
                usable = []
                for row, path in enumerate(paths):
                    image = pixels[row, None]
                    if self._is_usable(path, partial(compute, image), report):
                        usable.append(row)
                if not usable:
                    continue
                paths = [paths[row] for row in usable]
                # Together: an image may have other last digits alone.
                features = compute(pixels[usable])
            yield paths, features

    def _is_usable(
        self,
        path: str,
        compute: Callable[[], Tensor],
        report: Callable[[BadImage], object] | None,
    ) -> bool:
        """Compute the features of an image; return whether they can be used.

        Args:
            path: of the image.
            compute: computes the features.
            report: called with an image whose features cannot be used; ``None`` raises
                BadFeaturesError instead, with its path.
        """
        try:
            compute()
        except BadFeaturesError as error:
            if report is None:
                raise BadFeaturesError(f"{path}: {error}", error.images) from error
            report(BadImage(path, str(error)))
            return False
        return True

    @property
    def _transform(self) -> LookTransform:
        """What makes pixels of an image, of the looks that are needed now."""
        return LookTransform(
            self._answering.shares, self.image_size, self.network.interpolation
        )

    def _compute(self, pixels: Tensor, shares: Sequence[float]) -> Tensor:
        """Compute the features that are learned or asked, or a run's outputs.

        Args:
            pixels: uint8 of images in each look (the whole image, and middle parts of
                it), as ``LookTransform`` returns them.
            shares: side of each look in units of that of the image.

        Returns:
            A row for each image.

        Raises:
            BadFeaturesError: a value is not finite or too large.
        """
        with self._lock:  # the network's hooks serve one batch at a time
            features = self._answering.compute(self.network.model, pixels, shares)
        are_usable = bool((features.abs() <= LARGEST_FEATURE).all())  # false for NaN
        if not are_usable:
            raise BadFeaturesError(
                f"features must be finite and at most {LARGEST_FEATURE:g} in absolute "
                "value: leave the image out; if there are many, look at the weights",
                pixels,
            )
        return features


def answer_of(ranking: Ranking, path: str, truth: str | None = None) -> Answer:
    """Return the answer that a ranking is.

    Args:
        ranking: of a frame or a clip, as ``Classifier.ranked`` returns them.
        path: of what was asked.
        truth: its true class, if it is known.
    """
    (label, share), *runners_up = ranking.classes
    return Answer(
        label, share, ranking.is_known, tuple(runners_up), path=path, truth=truth
    )


def _is_photo(source: Any) -> bool:
    """Whether a source is a single image."""
    if isinstance(source, str | os.PathLike):
        return os.path.isfile(source) and not is_video(Path(source))
    return isinstance(source, Image.Image) or (
        is_array(source) and len(source.shape) == 3
    )

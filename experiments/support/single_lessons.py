"""What a lesson of one image costs after many others, without the network's time."""

import copy
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from PIL import Image
from support.bench import seconds

from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.learner import Learner

TIMED = 5  # lessons of which the median counts
HEADER = (
    "classes",
    "lessons",
    "ms of a lesson after an answer",
    "ms of a lesson after a lesson",
    "ms of the first answer after a lesson",
    "s to take the last lesson back",
    "MB learned",
    "MB for undo in memory",
    "MB of the file without the network",
)


class DrawnFeatures:
    """Features of the images of a class, drawn instead of computed by a network.

    Args:
        length: number of features of all views.

    Attributes:
        number: of the class that is shown.
    """

    def __init__(self, length: int):
        self.number = 0
        self._length = length
        self._noise = torch.Generator().manual_seed(0)

    def compute(self, pixels: torch.Tensor, shares: Sequence[float]) -> torch.Tensor:
        """Draw the features of a batch of images, whatever is looked at."""
        of_class = torch.Generator().manual_seed(self.number)
        mean = torch.rand(self._length, generator=of_class)
        noise = torch.rand(len(pixels), self._length, generator=self._noise)
        return mean + 0.1 * noise


@dataclass(frozen=True)
class LessonCost:
    """What a learner costs after a number of lessons of one image.

    Attributes:
        classes, lessons: numbers of those taught.
        after_answer, after_lesson: CPU seconds of a lesson. Before a lesson is learned
            it is predicted by what was learned before: after an answer that is solved
            for, after a lesson it is not.
        answer: CPU seconds of the first answer after a lesson.
        undo: CPU seconds of taking the last lesson back.
        learned_bytes, undo_bytes: of what is learned, and of what takes lessons back.
        file_bytes: of the learner file without the weights of the network.
    """

    classes: int
    lessons: int
    after_answer: float
    after_lesson: float
    answer: float
    undo: float
    learned_bytes: int
    undo_bytes: int
    file_bytes: int

    @property
    def cells(self) -> list[object]:
        """The row below ``HEADER``."""
        times = (self.after_answer, self.after_lesson, self.answer)
        sizes = (self.learned_bytes, self.undo_bytes, self.file_bytes)
        return [
            self.classes,
            self.lessons,
            *(f"{1e3 * value:.0f}" for value in times),
            f"{self.undo:.2f}",
            *(f"{size / 1e6:.1f}" for size in sizes),
        ]


class SingleLessons:
    """A learner that is taught lessons of one image, of drawn features.

    Args:
        classes: that are taught in turn.
        predicts: whether lessons that are not timed are predicted before they are
            learned, as all are: the records of answers need it, and it takes long.
        method, backbone, looks: see ``Learner``.

    Attributes:
        learner: that is taught.
        count: number of its lessons.
    """

    def __init__(
        self,
        classes: int,
        predicts: bool,
        method: str,
        backbone: str,
        looks: Sequence[float],
    ):
        self._classes = classes
        self._predicts = predicts
        self.learner = Learner(method, backbone, None, 224, looks=looks)
        self.learner.use_runtime("torch")
        self.count = 0
        classifier = self.learner._classifier
        self._features = DrawnFeatures(classifier.length * classifier.looks.n_views)
        self.learner._compute = self._features.compute
        self._photo = Image.new("RGB", (8, 8))

    def teach(self) -> None:
        """Teach an image of the next class, after the last one of the first."""
        number = self.count % self._classes
        self._features.number = number
        self.learner.teach(self._photo, f"class {number}", new_class=True)
        self.count += 1

    def ask(self) -> None:
        """Ask for an image of the class that was taught last."""
        self.learner.predict(self._photo)

    def costs(self, counts: Sequence[int]) -> Iterator[LessonCost]:
        """Yield what a lesson costs after numbers of lessons."""
        for count in sorted(counts):
            self._teach_until(count)
            yield self.cost()

    def _teach_until(self, count: int) -> None:
        """Teach lessons that are not timed."""
        with ExitStack() as changes:
            if not self._predicts:
                predicts_nothing = patch.object(
                    Classifier, "predict_before_learning", lambda *_: None
                )
                changes.enter_context(predicts_nothing)
            while self.count < count:
                self.teach()

    def cost(self) -> LessonCost:
        """Measure a few further lessons and answers, and what they leave."""
        count = self.count
        classes = len(self.learner.classes)
        after_answer = []
        after_lesson = []
        answers = []
        self.ask()  # not timed: the first lesson below comes after an answer
        for _ in range(TIMED):
            after_answer.append(seconds(self.teach, time.process_time))
            after_lesson.append(seconds(self.teach, time.process_time))
            answers.append(seconds(self.ask, time.process_time))
        # Of a copy, as the learner goes on.
        undo = seconds(copy.deepcopy(self.learner).undo, time.process_time)
        return LessonCost(
            classes=classes,
            lessons=count,
            after_answer=median(after_answer),
            after_lesson=median(after_lesson),
            answer=median(answers),
            undo=undo,
            learned_bytes=self.learner.bytes,
            undo_bytes=self.learner.undo_bytes,
            file_bytes=self._file_bytes(),
        )

    def _file_bytes(self) -> int:
        """Bytes of the learner file, without the weights of the network."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "lessons.safetensors"
            self.learner.save(path, weights=False)
            return path.stat().st_size

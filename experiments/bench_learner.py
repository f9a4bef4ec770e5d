"""Measure a learner's speed and memory, beside the bare network or torch alone.

    python experiments/bench_learner.py

Ratios are printed last, because times depend on the machine; with --json, they alone:

  predict_over_bare       time of Learner.predict on a batch, with 20 classes taught /
                          time of the eager float32 network (F, and P below the head) on
                          the same pixels; the solution after a lesson is not part of it
  teach_over_bare         time of Learner.teach of a batch of one of the 20 classes /
                          the same
  ..._over_whole          time of Learner.predict and teach / that of a learner that
                          looks at the whole image
  ..._settled             the same of a learner that found that of its looks the whole
                          image is enough
  cold_start_over_torch   time of the process "crumb predict MODEL photo.jpg" / time of
                          a process that imports torch and torchvision and runs the
                          network once
  predict_bytes           peak of resident memory of "crumb predict", minus that of a
                          process that imports torch
  teach_bytes             the same for "crumb teach" of a folder of photos
  answer_over_bare        time of an answer of "crumb serve" to a photo, of a client
                          that sends one after the other / time of the bare network on
                          one image
  answers_per_second      of that client
  lesson_after_N_seconds  CPU time of a lesson of one image and of the answer after it,
                          after N lessons of one image of 25 classes; without the
                          network's
  class_after_N_seconds   CPU time of a lesson of one image of the class N, taught one
                          by one, without the network's
  undo_last_seconds       CPU time of taking back the last of all those lessons
  kept_over_learned       bytes that the file holds for undo / bytes learned
"""

import argparse
import copy
import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from support.bench import (
    bench_parser,
    clock_of,
    fastest,
    in_new_process,
    photos,
    report,
)
from support.common_options import run_script

from crumb_avalanche.learner.learner import LOOKS, Learner
from crumb_avalanche.models.extraction import IMAGES_AT_A_TIME
from crumb_avalanche.models.penultimate import penultimate
from crumb_avalanche.system.process import keep_freed_memory

CLASSES = 20
ANSWERS = 20  # of crumb serve in a round
LESSON_CLASSES = 25  # of lessons of one image
AVERAGED = 8  # lessons of one image
SIDE = 480  # pixels of the photos
# Names of learners that look otherwise.
WHOLE = ", whole image"
SETTLED = ", settled"
# Not resource.getrusage, whose peak includes that of the process that starts this one.
PEAK = "print(int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) * 1024)"
CLI = (
    "import sys; from crumb_avalanche.cli import main; assert main(sys.argv[1:]) == 0; "
)
BARE = (
    "import sys, torch, torchvision; torch.set_num_threads(int(sys.argv[1]))\n"
    "from crumb_avalanche.models.networks import NETWORKS\n"
    "with torch.no_grad(): NETWORKS[sys.argv[2]]().eval()(torch.zeros(1, 3, 224, 224))\n"
    + PEAK
)


@torch.no_grad()
def bare(learner: Learner, pixels: torch.Tensor) -> None:
    """Run F, and P below the head, in eager float32, in chunks that fit the caches."""
    model = learner.network.model
    for chunk in pixels.split(IMAGES_AT_A_TIME):
        images = (chunk.float() / 255 - model.pixel_mean) / model.pixel_std
        images = images.contiguous(memory_format=torch.channels_last)
        maps = model.feature_extractor(images)
        penultimate(model, maps * model.feature_scale)


def noise(count: int) -> np.ndarray:
    """Images of noise, ``(count, 224, 224, 3)`` uint8."""
    return np.random.default_rng(0).integers(0, 256, (count, 224, 224, 3), np.uint8)


def noise_tensor(count: int) -> torch.Tensor:
    """The same images, ``(count, 3, 224, 224)`` uint8."""
    return torch.from_numpy(noise(count)).permute(0, 3, 1, 2)


def taught(options: argparse.Namespace, looks: list[float], tree: Path) -> Learner:
    """A learner that was taught the photos of all classes."""
    learner = Learner(options.method, options.backbone, None, 224, looks=looks)
    learner.use_runtime("torch")
    learner.teach(tree)
    return learner


def settled(learner: Learner) -> Learner:
    """A copy of a learner for which its first look is enough."""
    classifier = copy.deepcopy(learner._classifier)
    classifier.look_weights.used = (0,)
    copied = copy.deepcopy(learner)
    copied._state = replace(learner._state, classifier=classifier)
    return copied


def time_batches(
    options: argparse.Namespace, learner: Learner, tree: Path
) -> dict[str, float]:
    """Time a batch in the bare network, and in learners of other looks.

    Returns:
        Seconds of ``bare``, and of ``predict`` and ``teach`` of the learner and of
        those of other looks.
    """
    learners = {
        "": learner,
        WHOLE: taught(options, [1.0], tree),
        SETTLED: settled(learner),
    }
    batch = noise(options.batch)
    functions = {"bare": partial(bare, learner, noise_tensor(options.batch))}
    for name, candidate in learners.items():
        # Of a copy: the first answer after a lesson solves anew, which is timed apart.
        pupil = copy.deepcopy(candidate)
        functions[f"predict{name}"] = partial(candidate.predict, batch)
        functions[f"teach{name}"] = partial(pupil.teach, batch, "class0")
    return fastest(functions, options.repeats, clock_of(options))


@dataclass(frozen=True)
class Processes:
    """What new processes cost.

    Attributes:
        seconds: of a first answer, and of torch with the network alone.
        predict_bytes: peak of ``crumb predict`` above that of torch alone.
        teach_bytes: peak of ``crumb teach`` above that of torch alone.
    """

    seconds: dict[str, float]
    predict_bytes: float
    teach_bytes: float


def measure_processes(
    options: argparse.Namespace, model: Path, tree: Path
) -> Processes:
    """Time a first answer in a new process, and measure memory."""
    threads = ("--threads", options.threads)
    photo = next(tree.rglob("*.jpg"))
    peaks = []

    def predict() -> None:
        words = ("predict", model, photo, *threads)
        peaks.append(in_new_process("-c", CLI + PEAK, *words))

    functions = {
        "torch": partial(in_new_process, "-c", BARE, options.threads, options.backbone),
        "predict": predict,
    }
    seconds = fastest(functions, options.repeats, clock_of(options))
    alone = in_new_process("-c", "import torch\n" + PEAK)
    words = ("teach", model, tree, "--progress", "false", *threads)
    teach_peak = in_new_process("-c", CLI + PEAK, *words)
    return Processes(seconds, max(peaks) - alone, teach_peak - alone)


def address_of(server: subprocess.Popen) -> tuple[str, str]:
    """Host and port, and the token, that ``crumb serve`` prints."""
    for line in iter(server.stdout.readline, ""):
        if line.startswith("Open "):
            address, _, token = line.split()[1].partition("/?token=")
            return address.partition("//")[2], token
    raise RuntimeError("crumb serve ended without an address")


def ask(host: str, token: str, photo: bytes) -> None:
    """Ask a server about a photo, one time after the other."""
    client = http.client.HTTPConnection(host)
    for _ in range(ANSWERS):
        client.request("POST", "/predict", photo, {"X-Crumb-Token": token})
        response = client.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"crumb serve answered {response.status}: {text!r}")
    client.close()


def time_answers(
    options: argparse.Namespace, learner: Learner, model: Path, photo: bytes
) -> dict[str, float]:
    """Seconds of an answer of ``crumb serve``, and of the bare network on an image."""
    pixels = noise_tensor(1)

    def run_bare() -> None:
        for _ in range(ANSWERS):
            bare(learner, pixels)

    command = [sys.executable, "-c", CLI, "serve", str(model), "--port", "0"]
    command += ["--threads", str(options.threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            host, token = address_of(server)
            functions = {"answer": partial(ask, host, token, photo), "bare": run_bare}
            seconds = fastest(functions, options.repeats, clock_of(options))
        finally:
            server.kill()
    return {name: total / ANSWERS for name, total in seconds.items()}


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


class SingleLessons:
    """Lessons of one image, without the time of the network.

    Attributes:
        learner: that is taught.
    """

    def __init__(self, options: argparse.Namespace):
        self.learner = Learner(
            options.method, options.backbone, None, 224, looks=options.looks
        )
        self.learner.use_runtime("torch")
        classifier = self.learner._classifier
        self._features = DrawnFeatures(classifier.length * classifier.looks.views)
        self.learner._compute = self._features.compute
        self._photo = Image.new("RGB", (8, 8))

    def seconds(self, number: int, answer: bool) -> float:
        """CPU seconds of a lesson of a class, and of an answer after it if wanted."""
        self._features.number = number

        def teach_and_ask() -> None:
            self.learner.teach(self._photo, f"class {number}", new_class=True)
            if answer:
                self.learner.predict(self._photo)

        return cpu_seconds(teach_and_ask)


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def means_before(
    seconds: list[float], counts: list[int], name: str
) -> dict[str, float]:
    """The mean seconds of the last lessons before each of some numbers of lessons."""
    means = {}
    for count in counts:
        last_seconds = seconds[count - AVERAGED : count]
        means[f"{name}_after_{count}_seconds"] = float(np.mean(last_seconds))
    return means


def time_lessons(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Measure single lessons after many others, without the time of the network.

    Args:
        options: the command line's; `lessons` and `one_by_one` are numbers of lessons.
        folder: where the learner is saved, to count its bytes.

    Returns:
        CPU seconds of a lesson and an answer, ``lesson_after_N_seconds``, of a lesson of
        a new class, ``class_after_N_seconds``, and of an undo, ``undo_last_seconds``;
        and the bytes for undo by those learned, ``kept_over_learned``.
    """
    lessons = SingleLessons(options)
    first_answer = min(options.lessons) - AVERAGED
    seconds = []
    for lesson in range(max(options.lessons)):
        number = lesson % LESSON_CLASSES
        seconds.append(lessons.seconds(number, answer=lesson >= first_answer))
    figures = means_before(seconds, options.lessons, "lesson")
    figures["undo_last_seconds"] = cpu_seconds(copy.deepcopy(lessons.learner).undo)
    path = folder / "lessons.safetensors"
    lessons.learner.save(path, weights=False)
    learned = lessons.learner.bytes
    figures["kept_over_learned"] = (path.stat().st_size - learned) / learned
    one_by_one = SingleLessons(options)
    seconds = []
    for number in range(max(options.one_by_one)):
        seconds.append(one_by_one.seconds(number, answer=False))
    return figures | means_before(seconds, options.one_by_one, "class")


def figures_of(
    batch: dict[str, float],
    process: Processes,
    answers: dict[str, float],
    lessons: dict[str, float],
) -> dict[str, float]:
    """The figures that the docstring of this script lists."""
    figures = {}
    for name in ("predict", "teach"):
        total = batch[f"{name}{WHOLE}"]
        figures[f"{name}_over_bare"] = batch[name] / batch["bare"]
        figures[f"{name}_over_whole"] = batch[name] / total
        figures[f"{name}_settled"] = batch[f"{name}{SETTLED}"] / total
    seconds = process.seconds
    figures["cold_start_over_torch"] = seconds["predict"] / seconds["torch"]
    figures["predict_bytes"] = process.predict_bytes
    figures["teach_bytes"] = process.teach_bytes
    figures["answer_over_bare"] = answers["answer"] / answers["bare"]
    figures["answers_per_second"] = 1 / answers["answer"]
    return figures | lessons


def line_of(name: str, seconds: dict[str, float]) -> str:
    """A line of times for people."""
    texts = [f"{1e3 * value:.0f} ms {step}" for step, value in seconds.items()]
    return f"{name}  " + "  ".join(texts)


def main() -> None:
    parser = bench_parser(__doc__, threads=1)
    add = parser.add_argument
    add("--method", default="recommended", help="method of the learner")
    add("--backbone", default="squeezenet1_0", help="network, with random weights")
    add(
        "--looks",
        type=float,
        nargs="+",
        default=LOOKS,
        help="sides of the squares looked at",
    )
    add("--batch", type=int, default=64, help="images of a batch")
    add(
        "--lessons",
        type=int,
        nargs="+",
        default=[50, 290],
        help="numbers of lessons of one image after which one is timed",
    )
    add(
        "--one-by-one",
        type=int,
        nargs="+",
        default=[100, 500],
        help="numbers of classes after which a lesson of a further one is timed",
    )
    add("--quick", action="store_true", help="one round, small batches")
    options = parser.parse_args()
    photos_of_class = 8
    if options.quick:
        options.batch = 8
        options.repeats = 1
        options.lessons = [10]
        options.one_by_one = [10]
        photos_of_class = 2
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "mine.safetensors"
        tree = photos(Path(folder) / "photos", CLASSES, 1, photos_of_class, SIDE)
        learner = taught(options, options.looks, tree)
        learner.save(model)
        photo = next(tree.rglob("*.jpg")).read_bytes()
        batch = time_batches(options, learner, tree)
        process = measure_processes(options, model, tree)
        answers = time_answers(options, learner, model, photo)
        lessons = time_lessons(options, Path(folder))
    setting = f"{options.threads} threads, {options.method}, {options.backbone}"
    lines = [
        f"{setting}, {CLASSES} classes",
        line_of(f"batch of {options.batch}", batch),
        line_of("cold start", process.seconds),
        line_of("crumb serve", answers),
        "lessons  "
        + "  ".join(f"{value:.3f} {name}" for name, value in lessons.items()),
        f"{process.predict_bytes / 1e6:.0f} MB predict_bytes  "
        f"{process.teach_bytes / 1e6:.0f} MB teach_bytes",
    ]
    report(options, figures_of(batch, process, answers, lessons), lines)


if __name__ == "__main__":
    run_script(main, smoke_test=False)

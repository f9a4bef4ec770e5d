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
  lessons                 what a lesson of one image costs after many others, without
                          the network: see ``LessonCost``; a line for each number of
                          lessons, which stands in bench_learner.csv of --output, too
"""

import argparse
import copy
import http.client
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from support.bench import (
    bench_parser,
    clock_of,
    fastest,
    in_new_process,
    photos,
    report,
)
from support.common_options import run_script
from support.single_lessons import (
    HEADER,
    LessonCost,
    SingleLessons,
)

from crumb_avalanche.learner.learner import LOOKS, Learner
from crumb_avalanche.models.extraction import IMAGES_AT_A_TIME
from crumb_avalanche.models.penultimate import penultimate
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import format_table
from crumb_avalanche.system.process import keep_freed_memory

CLASSES = 20
FEW_CLASSES = 25  # of lessons of one image
ANSWERS = 20  # of crumb serve in a round
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


def taught_learner(
    options: argparse.Namespace, looks: list[float], tree: Path
) -> Learner:
    """A learner that was taught the photos of all classes."""
    learner = Learner(options.method, options.backbone, None, 224, looks=looks)
    learner.use_runtime("torch")
    learner.teach(tree)
    return learner


def settled_learner(learner: Learner) -> Learner:
    """A copy of a learner for which its first look is enough."""
    classifier = copy.deepcopy(learner._classifier)
    classifier.keep_looks([0])
    copied = copy.deepcopy(learner)
    copied._state = replace(learner._state, answering=classifier)
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
        WHOLE: taught_learner(options, [1.0], tree),
        SETTLED: settled_learner(learner),
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


def costs_of_lessons(options: argparse.Namespace) -> list[LessonCost]:
    """Measure lessons of one image after others, of few classes and of many.

    Args:
        options: the command line's; `lessons` and `many_lessons` are numbers of lessons
            after which one is measured.
    """
    learner = (options.method, options.backbone, options.looks)
    few = SingleLessons(FEW_CLASSES, True, *learner)
    many = SingleLessons(options.many_classes, False, *learner)
    return [*few.costs(options.lessons), *many.costs(options.many_lessons)]


def figures_of(
    batch: dict[str, float],
    process: Processes,
    answers: dict[str, float],
    lessons: list[LessonCost],
) -> dict[str, object]:
    """Compute the figures that the docstring of this script lists.

    Args:
        batch: seconds of a batch; see `time_batches`.
        process: seconds and bytes of new processes.
        answers: seconds of an answer of the server; see `time_answers`.
        lessons: costs of single lessons.
    """
    figures: dict[str, object] = {}
    for name in ("predict", "teach"):
        whole_image = batch[f"{name}{WHOLE}"]
        figures[f"{name}_over_bare"] = batch[name] / batch["bare"]
        figures[f"{name}_over_whole"] = batch[name] / whole_image
        figures[f"{name}_settled"] = batch[f"{name}{SETTLED}"] / whole_image
    seconds = process.seconds
    figures["cold_start_over_torch"] = seconds["predict"] / seconds["torch"]
    figures["predict_bytes"] = process.predict_bytes
    figures["teach_bytes"] = process.teach_bytes
    figures["answer_over_bare"] = answers["answer"] / answers["bare"]
    figures["answers_per_second"] = 1 / answers["answer"]
    figures["lessons"] = [asdict(cost) for cost in lessons]
    return figures


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
        default=[10, 50, 290],
        help="numbers of lessons of 25 classes after which one is timed",
    )
    add("--many-classes", type=int, default=1000, help="of lessons of one image")
    add(
        "--many-lessons",
        type=int,
        nargs="+",
        default=[500, 1000, 10_000],
        help="numbers of their lessons after which one is timed",
    )
    add("--only-lessons", action="store_true", help="measure lessons alone")
    add("--output", help="folder of bench_learner.csv; default none is written")
    add("--quick", action="store_true", help="one round, small batches")
    options = parser.parse_args()
    photos_of_class = 8
    if options.quick:
        options.batch = 8
        options.repeats = 1
        options.lessons = [10]
        options.many_classes = 6
        options.many_lessons = [8]
        photos_of_class = 2
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    lessons = costs_of_lessons(options)
    rows = [cost.cells for cost in lessons]
    if options.output:
        write_csv(Path(options.output) / "bench_learner.csv", [HEADER, *rows])
    tables = [f"{options.threads} threads, {options.method}, {options.backbone}"]
    tables.append(format_table(HEADER, rows))
    if options.only_lessons:
        report(options, [asdict(cost) for cost in lessons], tables)
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "mine.safetensors"
        tree = photos(Path(folder) / "photos", CLASSES, 1, photos_of_class, SIDE)
        learner = taught_learner(options, options.looks, tree)
        learner.save(model)
        photo = next(tree.rglob("*.jpg")).read_bytes()
        batch = time_batches(options, learner, tree)
        process = measure_processes(options, model, tree)
        answers = time_answers(options, learner, model, photo)
    lines = [
        *tables,
        f"{CLASSES} classes",
        line_of(f"batch of {options.batch}", batch),
        line_of("cold start", process.seconds),
        line_of("crumb serve", answers),
        f"{process.predict_bytes / 1e6:.0f} MB predict_bytes  "
        f"{process.teach_bytes / 1e6:.0f} MB teach_bytes",
    ]
    report(options, figures_of(batch, process, answers, lessons), lines)


if __name__ == "__main__":
    run_script(main, smoke_test=False)

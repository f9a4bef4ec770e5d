"""Measure a learner's speed and memory, each beside the bare network or beside torch alone.

    python experiments/bench_learner.py

Ratios are printed last, because times depend on the machine; with --json, they alone:
  predict_over_bare       time of Learner.predict on a batch, with 20 classes taught / time of the eager float32 network
                          (F, and P below the head) on the same pixels; the solution after a lesson is not part of it
  teach_over_bare         time of Learner.teach of a batch of one of the 20 classes / the same
  cold_start_over_torch   time of the process "crumb predict MODEL photo.jpg" / time of a process that imports torch and
                          torchvision and runs the network once
  predict_bytes           peak of resident memory of "crumb predict", minus that of a process that imports torch
  teach_bytes             the same for "crumb teach" of a folder of photos
  late_over_early_lessons time of the last 5 % of lessons of many classes of 3 images / time of the second 5 %, which a
                          copy of the learner takes in turn with them
  answer_over_bare        time of an answer of "crumb serve" to a photo of 640 x 480 pixels, of a client that sends one
                          after the other / time of the bare network on one image
  answers_per_second      of that client
  watched_per_second      answers of Learner.watch to a video of 640 x 480 pixels that is played at 30 frames a second,
                          with the fastest runtime
  watch_growth_bytes      growth of resident memory in its second half
"""

import argparse
import copy
import http.client
import io
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from support.bench import bench_parser, clock_of, fastest, report, seconds
from support.memory import resident

from benchmarks_toybox_ilab.tables.text import safe_output
from crumb_avalanche.learner.learner import LOOKS, Learner
from crumb_avalanche.models.extraction import IMAGES_AT_A_TIME
from crumb_avalanche.models.penultimate import penultimate

CLASSES = 20
ANSWERS = 20  # of crumb serve in a round
RATE = 30  # frames a second of the video that is watched
# Not resource.getrusage, whose peak includes that of the process that starts this one.
PEAK = "import sys; sys.path.insert(0, {!r}); from support.memory import resident; print(resident('VmHWM'))"
PEAK = PEAK.format(str(Path(__file__).parent))
CLI = "import sys; from crumb_avalanche.cli import main; assert main(sys.argv[1:]) == 0; " + PEAK
BARE = (
    "import sys, torch, torchvision; torch.set_num_threads(int(sys.argv[1]))\n"
    "network = getattr(torchvision.models, sys.argv[2])().eval()\n"
    "with torch.no_grad(): network(torch.zeros(1, 3, 224, 224))\n" + PEAK
)


def photos(number: int, count: int, size: int) -> np.ndarray:
    """Noisy images of four patches whose colours belong to a class, ``(count, size, size, 3)`` uint8."""
    random = np.random.default_rng(number)
    patches = random.integers(0, 256, (2, 2, 3)).repeat(size // 2, 0).repeat(size // 2, 1)
    return np.clip(patches + random.normal(0, 25, (count, size, size, 3)), 0, 255).astype(np.uint8)


@torch.no_grad()
def bare(learner: Learner, pixels: torch.Tensor) -> None:
    """Run F, and P below the head, in eager float32, in parts that fit the caches."""
    model = learner.network.model
    for some in pixels.split(IMAGES_AT_A_TIME):
        images = (some.float() / 255 - model.pixel_mean) / model.pixel_std
        maps = model.feature_extractor(images.contiguous(memory_format=torch.channels_last))
        penultimate(model, maps * model.feature_scale)


def python(code: str, *arguments: object) -> int:
    """Run code in a new process; return the peak of its resident memory in bytes."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stderr}")
    return int(done.stdout.split()[-1])


def taught(options: argparse.Namespace) -> Learner:
    """A learner that was taught 20 classes."""
    learner = Learner(options.method, options.backbone, None, 224, looks=options.looks)
    learner.use_runtime("torch")
    for number in range(CLASSES):
        learner.teach(photos(number, 2 if options.quick else 8, 224), f"class {number}")
    return learner


def speed(options: argparse.Namespace) -> dict[str, float]:
    """Time a batch in ``predict``, in ``teach`` and in the bare network."""
    learner = taught(options)
    other = copy.deepcopy(learner)  # the first answer after a lesson solves anew, which is timed apart
    batch = photos(0, options.batch, 224)
    pixels = torch.from_numpy(batch).permute(0, 3, 1, 2)
    functions = {
        "bare": lambda: bare(learner, pixels),
        "predict": lambda: learner.predict(batch),
        "teach": lambda: other.teach(batch, "class 0"),
    }
    return fastest(functions, options.repeats, clock_of(options))


def processes(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Time a first answer in a new process, and measure memory of answers and of lessons."""
    model, tree = folder / "mine.safetensors", folder / "photos"
    for number in range(CLASSES):
        images = photos(number, 2 if options.quick else 8, 224)
        (tree / f"class {number}").mkdir(parents=True)
        for place, image in enumerate(images):
            Image.fromarray(image).resize((640, 480)).save(tree / f"class {number}" / f"{place}.jpg")
    taught(options).save(model)
    threads = ("--threads", options.threads)
    peaks = []

    photo = tree / "class 0" / "0.jpg"
    functions = {
        "torch": lambda: python(BARE, options.threads, options.backbone),
        "predict": lambda: peaks.append(python(CLI, "predict", model, photo, *threads)),
    }
    times = fastest(functions, options.repeats, clock_of(options))
    alone = python("import torch\n" + PEAK)
    teach = python(CLI, "teach", model, tree, "--progress", "false", *threads)
    return {**times, "predict_bytes": max(peaks) - alone, "teach_bytes": teach - alone}


def served(options: argparse.Namespace, model: Path) -> dict[str, float]:
    """Time an answer of ``crumb serve``, and the bare network on one image."""
    learner = Learner.load(model)
    pixels = torch.from_numpy(photos(0, 1, learner.network.image_size)).permute(0, 3, 1, 2)
    with io.BytesIO() as file:
        Image.fromarray(photos(0, 1, 224)[0]).resize((640, 480)).save(file, "JPEG", quality=90)
        photo = file.getvalue()
    command = ["serve", str(model), "--port", "0", "--threads", str(options.threads)]
    command = [sys.executable, "-c", "import sys; from crumb_avalanche.cli import main; main(sys.argv[1:])", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            lines = iter(server.stdout.readline, "")
            opened = next(line for line in lines if line.startswith("Open ")).split()[1]
            address, _, token = opened.partition("/?token=")

            def answers() -> None:
                client = http.client.HTTPConnection(address.partition("//")[2])
                for _ in range(ANSWERS):
                    client.request("POST", "/predict", photo, {"X-Crumb-Token": token})
                    response = client.getresponse()
                    text = response.read()
                    if response.status != 200:
                        raise RuntimeError(f"crumb serve answered {response.status}: {text!r}")
                client.close()

            def network() -> None:
                for _ in range(ANSWERS):
                    bare(learner, pixels)

            return fastest({"answer": answers, "bare": network}, options.repeats, clock_of(options))
        finally:
            server.kill()


def watched(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Count the answers to a video that is played, and measure what memory they keep."""
    import av

    learner, path = taught(options), folder / "played.mp4"
    learner.use_runtime("auto")
    length = 2 if options.quick else options.seconds
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 640, 480, "yuv420p"
        for second in range(length):
            image = np.asarray(Image.fromarray(photos(second % CLASSES, 1, 224)[0]).resize((640, 480)))
            for _ in range(RATE):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    answers = [(answer.time, resident("VmRSS")) for answer in learner.watch(path, live=True)]
    half = [memory for seconds, memory in answers if seconds > length / 2]
    return {"watched_per_second": len(answers) / length, "watch_growth_bytes": half[-1] - half[0]}


def many_classes(options: argparse.Namespace) -> dict[str, float]:
    """Time early and late lessons of many classes of 3 small images."""
    learner = Learner(options.method, "small_cnn", None, 32, 64_000_000, looks=options.looks)

    def lesson(learner: Learner, number: int) -> float:
        images = photos(number, 3, 32)
        return seconds(lambda: learner.teach(images, f"class {number}"), clock_of(options))

    few = options.many // 20
    for number in range(few):
        lesson(learner, number)
    young = copy.deepcopy(learner)
    for number in range(few, options.many - few):
        lesson(learner, number)
    times = [(lesson(young, few + place), lesson(learner, options.many - few + place)) for place in range(few)]
    early, late = map(sum, zip(*times))
    return {"early": early, "late": late}


def main() -> None:
    parser = bench_parser(__doc__, threads=1)
    parser.add_argument("--method", default="recommended", help="method of the learner")
    parser.add_argument("--backbone", default="squeezenet1_0", help="network, with random weights")
    parser.add_argument("--looks", type=float, nargs="+", default=LOOKS, help="sides of the squares looked at")
    parser.add_argument("--batch", type=int, default=64, help="images of a batch")
    parser.add_argument("--many", type=int, default=2000, help="number of classes of the last measurement")
    parser.add_argument("--seconds", type=int, default=30, help="length of the video that is watched")
    parser.add_argument("--quick", action="store_true", help="one round, small batches, 100 classes")
    options = parser.parse_args()
    if options.quick:
        options.batch, options.many, options.repeats = 8, 100, 1
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    batch = speed(options)
    with tempfile.TemporaryDirectory() as folder:
        process = processes(options, Path(folder))
        answers = served(options, Path(folder) / "mine.safetensors")
        watch = watched(options, Path(folder))
    lessons = many_classes(options)
    memory = {name: process.pop(name) for name in ("predict_bytes", "teach_bytes")}
    figures = {
        "predict_over_bare": batch["predict"] / batch["bare"],
        "teach_over_bare": batch["teach"] / batch["bare"],
        "cold_start_over_torch": process["predict"] / process["torch"],
        **memory,
        "late_over_early_lessons": lessons["late"] / lessons["early"],
        "answer_over_bare": answers["answer"] / answers["bare"],
        "answers_per_second": ANSWERS / answers["answer"],
        **watch,
    }
    lines = [f"{options.threads} threads, {options.method}, {options.backbone}, {CLASSES} classes"]
    answers = {name: some / ANSWERS for name, some in answers.items()}
    measured = {f"batch of {options.batch}": batch, "cold start": process, "crumb serve": answers}
    for name, times in {**measured, f"{options.many} classes": lessons}.items():
        lines.append(f"{name}  " + "  ".join(f"{1e3 * some:.0f} ms {what}" for what, some in times.items()))
    report(options, figures, [*lines, "  ".join(f"{some / 1e6:.0f} MB {name}" for name, some in memory.items())])


if __name__ == "__main__":
    with safe_output():
        main()

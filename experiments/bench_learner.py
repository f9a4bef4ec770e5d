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
  ..._two_looks           the same of a learner with two looks, 0.75 and 0.5
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
"""

import argparse
import copy
import http.client
import subprocess
import sys
import tempfile
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

from crumb_avalanche.learner.learner import LOOKS, Learner
from crumb_avalanche.models.extraction import IMAGES_AT_A_TIME
from crumb_avalanche.models.penultimate import penultimate
from crumb_avalanche.system.process import keep_freed_memory

CLASSES = 20
ANSWERS = 20  # of crumb serve in a round
SIDE = 480  # pixels of the photos
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
    """Run F, and P below the head, in eager float32, in parts that fit the caches."""
    model = learner.network.model
    for some in pixels.split(IMAGES_AT_A_TIME):
        images = (some.float() / 255 - model.pixel_mean) / model.pixel_std
        maps = model.feature_extractor(
            images.contiguous(memory_format=torch.channels_last)
        )
        penultimate(model, maps * model.feature_scale)


def noise(count: int) -> np.ndarray:
    """Images of noise, ``(count, 224, 224, 3)`` uint8."""
    return np.random.default_rng(0).integers(0, 256, (count, 224, 224, 3), np.uint8)


def taught(options: argparse.Namespace, looks: list[float], tree: Path) -> Learner:
    """A learner that was taught the photos of all classes."""
    learner = Learner(options.method, options.backbone, None, 224, looks=looks)
    learner.use_runtime("torch")
    learner.teach(tree)
    return learner


def speed(
    options: argparse.Namespace, learner: Learner, tree: Path
) -> dict[str, float]:
    """Time a batch in the bare network, and in ``predict`` and ``teach`` of the learner and of those of other looks."""
    batch = noise(options.batch)
    functions = {
        "bare": partial(bare, learner, torch.from_numpy(batch).permute(0, 3, 1, 2))
    }
    others = {
        ", whole image": taught(options, [1.0], tree),
        ", two looks": taught(options, [0.75, 0.5], tree),
    }
    for name, one in {"": learner, **others}.items():
        functions[f"predict{name}"] = partial(one.predict, batch)
        # Of a copy: the first answer after a lesson solves anew, which is timed apart.
        functions[f"teach{name}"] = partial(copy.deepcopy(one).teach, batch, "class0")
    return fastest(functions, options.repeats, clock_of(options))


def processes(options: argparse.Namespace, model: Path, tree: Path) -> dict[str, float]:
    """Time a first answer in a new process, and measure memory of answers and of lessons."""
    threads, peaks = ("--threads", options.threads), []
    photo = next(tree.rglob("*.jpg"))
    functions = {
        "torch": lambda: in_new_process("-c", BARE, options.threads, options.backbone),
        "predict": lambda: peaks.append(
            in_new_process("-c", CLI + PEAK, "predict", model, photo, *threads)
        ),
    }
    times = fastest(functions, options.repeats, clock_of(options))
    alone = in_new_process("-c", "import torch\n" + PEAK)
    taught = in_new_process(
        "-c", CLI + PEAK, "teach", model, tree, "--progress", "false", *threads
    )
    return {**times, "predict_bytes": max(peaks) - alone, "teach_bytes": taught - alone}


def served(
    options: argparse.Namespace, learner: Learner, model: Path, photo: bytes
) -> dict[str, float]:
    """Time answers of ``crumb serve``, and the bare network on as many images."""
    pixels = torch.from_numpy(noise(1)).permute(0, 3, 1, 2)
    command = [
        sys.executable,
        "-c",
        CLI,
        "serve",
        str(model),
        "--port",
        "0",
        "--threads",
        str(options.threads),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            opened = next(
                line
                for line in iter(server.stdout.readline, "")
                if line.startswith("Open ")
            ).split()[1]
            address, _, token = opened.partition("/?token=")

            def answers() -> None:
                client = http.client.HTTPConnection(address.partition("//")[2])
                for _ in range(ANSWERS):
                    client.request("POST", "/predict", photo, {"X-Crumb-Token": token})
                    response = client.getresponse()
                    text = response.read()
                    if response.status != 200:
                        raise RuntimeError(
                            f"crumb serve answered {response.status}: {text!r}"
                        )
                client.close()

            functions = {
                "answer": answers,
                "bare": lambda: [bare(learner, pixels) for _ in range(ANSWERS)],
            }
            return fastest(functions, options.repeats, clock_of(options))
        finally:
            server.kill()


def main() -> None:
    parser = bench_parser(__doc__, threads=1)
    parser.add_argument("--method", default="recommended", help="method of the learner")
    parser.add_argument(
        "--backbone", default="squeezenet1_0", help="network, with random weights"
    )
    parser.add_argument(
        "--looks",
        type=float,
        nargs="+",
        default=LOOKS,
        help="sides of the squares looked at",
    )
    parser.add_argument("--batch", type=int, default=64, help="images of a batch")
    parser.add_argument("--quick", action="store_true", help="one round, small batches")
    options = parser.parse_args()
    if options.quick:
        options.batch, options.repeats = 8, 1
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "mine.safetensors"
        tree = photos(
            Path(folder) / "photos", CLASSES, 1, 2 if options.quick else 8, SIDE
        )
        learner = taught(options, options.looks, tree)
        learner.save(model)
        batch = speed(options, learner, tree)
        process = processes(options, model, tree)
        answers = served(
            options, learner, model, next(tree.rglob("*.jpg")).read_bytes()
        )
    memory = {name: process.pop(name) for name in ("predict_bytes", "teach_bytes")}
    both = ("predict", "teach")
    figures = {
        **{f"{name}_over_bare": batch[name] / batch["bare"] for name in both},
        **{
            f"{name}_over_whole": batch[name] / batch[f"{name}, whole image"]
            for name in both
        },
        **{
            f"{name}_two_looks": batch[f"{name}, two looks"]
            / batch[f"{name}, whole image"]
            for name in both
        },
        "cold_start_over_torch": process["predict"] / process["torch"],
        **memory,
        "answer_over_bare": answers["answer"] / answers["bare"],
        "answers_per_second": ANSWERS / answers["answer"],
    }
    lines = [
        f"{options.threads} threads, {options.method}, {options.backbone}, {CLASSES} classes"
    ]
    answers = {name: some / ANSWERS for name, some in answers.items()}
    for name, times in {
        f"batch of {options.batch}": batch,
        "cold start": process,
        "crumb serve": answers,
    }.items():
        lines.append(
            f"{name}  "
            + "  ".join(f"{1e3 * some:.0f} ms {what}" for what, some in times.items())
        )
    report(
        options,
        figures,
        [
            *lines,
            "  ".join(f"{some / 1e6:.0f} MB {name}" for name, some in memory.items()),
        ],
    )


if __name__ == "__main__":
    run_script(main)

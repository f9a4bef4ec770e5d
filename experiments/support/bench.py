"""The harness of benchmarks.

Options, functions that take turns, made-up photos, new processes, memory (Linux).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

Functions = Mapping[str, Callable[[], object]]


def bench_parser(
    doc: str, threads: int = 2, repeats: int = 5, json: bool = True
) -> argparse.ArgumentParser:
    """A parser with the options of benchmarks; a script's docstring describes it."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=form, allow_abbrev=False
    )
    parser.add_argument("--threads", type=int, default=threads, help="CPU threads")
    parser.add_argument(
        "--repeats",
        type=int,
        default=repeats,
        help="turns of each, of which the fastest counts",
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="CPU time rather than elapsed: for a busy machine",
    )
    if json:
        parser.add_argument(
            "--json",
            action="store_true",
            help="print only the figures, as one JSON object",
        )
    return parser


def clock_of(options: argparse.Namespace) -> Callable[[], float]:
    """The clock: elapsed seconds, or with --cpu-time those of the CPU.

    They are of this process and of those that it started.
    """
    return (lambda: sum(os.times()[:4])) if options.cpu_time else time.perf_counter


def seconds(
    function: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of one call."""
    start = clock()
    function()
    return clock() - start


def fastest(
    functions: Functions, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds of the fastest turn of each after a first one.

    All take turns, so that a busy moment hits all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(1 + repeats):
        for name, function in functions.items():
            times[name].append(seconds(function, clock))
    return {name: min(durations[1:]) for name, durations in times.items()}


def report(
    options: argparse.Namespace, figures: object, lines: Sequence[str] = ()
) -> None:
    """Print lines for people, and figures as JSON; with --json the figures alone."""
    if not options.json:
        print("\n".join(lines))
    print(json.dumps(figures))


def photos(
    folder: Path, classes: int, clips: int, images: int, pixels: int, noise: float = 25
) -> Path:
    """Write class/object/clip folders of JPEG photos.

    They show smooth patches, whose colours belong to a class, with noise.

    Args:
        folder: where the folders of the classes are made.
        classes: number of classes.
        clips: clips of each class, each of an object of its own.
        images: photos of each clip.
        pixels: side of a photo.
        noise: standard deviation of the noise, of 255.

    Returns:
        `folder`.
    """
    for label in range(classes):
        patches = _patches_of_class(label, pixels)
        for clip in range(clips):
            clip_folder = folder / f"class{label}" / f"object{clip}" / "clip"
            clip_folder.mkdir(parents=True)
            random = np.random.default_rng([label, clip])
            for image in range(images):
                values = patches + random.normal(0, noise, patches.shape)
                photo = Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))
                photo.save(clip_folder / f"{image:03d}.jpg", quality=90)
    return folder


def _patches_of_class(label: int, pixels: int) -> np.ndarray:
    """Draw smooth patches, ``(pixels, pixels, 3)`` float32 from 0 to 255."""
    random = np.random.default_rng(label)
    colours = random.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    patches = Image.fromarray(colours)
    smooth = patches.resize((pixels, pixels), Image.Resampling.BICUBIC)
    return np.asarray(smooth, np.float32)


def in_new_process(script: str, *arguments: object, **environment: str) -> dict:
    """Run a script in a new process; read its last line as JSON.

    No memory of another measurement is resident there.
    """
    command = [sys.executable, script, *map(str, arguments)]
    process = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}
    )
    if process.returncode:
        raise RuntimeError(f"{command} failed: {process.stderr}")
    return json.loads(process.stdout.splitlines()[-1])


def resident(field: str) -> int:
    """Read ``VmRSS``, the resident bytes of this process, or ``VmHWM``, their peak."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Set ``VmHWM`` to the resident memory."""
    Path("/proc/self/clear_refs").write_text("5")

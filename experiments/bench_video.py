"""Measure `crumb run --preset recommended` on videos, from files to result, beside another version of this library.

    git worktree add ../before COMMIT
    python experiments/bench_video.py --images ETH80 --weights WEIGHTS --before ../before

Encodes the photos of class/object folders as videos class/object/clip.mp4 of 480 pixels and 5 frames a second, and
runs each version on a copy of them in processes of its own, without a feature cache; the fastest run of each counts.
With --json, one object: {"before": seconds, "now": seconds, "frames": number, "ratio": before / now,
"accuracy": {"before": percent, "now": percent}}.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import av
from PIL import Image
from support.bench import bench_parser, clock_of, report

from benchmarks_toybox_ilab.tables.text import safe_output

SIDE, FPS = 480, 5


def encoded(images: Path, folder: Path, objects: int) -> int:
    """Write a video of each object, at most so many of a class; return the number of frames."""
    frames = 0
    for place in sorted(path for path in images.glob("*/*") if path.is_dir()):
        target = folder / place.parent.name / place.name / "clip.mp4"
        if len(list(target.parent.parent.glob("*"))) >= objects:
            continue
        target.parent.mkdir(parents=True)
        with av.open(str(target), "w") as video:
            stream = video.add_stream("libx264", rate=FPS, options={"crf": "18"})
            stream.width = stream.height = SIDE
            stream.pix_fmt = "yuv420p"
            for path in sorted(place.rglob("*.[pj][np]g")):
                image = Image.open(path).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
                for packet in stream.encode(av.VideoFrame.from_image(image)):
                    video.mux(packet)
                frames += 1
            for packet in stream.encode():
                video.mux(packet)
    return frames


def run(checkout: Path, videos: Path, options: argparse.Namespace, *more: str) -> tuple[float, float]:
    """Run a version on a copy of the videos; return seconds and final accuracy in percent."""
    with tempfile.TemporaryDirectory() as folder:
        root, output = Path(folder) / "videos", Path(folder) / "run"
        for video in videos.rglob("*.mp4"):
            copied = root / video.relative_to(videos)
            copied.parent.mkdir(parents=True)
            copied.hardlink_to(video)
        command = [sys.executable, "-m", "crumb_avalanche.cli", "run", "--benchmark", "clip_folder", "--preset"]
        command += ["recommended", "--dataset-root", str(root), "--output", str(output), "--fps", str(FPS)]
        command += ["--weights", options.weights, "--threads", str(options.threads), "--progress", "false", *more]
        environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": str(options.threads)}
        clock = clock_of(options)
        start = clock()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        taken = clock() - start
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
        return taken, json.loads((output / "result.json").read_text())["final_accuracy"]


def main() -> None:
    parser = bench_parser(__doc__, repeats=2)
    parser.add_argument("--images", type=Path, required=True, help="folder of class/object folders of photos")
    parser.add_argument("--weights", required=True, help="weight file, or none")
    parser.add_argument("--before", type=Path, required=True, help="checkout of the other version")
    parser.add_argument("--objects", type=int, default=6, help="most objects of a class")
    parser.add_argument("--runtime", default="auto", help="what runs F in this version")
    options = parser.parse_args()
    if options.weights != "none":
        options.weights = str(Path(options.weights).resolve())
    versions = {"before": (options.before,), "now": (Path(__file__).parents[1], "--runtime", options.runtime)}
    seconds: dict[str, float] = {}
    accuracy: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        frames = encoded(options.images, Path(folder), options.objects)
        if not frames:
            parser.error(f"{options.images} has no class/object folders of photos")
        for _ in range(options.repeats):
            for name, (checkout, *more) in versions.items():
                taken, accuracy[name] = run(checkout, Path(folder), options, *more)
                seconds[name] = min(taken, seconds.get(name, taken))
    figures = {**seconds, "frames": frames, "ratio": seconds["before"] / seconds["now"], "accuracy": accuracy}
    report(options, figures, [f"{frames:,} frames: {seconds['before']:.1f} s before, {seconds['now']:.1f} s now"])


if __name__ == "__main__":
    with safe_output():
        main()

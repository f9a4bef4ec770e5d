"""Record a session of ``crumb serve`` in Chromium as a moving picture, docs/page.webp.

    python docs/record_page.py --weights squeezenet1_0.npz

The camera of the browser plays rendered shapes: two classes are taught in two lessons each, and then shown in other
light and motion. What the page answers is what the learner answers. Needs the extra "serve" and Chromium.
"""

import argparse
import base64
import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from camera_browser import PROGRAM, Chromium, write_y4m  # noqa: E402

from benchmarks_toybox_ilab.datasets.toy_shapes.scene import render  # noqa: E402

RATE, SECONDS, SIDE = 10, 4, 360  # of the film: frames a second, seconds of a clip, pixels of its height
# Class, object and session of each clip: four lessons, then two that are only asked.
CLIPS = (("mug", 0, 0), ("key", 0, 0), ("mug", 0, 1), ("key", 0, 1), ("mug", 0, 3), ("key", 0, 3))
LESSONS, TAUGHT = 4, 1.5  # number, and seconds of each
PAUSE = 0.18  # seconds between pictures
WIDTH, HEIGHT, SHOWN = 1000, 760, 760  # of the page, and width of the picture in pixels
MOST_BYTES = 1_500_000
# The camera picture as 8 x 8 colours.
SEEN = """(() => {
  const canvas = document.createElement("canvas"), video = document.getElementById("video");
  canvas.width = canvas.height = 8;
  const context = canvas.getContext("2d");
  context.drawImage(video, 0, 0, 8, 8);
  return [...context.getImageData(0, 0, 8, 8).data].filter((value, place) => place % 4 < 3);
})()"""


def film() -> np.ndarray:
    """Render the film, ``(N, SIDE, 4 / 3 SIDE, 3)`` uint8, with plain margins."""
    count, width = RATE * SECONDS, SIDE * 4 // 3
    clips = [[np.asarray(render(*clip, frame, SIDE, count)) for frame in range(count)] for clip in CLIPS]
    frames = np.stack([frame for clip in clips for frame in clip])
    margin = (width - SIDE) // 2
    return np.pad(frames, ((0, 0), (0, 0), (margin, width - SIDE - margin), (0, 0)), mode="edge")


class Recorder:
    """Takes pictures of the page, each with the time at which it was taken.

    Args:
        browser: the browser.
        frames: the film.
    """

    def __init__(self, browser: Chromium, frames: np.ndarray):
        self.browser, self.pictures = browser, []
        small = [np.asarray(Image.fromarray(frame).resize((8, 8), Image.Resampling.BOX)) for frame in frames]
        self.small = np.stack(small).reshape(len(frames), -1).astype(float)

    def clip(self) -> int:
        """Number of the clip that the camera shows."""
        seen = np.array(self.browser.evaluate(SEEN), float)
        return int(np.abs(self.small - seen).mean(1).argmin()) // (RATE * SECONDS)

    def take(self) -> None:
        """Take a picture, if the last one is old enough."""
        if self.pictures and time.monotonic() < self.pictures[-1][0] + PAUSE:
            time.sleep(0.02)
            return
        data = base64.b64decode(self.browser.send("Page.captureScreenshot", format="png")["data"])
        self.pictures.append((time.monotonic(), Image.open(io.BytesIO(data)).convert("RGB")))

    def until(self, clip: int, kept: bool = True) -> None:
        """Wait until a clip begins; take pictures meanwhile if they are to be kept."""
        before = now = self.clip()
        while now != clip or before == clip:
            if kept:
                self.take()
            before, now = now, self.clip()

    def during(self, seconds: float) -> None:
        """Take pictures for some seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.take()

    def type(self, name: str) -> None:
        """Type a name into the page, letter by letter."""
        self.browser.click("#name")
        self.browser.evaluate("document.getElementById('name').select()")
        for letter in name:
            self.browser.send("Input.insertText", text=letter)
            self.take()


def record(recorder: Recorder, address: str) -> None:
    """Teach two classes, then ask."""
    browser = recorder.browser
    size = dict(width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
    browser.send("Emulation.setDeviceMetricsOverride", **size)
    browser.send("Page.navigate", url=address)
    browser.wait_for("document.readyState === 'complete' && !document.getElementById('none').hidden")
    recorder.take()
    browser.click("#camera")
    browser.wait_for("document.getElementById('video').videoWidth")
    for number, (name, _, _) in enumerate(CLIPS[:LESSONS]):
        recorder.type(name)
        recorder.until(number, kept=number > 0)
        browser.click("#teach")
        browser.wait_for("document.getElementById('count').className !== 'lead'")
        recorder.during(TAUGHT)
        browser.click("#teach")
        browser.wait_for("document.getElementById('teach-news').textContent.startsWith('Learned')")
        recorder.take()
    for number in (*range(LESSONS, len(CLIPS)), 0):
        recorder.until(number)


def write(pictures: list, path: Path) -> None:
    """Write pictures as an animated WebP; equal ones in a row are shown as one."""
    shown = [(pictures[0][0], pictures[0][1])]
    for moment, picture in pictures[1:]:
        if picture.tobytes() != shown[-1][1].tobytes():
            shown.append((moment, picture))
    ends = [moment for moment, _ in shown[1:]] + [pictures[-1][0] + 1.5]
    # A wait for the server is no more than a second long.
    lengths = [min(1000, max(40, round(1000 * (end - start)))) for (start, _), end in zip(shown, ends)]
    small = [picture.resize((SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS) for _, picture in shown]
    for quality in (80, 65, 50, 35, 20):
        small[0].save(path, save_all=True, append_images=small[1:], duration=lengths, loop=0, quality=quality, method=4)
        if path.stat().st_size <= MOST_BYTES:
            break
    print(f"{path}: {len(small)} pictures, {sum(lengths) / 1000:.0f} s, {path.stat().st_size:,} bytes")


def main() -> None:
    """Record a session."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", default="torchvision", help="weights, as for crumb serve")
    parser.add_argument("--output", default=str(ROOT / "docs" / "page.webp"), help="the file to write")
    chosen = parser.parse_args()
    if PROGRAM is None:
        sys.exit("there is no Chromium; install one")
    with tempfile.TemporaryDirectory() as folder:
        frames = film()
        write_y4m(f"{folder}/camera.y4m", frames, RATE)
        command = [sys.executable, "-m", "crumb_avalanche.cli", "serve", f"{folder}/mine.safetensors", "--port", "0"]
        server = subprocess.Popen([*command, "--weights", chosen.weights], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = next(found[1] for line in server.stdout if (found := re.match("Open (.*)", line)))
            with Chromium(f"{folder}/profile", f"{folder}/camera.y4m") as browser:
                recorder = Recorder(browser, frames)
                record(recorder, address)
        finally:
            server.terminate()
            server.wait()
    write(recorder.pictures, Path(chosen.output))


if __name__ == "__main__":
    main()

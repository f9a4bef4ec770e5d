"""Record a session of ``crumb serve`` in Chromium as a moving picture, docs/page.webp.

    python docs/record_page.py FRAMES

The camera of the browser plays FRAMES: a folder for each clip, in order of their names,
such as ``1-mug``, with its pictures. The first clips are lessons under their names, the
others are only asked. What the page answers is what the learner answers. Needs the
extras "serve", "onnx" and "weights", and Chromium.

The frames of docs/page.webp are scans of real objects of the YCB set (B. Calli and
others, 2015; CC BY 4.0), drawn on tables in photographed rooms (Poly Haven, CC0); each
clip begins with the empty table.
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

RATE = 5  # frames a second
LESSONS, TAUGHT, ASKED = (
    4,
    2.0,
    5.0,
)  # number of clips that are taught, and seconds of a lesson and of another clip
BEGUN = (
    2.0  # seconds until the object of a clip is in its place and has been answered for
)
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


class Recorder:
    """Takes pictures of the page, each with the time at which it was taken.

    Args:
        browser: the browser.
        clips: name and frames of each clip.
    """

    def __init__(self, browser: Chromium, clips: list):
        self.browser, self.pictures = browser, []
        self.names = [name for name, _ in clips]
        self.numbers = np.repeat(
            range(len(clips)), [len(frames) for _, frames in clips]
        )
        frames = np.concatenate([frames for _, frames in clips])
        small = [
            np.asarray(Image.fromarray(frame).resize((8, 8), Image.Resampling.BOX))
            for frame in frames
        ]
        self.small = np.stack(small).reshape(len(frames), -1).astype(float)

    def clip(self) -> int:
        """Number of the clip that the camera shows."""
        seen = np.array(self.browser.evaluate(SEEN), float)
        return int(self.numbers[np.abs(self.small - seen).mean(1).argmin()])

    def take(self) -> None:
        """Take a picture, if the last one is old enough."""
        if self.pictures and time.monotonic() < self.pictures[-1][0] + PAUSE:
            time.sleep(0.02)
            return
        data = base64.b64decode(
            self.browser.send("Page.captureScreenshot", format="png")["data"]
        )
        self.pictures.append(
            (time.monotonic(), Image.open(io.BytesIO(data)).convert("RGB"))
        )

    def until(self, clip: int) -> None:
        """Wait until a clip has begun."""
        before = now = self.clip()
        while now != clip or before == clip:
            time.sleep(0.1)
            before, now = now, self.clip()
        time.sleep(BEGUN)

    def during(self, seconds: float) -> None:
        """Take pictures for some seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.take()

    def type(self, name: str) -> None:
        """Type a name into the page."""
        self.browser.click("#name")
        self.browser.evaluate("document.getElementById('name').select()")
        self.browser.send("Input.insertText", text=name)


def record(recorder: Recorder, address: str) -> None:
    """Teach two classes, then ask."""
    browser = recorder.browser
    size = dict(width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
    browser.send("Emulation.setDeviceMetricsOverride", **size)
    browser.send("Page.navigate", url=address)
    browser.wait_for(
        "document.readyState === 'complete' && !document.getElementById('none').hidden",
        120,
    )
    recorder.take()
    browser.click("#camera")
    browser.wait_for("document.getElementById('video').videoWidth")
    for number, name in enumerate(recorder.names[:LESSONS]):
        recorder.type(name)
        recorder.until(number)
        recorder.take()
        browser.click("#teach")
        browser.wait_for("document.getElementById('count').className !== 'lead'", 60)
        recorder.during(TAUGHT)
        browser.click("#teach")
        browser.wait_for(
            "document.getElementById('teach-news').textContent.startsWith('Learned')",
            300,
        )
        recorder.take()
    for number in range(LESSONS, len(recorder.names)):
        recorder.until(number)
        recorder.during(ASKED)


def write(pictures: list, path: Path) -> None:
    """Write pictures as an animated WebP; equal ones in a row are shown as one."""
    in_order = [(pictures[0][0], pictures[0][1])]
    for moment, picture in pictures[1:]:
        if picture.tobytes() != in_order[-1][1].tobytes():
            in_order.append((moment, picture))
    ends = [moment for moment, _ in in_order[1:]] + [pictures[-1][0] + 1.5]
    # A wait for the server is no more than a second long.
    lengths = [
        min(1000, max(40, round(1000 * (end - start))))
        for (start, _), end in zip(in_order, ends)
    ]
    small = [
        picture.resize((SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS)
        for _, picture in in_order
    ]
    for quality in (80, 65, 50, 35, 20):
        small[0].save(
            path,
            save_all=True,
            append_images=small[1:],
            duration=lengths,
            loop=0,
            quality=quality,
            method=4,
        )
        if path.stat().st_size <= MOST_BYTES:
            break
    print(
        f"{path}: {len(small)} pictures, {sum(lengths) / 1000:.0f} s, {path.stat().st_size:,} bytes"
    )


def main() -> None:
    """Record a session."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "frames",
        type=Path,
        help="a folder for each clip, such as 1-mug, with its pictures",
    )
    parser.add_argument(
        "--output", default=str(ROOT / "docs" / "page.webp"), help="the file to write"
    )
    chosen = parser.parse_args()
    if PROGRAM is None:
        sys.exit("there is no Chromium; install one")
    with tempfile.TemporaryDirectory() as folder:
        clips = [
            (
                clip.name.split("-")[1],
                np.stack(
                    [
                        np.asarray(Image.open(path).convert("RGB"))
                        for path in sorted(clip.iterdir())
                    ]
                ),
            )
            for clip in sorted(chosen.frames.iterdir())
        ]
        write_y4m(
            f"{folder}/camera.y4m",
            np.concatenate([frames for _, frames in clips]),
            RATE,
        )
        command = [
            sys.executable,
            "-m",
            "crumb_avalanche.cli",
            "serve",
            f"{folder}/mine.safetensors",
            "--port",
            "0",
        ]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = next(
                found[1]
                for line in server.stdout
                if (found := re.match("Open (.*)", line))
            )
            with Chromium(f"{folder}/profile", f"{folder}/camera.y4m") as browser:
                recorder = Recorder(browser, clips)
                record(recorder, address)
        finally:
            server.terminate()
            server.wait()
    write(recorder.pictures, Path(chosen.output))


if __name__ == "__main__":
    main()

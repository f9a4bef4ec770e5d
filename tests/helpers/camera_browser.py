"""A headless Chromium, with a camera that plays a file if wanted, driven through the
pipe of its DevTools protocol.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np

PROGRAM = (
    shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
# The browser reads commands from descriptor 3 and writes to descriptor 4; both pipes
# may have these numbers already.
START = """
import fcntl, os, sys
numbers = map(int, sys.argv[1:3])
to_read, to_write = (fcntl.fcntl(number, fcntl.F_DUPFD, 10) for number in numbers)
os.dup2(to_read, 3)
os.dup2(to_write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def write_y4m(path, frames, rate=5):
    """Write ``(N, H, W, 3)`` uint8 RGB frames of even sides as uncompressed video."""
    height, width = frames.shape[1:3]
    with open(path, "wb") as file:
        file.write(
            f"YUV4MPEG2 W{width} H{height} F{rate}:1 Ip A1:1 C420jpeg\n".encode()
        )
        for frame in frames.astype(np.float64):
            red, green, blue = np.moveaxis(frame, 2, 0)
            light = 0.299 * red + 0.587 * green + 0.114 * blue
            halves = [
                128 + 0.564 * (blue - light)[::2, ::2],
                128 + 0.713 * (red - light)[::2, ::2],
            ]
            file.write(
                b"FRAME\n"
                + b"".join(
                    np.clip(p, 0, 255).astype(np.uint8).tobytes()
                    for p in (light, *halves)
                )
            )


class Chromium:
    """A browser, of whose windows one gets the commands. Use as a context manager.

    Args:
        profile: folder for its profile.
        camera: a ``.y4m`` file that the camera plays again and again; None has no
            camera.

    Attributes:
        events: messages of the browser so far, in order.
        window: the one that gets the commands.
    """

    def __init__(self, profile, camera=None):
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        options = [
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "--window-size=1400,900",
            "--no-first-run",
        ]
        options += [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ]
        if camera is not None:
            options += [f"--use-file-for-fake-video-capture={camera}"]
            options += [
                "--use-fake-device-for-media-stream",
                "--use-fake-ui-for-media-stream",
            ]
        command = [
            sys.executable,
            "-c",
            START,
            str(to_read),
            str(to_write),
            PROGRAM,
            *options,
            "about:blank",
        ]
        pipes = {
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
            "pass_fds": (to_read, to_write),
        }
        self._process = subprocess.Popen(command, **pipes)
        os.close(to_read)
        os.close(to_write)
        self._numbers, self._rest, self.window, self.events = (
            itertools.count(1),
            b"",
            None,
            [],
        )

    def __enter__(self):
        self.open_window()
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def open_window(self):
        """Open a window, which gets the commands until ``window`` is another one.

        Return the one that got them.
        """
        before, self.window = self.window, None
        target = self.send("Target.createTarget", url="about:blank", newWindow=True)[
            "targetId"
        ]
        self.window = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        return before

    def send(self, method, **parameters):
        """Send a command and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.window:
            message["sessionId"] = self.window
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _receive(self):
        while b"\0" not in self._rest:
            received = os.read(self._in, 1 << 20)
            assert received, "the browser ended"
            self._rest += received
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def evaluate(self, script):
        """Run JavaScript in the page and return its value."""
        reply = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def open(self, path):
        """Open a file, after which ``events`` are those of its page."""
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        self.wait_for(
            f"location.href === {path.as_uri()!r} && document.readyState === 'complete'"
        )

    def wait_for(self, script, seconds=60):
        """Wait until JavaScript gives a true value, and return it."""
        end = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            assert time.monotonic() < end, f"not in {seconds} seconds: {script}"
            time.sleep(0.05)
        return value

    def mouse(self, kind, selector):
        """Move to an element, or press (``mousePressed``) or release a button there."""
        centre = (
            "{const r = document.querySelector('%s').getBoundingClientRect(); [r.x + "
            "r.width / 2, r.y + r.height / 2]}"
        )
        x, y = self.evaluate(centre % selector)
        self.send(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
        )

    def choose(self, selector, *files):
        """Choose files in a file input."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=list(map(str, files)))

    def click(self, selector):
        """Click an element."""
        self.evaluate(
            f"document.querySelector({selector!r}).scrollIntoView({{block: 'nearest'}})"
        )
        self.mouse("mousePressed", selector)
        self.mouse("mouseReleased", selector)

    def key(self, kind, key):
        """Press (``keyDown``) or release (``keyUp``) a key."""
        codes = {" ": ("Space", 32), "Enter": ("Enter", 13), "Tab": ("Tab", 9)}
        code, number = codes[key]
        text = (
            {"text": " " if key == " " else "\r"}
            if kind == "keyDown" and key != "Tab"
            else {}
        )
        self.send(
            "Input.dispatchKeyEvent",
            type=kind,
            key=key,
            code=code,
            windowsVirtualKeyCode=number,
            **text,
        )

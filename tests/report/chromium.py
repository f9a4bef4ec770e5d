"""A headless browser for tests."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
# Chromium reads from descriptor 3 and writes to 4; the pipes have other numbers here.
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(text), fcntl.F_DUPFD, 10) for text in sys.argv[1:3]]
[os.dup2(end, number) for end, number in zip(ends, (3, 4))]
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Headless Chromium, driven with its DevTools protocol over two pipes: JSON messages that end in a zero byte."""

    def __init__(self, profile: Path):
        theirs, self.to = os.pipe()
        self.answers, also_theirs = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--window-size=1400,900", "about:blank"]
        command = [sys.executable, "-c", LAUNCH, str(theirs), str(also_theirs), CHROMIUM, *flags]
        quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.process = subprocess.Popen(command, pass_fds=(theirs, also_theirs), **quiet)
        os.close(theirs), os.close(also_theirs)
        self.rest, self.number, self.session, self.events = b"", 0, None, []
        self.watchdog = threading.Timer(120, self.process.kill)  # or a read without an answer would hang the tests
        self.watchdog.start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def receive(self) -> dict:
        while b"\0" not in self.rest:
            read = os.read(self.answers, 1 << 16)
            assert read, "chromium ended, or was stopped after two minutes"
            self.rest += read
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, **params) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path) -> None:
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def evaluate(self, code: str):
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def seen(self, *methods: str) -> list[dict]:
        return [event["params"] for event in self.events if event["method"] in methods]

    def click(self, selector: str) -> None:
        """Click with the mouse at the centre of an element."""
        self.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        code = f"(() => {{ const box = document.querySelector({selector!r}).getBoundingClientRect();"
        x, y = self.evaluate(code + "return [box.x + box.width / 2, box.y + box.height / 2] })()")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, code: int) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def close(self) -> None:
        self.session = None
        try:
            self.call("Browser.close")
        finally:
            self.process.wait(20)
            self.watchdog.cancel()
            os.close(self.to), os.close(self.answers)

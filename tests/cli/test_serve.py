"""``crumb serve`` as a process: its address, its lock, its end; and its page in a real browser."""

import io
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from camera_browser import PROGRAM, Chromium, write_y4m
from fake_videos import write_video
from PIL import Image

from crumb_avalanche.cli import main
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.serve.access import (
    check_certificate,
    own_certificate,
    print_qr_code,
    token_of,
)

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


@pytest.fixture
def serve(weights_file, tmp_path):
    """A function that starts the server of ``mine.safetensors``; returns its process, address and token."""
    processes = []

    def started(*options):
        new = [
            "--weights",
            str(weights_file),
            "--backbone",
            "small_cnn",
            "--image-size",
            "32",
            "--threads",
            "1",
        ]
        command = [
            sys.executable,
            "-m",
            "crumb_avalanche.cli",
            "serve",
            str(tmp_path / "mine.safetensors"),
            *new,
        ]
        # A process that was started in the background ignores SIGINT, and so do its
        # children.
        plain = {
            "preexec_fn": lambda: signal.signal(
                signal.SIGINT, signal.default_int_handler
            ),
            "text": True,
        }
        with open(tmp_path / "stderr", "w") as errors:
            command += ["--port", "0", *options]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, **plain
            )
        processes.append(process)
        for line in process.stdout:
            if found := re.fullmatch(r"Open (http.*)/\?token=(\S+)\n", line):
                return process, *found.groups()
        raise AssertionError(
            f"it ended without an address: {(tmp_path / 'stderr').read_text()}"
        )

    yield started
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def get(address, token, context=None):
    request = urllib.request.Request(address, headers={"X-Crumb-Token": token})
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        return json.load(answer)


def test_it_serves_holds_the_lock_and_stops(serve, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "crumb_avalanche.cli.serve.run",
        lambda *_: pytest.fail("a second one serves beside it"),
    )
    process, address, token = serve()
    assert get(f"{address}/classes", token)["classes"] == []
    assert main(["serve", str(tmp_path / "mine.safetensors"), "--port", "0"]) == 1
    assert "is being changed by another process" in capsys.readouterr().err
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert Learner.load(tmp_path / "mine.safetensors").classes == []
    assert not list(tmp_path.glob("*.lock")) and not list(tmp_path.glob(".*.lock"))
    kept = tmp_path / "mine.safetensors.token"
    assert kept.read_text() == f"{token}\n" and kept.stat().st_mode & 0o777 == 0o600


def test_the_token_is_kept_unless_others_could_read_it(tmp_path):
    path = tmp_path / "mine.safetensors"
    token = token_of(path)
    assert token_of(path) == token
    kept = tmp_path / "mine.safetensors.token"
    kept.chmod(0o644)
    other = token_of(path)
    kept.unlink()
    (tmp_path / "elsewhere").touch(0o600)
    kept.symlink_to("elsewhere")  # somebody else may have made it
    assert (
        len({token, other, token_of(path)}) == 3
        and kept.stat().st_mode & 0o777 == 0o600
    )
    assert not kept.is_symlink() and not (tmp_path / "elsewhere").read_text()


def test_the_certificate_of_a_host_is_made_once(tmp_path):
    pytest.importorskip("cryptography")
    file = Path(own_certificate(tmp_path / "mine.safetensors", "192.0.2.1"))
    made = file.read_bytes()
    assert (
        own_certificate(tmp_path / "mine.safetensors", "192.0.2.1") == str(file)
        and file.read_bytes() == made
    )
    assert file.stat().st_mode & 0o777 == 0o600
    own_certificate(tmp_path / "mine.safetensors", "robot.local")
    assert file.read_bytes() != made
    file.write_bytes(made[:300])
    own_certificate(tmp_path / "mine.safetensors", "robot.local")
    check_certificate(str(file), None)


def test_the_qr_code_is_printed_where_there_are_no_half_blocks(capsys, monkeypatch):
    pytest.importorskip("segno")
    print_qr_code("https://192.0.2.1:8000/?token=x")
    assert "█" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    print_qr_code("https://192.0.2.1:8000/?token=x")


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False], ids=["given", "made"])
def test_https_with_a_certificate_until_terminated(serve, tmp_path, given):
    pytest.importorskip("cryptography")
    if given:
        certificate = own_certificate(tmp_path / "other", "127.0.0.1")
        process, address, token = serve(
            "--certificate", certificate, "--key", certificate
        )
    else:
        certificate = str(tmp_path / "mine.safetensors.pem")
        process, address, token = serve("--host", "127.0.0.2")
    assert address.startswith("https://127.0.0.")
    context = ssl.create_default_context(cafile=certificate)
    assert get(f"{address}/classes", token, context)["classes"] == []
    process.terminate()
    assert process.wait(120) == 128 + signal.SIGTERM and not list(
        tmp_path.glob(".*.lock")
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "name or address"),
        (["--key", __file__], "go together"),
        (["--certificate", "absent.pem", "--key", "absent.pem"], "no file absent.pem"),
        (["--certificate", __file__, "--key", __file__], "certificate.*cannot be used"),
        (["--backbone", "nonsense"], "nonsense"),
    ],
)
def test_bad_options_are_a_line(options, words, tmp_path, capsys):
    assert (
        main(
            [
                "serve",
                str(tmp_path / "mine.safetensors"),
                "--port",
                "0",
                "--weights",
                "none",
                *options,
            ]
        )
        == 1
    )
    error = capsys.readouterr().err
    assert re.search(words, error) and "Traceback" not in error


def test_what_is_absent_is_named_with_its_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(tmp_path / "mine.safetensors"), "--port", "0"]) == 1
    assert 'pip install -e ".[serve]"' in capsys.readouterr().err and not os.listdir(
        tmp_path
    )


COLOURS = {"red": (210, 40, 40), "blue": (40, 40, 210), "green": (40, 210, 40)}
# The colour in the middle of the camera picture.
SEEN = """(() => {
  const canvas = document.createElement("canvas"), video = document.getElementById("video");
  canvas.width = canvas.height = 1;
  canvas.getContext("2d").drawImage(video, 0, 0, 1, 1);
  const [red, green, blue] = canvas.getContext("2d").getImageData(0, 0, 1, 1).data;
  return video.videoWidth ? (green > red && green > blue ? "green" : red > blue ? "red" : "blue") : "";
})()"""
# Teach pictures of the camera as a lesson, while it shows a colour.
LESSON = """(async () => {
  const form = new FormData();
  for (let number = 0; number < 4; ) {
    await pause(60);
    if (SEEN !== "COLOUR") continue;
    form.append("image", (await frame()).blob, `${number++}.jpg`);
  }
  await call("POST", "teach", { label: "COLOUR" }, form);
  await load();
})()"""


class Page:
    """The page of a server in a browser: what people read on it, and press."""

    def __init__(self, browser, address, token):
        self.browser, self.address, self.token = browser, address, token
        self.run, self.click, self.wait_for = (
            browser.evaluate,
            browser.click,
            browser.wait_for,
        )

    def open(self):
        self.browser.send("Page.navigate", url=f"{self.address}/?token={self.token}")
        self.wait_for("document.readyState === 'complete'")

    def start_camera(self):
        self.click("#camera")
        self.wait_for("document.getElementById('video').videoWidth")

    def text(self, element):
        return self.run(f"document.getElementById('{element}').textContent")

    def says(self, place, words):
        """Wait until a card says something."""
        self.wait_for(
            f"document.getElementById('{place}-news').textContent.includes({words!r})"
        )

    def lists(self, *names):
        """Wait until these are the classes."""
        shown = "[...document.querySelectorAll('.class')].map((one) => one.textContent)"
        self.wait_for(
            f"JSON.stringify({shown}) === {json.dumps(json.dumps(names, separators=(',', ':')))}"
        )

    def teach(self, name, words):
        """Press the button to teach under a name, until its card says something."""
        self.run(f"document.getElementById('name').value = {name!r}")
        self.click("#teach")
        self.says("teach", words)

    def press(self, label):
        self.run(f"document.querySelector('button[aria-label=\"{label}\"]').click()")

    def answer(self, label, name, words):
        """Press a button, and give the name that it asks for."""
        self.press(label)
        self.run(f"document.querySelector('#classes input').value = {name!r}")
        self.run("document.querySelector('#classes form').requestSubmit()")
        self.says("known", words)

    def undo(self, place):
        self.wait_for(f"document.querySelectorAll('#{place}-news button').length === 1")
        self.run(f"document.querySelector('#{place}-news button').click()")
        self.says(place, "Undone.")

    def fits(self, width):
        """Whether nothing is cut off at the right."""
        size = dict(width=width, height=844, deviceScaleFactor=1, mobile=width < 700)
        self.browser.send("Emulation.setDeviceMetricsOverride", **size)
        return self.run("document.documentElement.scrollWidth <= innerWidth")

    def images(self):
        return {
            one["name"]: one["images"]
            for one in get(f"{self.address}/classes", self.token)["classes"]
        }


@pytest.fixture
def page(serve, tmp_path):
    """The page in a browser whose camera plays four seconds each of red, blue and green, with noise."""
    if PROGRAM is None:
        pytest.skip("there is no Chromium")
    colours = np.array([colour for colour in COLOURS.values() for _ in range(20)])[
        :, None, None
    ]
    frames = colours + np.random.default_rng(0).normal(
        0, 10, (len(colours), 120, 160, 3)
    )
    write_y4m(tmp_path / "camera.y4m", np.clip(frames, 0, 255))
    _, address, token = serve()
    with Chromium(tmp_path / "profile", tmp_path / "camera.y4m") as browser:
        page = Page(browser, address, token)
        page.fits(390)
        page.open()
        yield page
        asked = [
            one["params"]["request"]["url"]
            for one in browser.events
            if one["method"].endswith("WillBeSent")
        ]
        assert len(asked) > 8 and all(
            url.startswith((f"{address}/", "data:", "blob:")) for url in asked
        ), asked
        wrong = [
            one for one in browser.events if one["method"] == "Runtime.exceptionThrown"
        ]
        wrong += [
            one
            for one in browser.events
            if "Content Security" in str(one.get("params", {}).get("entry"))
        ]
        assert not wrong


@pytest.mark.slow
def test_lessons_of_the_camera_and_of_files_and_their_changes(page, tmp_path):
    pytest.importorskip("av")
    write_video(tmp_path / "clip.webm", live=True)  # without a stated length
    (tmp_path / "clip.mp4").write_bytes(b"x")
    Image.new("RGB", (40, 40)).save(tmp_path / "photo.png")
    page.wait_for("!document.getElementById('none').hidden")
    page.teach("<b>red", "Use the camera")
    page.start_camera()
    page.run("document.getElementById('name').value = 'a/b'")
    page.click("#teach")
    page.wait_for(
        "Number(document.getElementById('count').textContent) > 5"
    )  # after the lead
    page.click("#teach")
    page.says("teach", "class name")
    page.run("document.getElementById('name').value = '<b>red'")
    page.click("#teach")
    page.wait_for("document.getElementById('count').className === 'lead'")
    page.click("#teach")
    page.says("teach", "nothing was learned")
    page.teach("<b>red", "Learned")  # by one press, until the ten seconds are over
    page.lists("<b>red")
    assert (
        page.run("document.querySelectorAll('#classes b').length") == 0
        and 10 <= page.images()["<b>red"] <= 50
    )
    page.undo("teach")
    page.lists()
    page.browser.choose(
        "#files", tmp_path / "clip.webm", tmp_path / "clip.mp4", tmp_path / "photo.png"
    )
    page.says("look", "Not read: clip.mp4.")
    assert page.text("teach") == "Teach 1 video and 1 photo"
    page.teach("film", "Learned 1 image of film")
    assert 12 <= page.images()["film"] <= 16
    first = page.browser.open_window()
    page.open()
    page.lists("film")
    page.browser.choose("#files", tmp_path / "photo.png")
    page.wait_for("document.getElementById('teach').textContent === 'Teach 1 photo'")
    page.teach("other", "Learned 1 image of other")
    second, page.browser.window = page.browser.window, first
    page.lists("film", "other")
    page.teach("Film", "There is a class film, of nearly the same name.")
    page.run("[...document.querySelectorAll('#teach-news button')].at(-1).click()")
    page.says("teach", "Nothing was changed.")
    page.run("document.querySelector('summary').click()")  # its lessons, with pictures
    page.wait_for(
        "[...document.querySelectorAll('li img')].filter((one) => one.naturalWidth).length === 2"
    )
    page.press("Remove photo.png of film")
    page.says("known", "Removed a lesson of film.")
    page.answer(
        "Wrong name clip.webm of film", "other", "The lesson is one of other now."
    )
    page.undo("known")
    page.answer("Rename film", "sky", "Renamed film to sky.")
    page.press("Forget sky")
    page.says("known", "Forgot sky.")
    page.lists("other")
    page.undo("known")
    page.lists("sky", "other")
    page.browser.window = second
    page.lists("sky", "other")
    page.run("document.querySelector('#teach-news button').click()")
    page.says("teach", "something else was changed meanwhile")
    page.browser.window = first
    page.run("document.getElementById('check').click()")
    page.wait_for(
        "/fooled by [0-2] of 2 things/.test(document.getElementById('fooled').textContent)"
    )
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.browser.send("Emulation.setEmulatedMedia", features=features)
        assert all(map(page.fits, (320, 390, 768, 1280)))
        light = (
            page.run("getComputedStyle(document.body).backgroundColor")
            == "rgb(246, 247, 248)"
        )
        assert light == (scheme == "light")


@pytest.mark.slow
def test_the_page_keeps_what_was_taught_and_knows_what_it_was_not(page, tmp_path, done):
    def shown(colour, label):
        """Wait for an answer while the camera shows a colour."""
        is_label = f"document.getElementById('label').textContent === '{label}'"
        page.wait_for(
            f"({SEEN}) === '{colour}' && {is_label} && !document.getElementById('answer').hidden",
            60,
        )

    page.start_camera()
    for colour in (
        "red",
        "blue",
    ) * 4:  # five lessons of known classes fit the threshold
        page.run(LESSON.replace("SEEN", SEEN).replace("COLOUR", colour))
    assert page.images() == {"red": 16, "blue": 16}
    for colour in ("red", "blue"):
        shown(colour, colour)
    shown("green", "I don’t know this")
    assert re.match(r"nearest: (red|blue) \d+ %", page.text("details"))
    assert page.run("document.getElementById('label').classList.contains('unknown')")
    page.browser.send(
        "Page.setDownloadBehavior",
        behavior="allow",
        downloadPath=str(tmp_path / "kept"),
    )
    page.click("#download")
    kept, end = tmp_path / "kept" / "mine.safetensors", time.monotonic() + 60
    while not kept.exists():
        assert time.monotonic() < end, "nothing was downloaded"
        time.sleep(0.05)
    for name, colour in COLOURS.items():
        noisy = np.array(colour) + np.random.default_rng(1).normal(0, 10, (120, 160, 3))
        Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(
            tmp_path / f"{name}.png"
        )
        answer = json.loads(
            done("predict", kept, tmp_path / f"{name}.png", "--json", "--threads", 1)
        )
        assert answer["label"] == name if name != "green" else answer["known"] is False

    page.press("Forget blue")
    page.says("known", "Forgot blue.")
    page.browser.send("Page.reload")
    page.wait_for(
        "document.querySelectorAll('.class').length === 1 && document.getElementById('answer').hidden"
    )
    page.start_camera()
    shown("red", "red")
    page.run("document.getElementById('name').focus()")  # all of it with the keyboard
    page.browser.send("Input.insertText", text="grün")
    for key in ("Enter", " "):
        page.browser.key("keyDown", key)
        page.browser.key("keyUp", key)
        page.wait_for("document.activeElement.id === 'teach'")
    page.wait_for(
        "document.querySelectorAll('.class').length === 2", 60
    )  # the lesson takes 13 seconds
    page.wait_for(
        "/^Learned.*grün/.test(document.getElementById('teach-news').textContent)"
    )

"""``crumb serve`` as a process: its address, its lock, its end; and its page in a real browser."""

import contextlib
import io
import json
import os
import re
import signal
import socket
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
from crumb_avalanche.learner.access import check_certificate, own_certificate, print_qr_code, token_of
from crumb_avalanche.learner.learner import Learner

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


@pytest.fixture
def serve(weights_file, tmp_path):
    """A function that starts the server of ``mine.safetensors``; returns its process, address and token."""
    processes = []

    def started(*options, descriptors=None):
        new = ["--weights", str(weights_file), "--backbone", "small_cnn", "--image-size", "32", "--threads", "1"]
        command = [sys.executable, "-m", "crumb_avalanche.cli", "serve", str(tmp_path / "mine.safetensors"), *new]

        def before():
            # A process that was started in the background ignores SIGINT, and so do its children.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if descriptors:
                import resource

                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        errors = os.open(tmp_path / "stderr", os.O_WRONLY | os.O_CREAT)
        process = subprocess.Popen(
            [*command, "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=before,
        )
        os.close(errors)
        processes.append(process)
        for line in process.stdout:
            if found := re.fullmatch(r"Open (http.*)/\?token=(\S+)\n", line):
                return process, *found.groups()
        raise AssertionError(f"it ended without an address: {(tmp_path / 'stderr').read_text()}")

    yield started
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def get(address, token, context=None):
    request = urllib.request.Request(address, headers={"X-Crumb-Token": token})
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        return json.load(answer)


def test_it_serves_holds_the_lock_and_stops(serve, tmp_path, capsys):
    process, address, token = serve(descriptors=100)
    place = "127.0.0.1", int(address.rpartition(":")[2])
    clients = [socket.create_connection(place, timeout=20) for _ in range(140)]  # idle ones do not stop it
    for client in clients[::2]:
        with contextlib.suppress(OSError):  # closed already
            client.sendall(b"GET /health HTTP/1.1\r\nHost: ")
    for client in clients:
        client.close()
    for tries in reversed(range(100)):
        with contextlib.nullcontext() if tries == 0 else contextlib.suppress(OSError):
            assert get(f"{address}/classes", token)["classes"] == []
            break
        time.sleep(0.1)
    assert (tmp_path / "stderr").stat().st_size < 10_000
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
    assert len({token, other, token_of(path)}) == 3 and kept.stat().st_mode & 0o777 == 0o600
    assert not kept.is_symlink() and not (tmp_path / "elsewhere").read_text()


def test_the_certificate_of_a_host_is_made_once(tmp_path):
    pytest.importorskip("cryptography")
    file = Path(own_certificate(tmp_path / "mine.safetensors", "192.0.2.1"))
    made = file.read_bytes()
    assert own_certificate(tmp_path / "mine.safetensors", "192.0.2.1") == str(file) and file.read_bytes() == made
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
        process, address, token = serve("--certificate", certificate, "--key", certificate)
    else:
        certificate = str(tmp_path / "mine.safetensors.pem")
        process, address, token = serve("--host", "127.0.0.2")
    assert address.startswith("https://127.0.0.")
    context = ssl.create_default_context(cafile=certificate)
    assert get(f"{address}/classes", token, context)["classes"] == []
    process.terminate()
    assert process.wait(120) == 128 + signal.SIGTERM and not list(tmp_path.glob(".*.lock"))


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
    assert main(["serve", str(tmp_path / "mine.safetensors"), "--port", "0", "--weights", "none", *options]) == 1
    error = capsys.readouterr().err
    assert re.search(words, error) and "Traceback" not in error


def test_what_is_absent_is_named_with_its_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(tmp_path / "mine.safetensors"), "--port", "0"]) == 1
    assert 'pip install -e ".[serve]"' in capsys.readouterr().err and not os.listdir(tmp_path)


COLOURS = {"red": (210, 40, 40), "blue": (40, 40, 210), "green": (40, 210, 40)}
# The colour in the middle of the camera picture.
SEEN = """(() => {
  const canvas = document.createElement("canvas"), video = document.getElementById("video");
  canvas.width = canvas.height = 1;
  canvas.getContext("2d").drawImage(video, 0, 0, 1, 1);
  const [red, green, blue] = canvas.getContext("2d").getImageData(0, 0, 1, 1).data;
  return video.videoWidth ? (green > red && green > blue ? "green" : red > blue ? "red" : "blue") : "";
})()"""


def film(path, names):
    """Write what the camera plays: noisy pictures of each colour for four seconds."""
    colours = np.array([COLOURS[name] for name in names for _ in range(20)])[:, None, None]
    frames = colours + np.random.default_rng(0).normal(0, 10, (len(colours), 120, 160, 3))
    write_y4m(path, np.clip(frames, 0, 255))


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")
def test_the_page_in_a_browser(serve, tmp_path):
    pytest.importorskip("av")
    film(tmp_path / "camera.y4m", ("red", "blue"))
    write_video(tmp_path / "clip.webm", live=True)  # without a stated length
    (tmp_path / "clip.mp4").write_bytes(b"x")
    Image.new("RGB", (40, 40)).save(tmp_path / "photo.png")
    _, address, token = serve()
    with Chromium(tmp_path / "profile", tmp_path / "camera.y4m") as browser:

        def says(place, words):
            """Wait until a card says something."""
            browser.wait_for(f"document.getElementById('{place}-news').textContent.includes({words!r})")

        def listed():
            return browser.evaluate("[...document.querySelectorAll('.class')].map((one) => one.textContent)")

        def named(name):
            browser.evaluate(f"document.getElementById('name').value = {name!r}")

        def button(name):
            return f'button[aria-label="{name}"]'

        def fits(width):
            """Whether nothing is cut off at the right."""
            size = dict(width=width, height=844, deviceScaleFactor=1, mobile=width < 700)
            browser.send("Emulation.setDeviceMetricsOverride", **size)
            return browser.evaluate("document.documentElement.scrollWidth <= innerWidth")

        fits(390)
        browser.send("Page.navigate", url=f"{address}/?token={token}")
        browser.wait_for("document.readyState === 'complete' && !document.getElementById('none').hidden")
        named("<b>red")
        browser.click("#teach")
        says("teach", "Use the camera")
        browser.click("#camera")
        browser.wait_for("document.getElementById('video').videoWidth")
        named("a/b")
        browser.click("#teach")
        browser.wait_for("Number(document.getElementById('count').textContent) > 5")  # after the lead
        browser.click("#teach")
        says("teach", "class name")
        named("<b>red")
        browser.click("#teach")
        browser.wait_for("document.getElementById('count').className === 'lead'")
        browser.click("#teach")
        says("teach", "nothing was learned")
        browser.click("#teach")  # by one press, until the ten seconds are over
        says("teach", "Learned")
        assert listed() == ["<b>red"] and browser.evaluate("document.querySelectorAll('#classes b').length") == 0
        assert 10 <= get(f"{address}/classes", token)["classes"][0]["images"] <= 50
        browser.evaluate("document.querySelector('#teach-news button').click()")
        says("teach", "Undone.")
        assert listed() == []
        browser.choose("#files", tmp_path / "clip.webm", tmp_path / "clip.mp4", tmp_path / "photo.png")
        says("look", "Not read: clip.mp4.")
        assert browser.evaluate("document.getElementById('teach').textContent") == "Teach 1 video and 1 photo"
        named("film")
        browser.click("#teach")
        says("teach", "Learned 1 image of film")
        assert 12 <= get(f"{address}/classes", token)["classes"][0]["images"] <= 16
        first = browser.open_window()
        browser.send("Page.navigate", url=f"{address}/?token={token}")
        browser.wait_for("document.querySelectorAll('.class').length === 1")
        browser.choose("#files", tmp_path / "photo.png")
        browser.wait_for("document.getElementById('teach').textContent === 'Teach 1 photo'")
        named("other")
        browser.click("#teach")
        says("teach", "Learned 1 image of other")
        browser.window = first
        browser.wait_for("document.querySelectorAll('.class').length === 2")
        named("Film")
        browser.click("#teach")
        says("teach", "There is a class film, of nearly the same name.")
        browser.evaluate("[...document.querySelectorAll('#teach-news button')].at(-1).click()")
        says("teach", "Nothing was changed.")
        browser.evaluate("document.querySelector('summary').click()")  # its lessons, with pictures
        shown = "[...document.querySelectorAll('li img')].filter((one) => one.naturalWidth).length"
        browser.wait_for(f"{shown} === 2")
        browser.evaluate(f"document.querySelector('{button('Remove photo.png of film')}').click()")
        says("known", "Removed a lesson of film.")
        browser.evaluate(f"document.querySelector('{button('Wrong name clip.webm of film')}').click()")
        browser.evaluate("document.querySelector('#classes input').value = 'other'")
        browser.evaluate("document.querySelector('#classes form').requestSubmit()")
        says("known", "The lesson is one of other now.")
        browser.wait_for("document.querySelectorAll('#known-news button').length === 1")
        browser.evaluate("document.querySelector('#known-news button').click()")
        says("known", "Undone.")
        browser.evaluate(f"document.querySelector('{button('Rename film')}').click()")
        browser.evaluate("document.querySelector('#classes input').value = 'sky'")
        browser.evaluate("document.querySelector('#classes form').requestSubmit()")
        says("known", "Renamed film to sky.")
        browser.evaluate(f"document.querySelector('{button('Forget sky')}').click()")
        says("known", "Forgot sky.")
        assert listed() == ["other"]
        browser.evaluate("document.querySelector('#known-news button').click()")
        says("known", "Undone.")
        assert listed() == ["sky", "other"]
        browser.evaluate("document.getElementById('check').click()")
        browser.wait_for("/fooled by [0-2] of 2 things/.test(document.getElementById('fooled').textContent)")
        for scheme in ("light", "dark"):
            browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            assert all(map(fits, (320, 390, 768, 1280)))
            light = browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 248)"
            assert light == (scheme == "light")
        asked = [one["params"]["request"]["url"] for one in browser.events if one["method"].endswith("WillBeSent")]
        assert len(asked) > 8 and all(url.startswith((f"{address}/", "data:", "blob:")) for url in asked), asked
        wrong = [one for one in browser.events if one["method"] == "Runtime.exceptionThrown"]
        wrong += [one for one in browser.events if "Content Security" in str(one.get("params", {}).get("entry"))]
        assert not wrong


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


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")
def test_the_page_keeps_what_was_taught_and_knows_what_it_was_not(serve, tmp_path, crumb):
    film(tmp_path / "camera.y4m", ("red", "blue", "green"))
    for name in COLOURS:
        noisy = np.array(COLOURS[name]) + np.random.default_rng(1).normal(0, 10, (120, 160, 3))
        Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(tmp_path / f"{name}.png")
    _, address, token = serve()
    with Chromium(tmp_path / "profile", tmp_path / "camera.y4m") as browser:

        def text(element):
            return browser.evaluate(f"document.getElementById('{element}').textContent")

        def shown(colour, label):
            """Wait for an answer while the camera shows a colour."""
            is_label = f"document.getElementById('label').textContent === '{label}'"
            browser.wait_for(f"({SEEN}) === '{colour}' && {is_label} && !document.getElementById('answer').hidden", 60)

        def start():
            browser.wait_for("document.readyState === 'complete'")
            browser.click("#camera")
            browser.wait_for("document.getElementById('video').videoWidth")

        def downloaded(number):
            """Download the learner; return its file."""
            folder = tmp_path / f"download{number}"
            browser.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
            browser.click("#download")
            end = time.monotonic() + 20
            while not (folder / "mine.safetensors").exists():
                assert time.monotonic() < end, "nothing was downloaded"
                time.sleep(0.05)
            return folder / "mine.safetensors"

        def predicted(file, colour):
            code, out, err = crumb("predict", file, tmp_path / f"{colour}.png", "--json", "--threads", 1)
            assert code == 0, err
            return json.loads(out)

        browser.send("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
        browser.send("Page.navigate", url=f"{address}/?token={token}")
        start()
        for colour in ("red", "blue") * 4:  # five lessons of known classes fit the threshold
            browser.evaluate(LESSON.replace("SEEN", SEEN).replace("COLOUR", colour))
        assert {one["name"]: one["images"] for one in get(f"{address}/classes", token)["classes"]} == {
            "red": 16,
            "blue": 16,
        }
        shown("red", "red")
        shown("blue", "blue")
        shown("green", "I don’t know this")
        assert re.match(r"nearest: (red|blue) \d+ %", text("details"))
        assert browser.evaluate("document.getElementById('label').classList.contains('unknown')")
        first = downloaded(1)
        answers = {colour: predicted(first, colour) for colour in COLOURS}
        assert [answers[colour]["label"] for colour in ("red", "blue")] == ["red", "blue"]
        assert answers["green"]["known"] is False

        browser.evaluate("document.querySelector('button[aria-label=\"Forget blue\"]').click()")
        browser.wait_for("document.querySelectorAll('.class').length === 1")
        browser.wait_for("document.getElementById('known-news').textContent.startsWith('Forgot blue.')")
        browser.send("Page.reload")
        browser.wait_for("document.querySelectorAll('.class').length === 1 && document.getElementById('answer').hidden")
        start()
        shown("red", "red")
        second = downloaded(2)
        code, out, _ = crumb("learner", "show", second)
        assert code == 0 and "red: 16 images" in out and "blue" not in out
        assert predicted(second, "red")["label"] == predicted(second, "blue")["label"] == "red"

        browser.evaluate("document.getElementById('name').focus()")  # all of it with the keyboard
        browser.send("Input.insertText", text="grün")
        browser.key("keyDown", "Enter")
        browser.key("keyUp", "Enter")
        browser.wait_for("document.activeElement.id === 'teach'")
        browser.key("keyDown", " ")
        browser.key("keyUp", " ")
        browser.wait_for("document.querySelectorAll('.class').length === 2", 60)  # the lesson takes 13 seconds
        browser.wait_for("/^Learned.*grün/.test(document.getElementById('teach-news').textContent)")
        assert not [one for one in browser.events if one["method"] == "Runtime.exceptionThrown"]

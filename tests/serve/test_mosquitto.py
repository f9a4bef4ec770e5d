"""``crumb connect`` with a real broker, which is stopped and started again."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter

import pytest
from photos import photo

pytest.importorskip("paho.mqtt")

from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.serve.access import own_certificate
from crumb_avalanche.serve.broker import Address, Broker, BrokerError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("mosquitto"), reason="no mosquitto"),
]
EVENTS = int(os.environ.get("CRUMB_EVENTS", "600"))
EVENTS_A_SECOND = float(os.environ.get("CRUMB_RATE", "60"))
SECONDS = 120.0  # for anything that takes a second on an idle machine


def save_photo(colour, path):
    path.write_bytes(photo(colour, 7))
    return path


@pytest.fixture
def learner_file(weights_file, tmp_path):
    """A learner of red and green."""
    path = tmp_path / "mine.safetensors"
    learner = Learner("recommended", "small_cnn", weights_file, 32)
    for colour in ("red", "green"):
        learner.teach(save_photo(colour, tmp_path / f"{colour}.png"), colour)
    learner.save(path)
    return path


class Mosquitto:
    """A broker that can be stopped and started.

    Args:
        folder: for its files.
        settings: lines of its configuration; the listener is there.
    """

    def __init__(self, folder, *settings):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = folder / "broker.log"
        self._configuration = folder / "mosquitto.conf"
        lines = [
            f"listener {self.port} 127.0.0.1",
            *settings,
            "max_queued_messages 0",
            "user root",
            "log_type all",
            f"log_dest file {self.log}",
        ]
        self._configuration.write_text("\n".join(lines) + "\n")
        self.start()

    def start(self):
        command = ["mosquitto", "-c", str(self._configuration)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_for(self._listens)

    def _listens(self):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self):
        self._process.terminate()
        self._process.wait(SECONDS)


class Connect:
    """``crumb connect mqtt`` in a process of its own, whose output goes to a file."""

    def __init__(self, learner_file, port, *options):
        self._output = learner_file.with_name("output")
        self._command = [sys.executable, "-m", "crumb_avalanche.cli", "connect", "mqtt"]
        self._command += [str(learner_file), "--broker", f"127.0.0.1:{port}"]
        self._command += ["--threads", "1", "--runtime", "torch", *map(str, options)]
        self._output.touch()
        self.start()

    def start(self):
        connected = self.count("connected to")
        with self._output.open("a") as output:
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output
            )
        self.wait_for("connected to", connected + 1)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def lines(self):
        return self._output.read_text().splitlines()

    def count(self, words):
        return sum(words in line for line in self.lines())

    def wait_for(self, words, count):
        """Wait until so many lines hold words; return the last of them."""
        wait_for(lambda: self.count(words) >= count, self._fails)
        return [line for line in self.lines() if words in line][-1]

    def _fails(self):
        assert self._process.poll() is None, self.lines()


def wait_for(condition, check=lambda: None):
    end = time.monotonic() + SECONDS
    while not condition():
        check()
        assert time.monotonic() < end, f"not in {SECONDS} seconds"
        time.sleep(0.1)


# Alike messages


@pytest.fixture
def broker(tmp_path):
    """A broker that forgets all when it is stopped."""
    broker = Mosquitto(tmp_path, "allow_anonymous true", "persistence false")
    yield broker
    broker.stop()


@pytest.fixture
def program(learner_file, broker):
    program = Connect(learner_file, broker.port, "--topic", "door")
    yield program
    program.kill()


@pytest.fixture
def publish(broker, program):
    """A function that publishes a message, and returns what is answered to it."""

    def published(topic, *options):
        answered = program.count(f"{topic} {{")
        command = ["mosquitto_pub", "-p", str(broker.port), "-t", topic, *options]
        subprocess.run([str(word) for word in command], check=True)
        line = program.wait_for(f"{topic} {{", answered + 1)
        return json.loads(line.removeprefix(f"{topic} "))

    return published


def classes(learner_file):
    return {info.name: info.images for info in Learner.load(learner_file).classes}


@pytest.mark.parametrize("qos", ["0", "1"])
def test_alike_messages(publish, learner_file, tmp_path, qos):
    blue = save_photo("blue", tmp_path / "blue.png")
    for images in (1, 2):
        assert publish("crumb/teach/blue", "-q", qos, "-f", blue)["images"]
        assert classes(learner_file)["blue"] == images
    assert publish("crumb/undo", "-q", qos, "-n")["images"] == {"blue": 1}
    assert publish("crumb/undo", "-q", qos, "-n")["images"] == {"blue": 1}
    assert publish("door", "-q", qos, "-f", blue)["label"]
    for images in (2, 3):
        assert "error" not in publish("crumb/correct", "-q", qos, "-m", "red")
        assert classes(learner_file)["red"] == images
    assert "remains" in publish("crumb/forget/green", "-q", qos, "-n")
    green = tmp_path / "green.png"
    assert publish("crumb/teach/green", "-q", qos, "-f", green)["images"]
    assert "remains" in publish("crumb/forget/green", "-q", qos, "-n")
    assert publish("crumb/teach/green", "-q", qos, "-f", green)["images"]
    assert classes(learner_file) == {"red": 3, "green": 1}


@pytest.mark.parametrize("qos", ["0", "1"])
def test_a_broker_that_forgets(publish, broker, program, learner_file, qos):
    assert publish("crumb/undo", "-q", qos, "-n")["images"] == {"green": 1}
    broker.stop()
    broker.start()
    program.wait_for("connected to", 2)
    assert publish("crumb/undo", "-q", qos, "-n")["images"] == {"red": 1}
    assert classes(learner_file) == {}


@pytest.mark.parametrize("qos", ["0", "1"])
def test_a_program_that_is_killed(publish, program, learner_file, qos):
    assert publish("crumb/undo", "-q", qos, "-n")["images"] == {"green": 1}
    program.kill()
    program.start()
    assert publish("crumb/undo", "-q", qos, "-n")["images"] == {"red": 1}
    assert classes(learner_file) == {}


@pytest.mark.parametrize("qos", ["0", "1"])
def test_a_retained_command(publish, program, learner_file, tmp_path, qos):
    assert "remains" in publish("crumb/forget/red", "-q", qos, "-r", "-m", "x")
    red = tmp_path / "red.png"
    assert publish("crumb/teach/red", "-q", qos, "-f", red)["images"] == {"red": 1}
    program.kill()
    program.start()
    line = program.wait_for("retained", 1)
    assert line.startswith("crumb/forget/red {") and '"error"' in line
    assert classes(learner_file) == {"green": 1, "red": 1}


# Many events


class SecureMosquitto(Mosquitto):
    """A broker with TLS and a password that keeps its sessions on the disk."""

    def __init__(self, folder):
        self._pem = own_certificate(folder / "broker", "127.0.0.1")
        users = folder / "users"
        subprocess.run(
            ["mosquitto_passwd", "-b", "-c", str(users), "cam", "secret"],
            check=True,
            capture_output=True,
        )
        (folder / "password").write_text("secret\n")
        super().__init__(
            folder,
            f"certfile {self._pem}",
            f"keyfile {self._pem}",
            "allow_anonymous false",
            f"password_file {users}",
            "persistence true",
            f"persistence_location {folder}/",
            "autosave_on_changes true",
            "autosave_interval 1",
        )
        self.options = ["--user", "cam", "--password-file", folder / "password"]
        self.options += ["--ca", self._pem]

    def client(self, name):
        address = Address(
            host="127.0.0.1",
            port=self.port,
            username="cam",
            password="secret",
            tls_context=ssl.create_default_context(cafile=self._pem),
        )
        return Broker(address, name)


async def count_answers(broker, answers):
    """Count the answers by event until cancelled."""
    while True:
        try:
            async with broker.client("listener") as listener:
                await listener.subscribe(["crumb/answer"])
                async for message in listener.messages():
                    answers[json.loads(message.payload)["id"]] += 1
                    listener.acknowledge(message)
        except BrokerError:
            await asyncio.sleep(0.2)


async def publish_events(broker, program):
    """Publish the events; stop the broker three times, and the program once."""
    number = 0
    start = time.monotonic()
    stops = {EVENTS // 4, EVENTS // 2, 3 * EVENTS // 4}
    while number < EVENTS:
        try:
            async with broker.client("camera") as camera:
                while number < EVENTS:
                    event = json.dumps({"id": f"event {number}", "path": "red.png"})
                    await camera.publish("cam/events", event, retain=False)
                    number += 1
                    due = start + number / EVENTS_A_SECOND
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    if number in stops:
                        await asyncio.to_thread(broker.stop)
                        await asyncio.sleep(1)
                        await asyncio.to_thread(broker.start)
                    if number == 2 * EVENTS // 3:
                        program.kill()
                        await asyncio.to_thread(program.start)
        except BrokerError:
            await asyncio.sleep(0.2)


async def answered_events(broker, program):
    """Publish the events, and return how often each was answered."""
    answers = Counter()
    listening = asyncio.create_task(count_answers(broker, answers))
    await publish_events(broker, program)
    end = time.monotonic() + 600 + EVENTS / 10
    while len(answers) < EVENTS and time.monotonic() < end:
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)  # for answers that are too many
    listening.cancel()
    return answers


def test_each_of_many_events_is_answered_once(learner_file, tmp_path):
    broker = SecureMosquitto(tmp_path)
    program = Connect(
        learner_file,
        broker.port,
        *broker.options,
        "--topic",
        "cam/events",
        "--images",
        tmp_path,
    )
    try:
        answers = asyncio.run(answered_events(broker, program))
    finally:
        program.kill()
        broker.stop()
    arrived = sum(
        "Received PUBLISH from crumb-crumb" in line and "'crumb/answer'" in line
        for line in broker.log.read_text().splitlines()
    )
    missing = [number for number in range(EVENTS) if f"event {number}" not in answers]
    answer_lines = [line for line in program.lines() if line.startswith("cam/events {")]
    ids = {json.loads(line.partition(" ")[2])["id"] for line in answer_lines}
    assert not missing
    assert (arrived, len(ids)) == (EVENTS, EVENTS)

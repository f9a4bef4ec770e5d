"""Cameras over MQTT: with a broker of ten lines, and in the slow test with a real one that is restarted."""

import asyncio
import io
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("aiomqtt")
import aiomqtt

from crumb_avalanche.cli.serve import connect
from crumb_avalanche.cli.settings import ConnectSettings
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.serve.access import own_certificate
from crumb_avalanche.serve.mqtt import Bridge
from crumb_avalanche.serve.shared import BusyError, SharedLearner

COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}
EVENTS, RATE = (
    int(os.environ.get("CRUMB_EVENTS", "600")),
    float(os.environ.get("CRUMB_RATE", "60")),
)


def photo(colour, seed=0):
    noisy = np.random.default_rng(seed).normal(0, 20, (40, 40, 3)) + np.array(
        COLOURS[colour]
    )
    buffer = io.BytesIO()
    Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


class Broker:
    """Calls a bridge for each message, and keeps what it publishes; ``fails`` publications do not arrive."""

    def __init__(self, bridge):
        self.bridge, self.said, self.fails, self.mid = bridge, [], 0, 0

    async def publish(self, topic, text, qos, retain):
        assert (qos, retain) == (1, True)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("gone")
        self.said.append((topic, json.loads(text)))

    def send(self, topic, payload, mid=None):
        payload = (
            payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        )
        self.mid = self.mid + 1 if mid is None else mid
        message = SimpleNamespace(
            topic=topic, payload=payload, qos=1, retain=False, mid=self.mid
        )
        self.said.clear()
        asyncio.run(self.bridge.answer(self, message))
        return dict(self.said)


@pytest.fixture
def learner_file(weights_file, tmp_path):
    path = tmp_path / "mine.safetensors"
    learner = Learner("recommended", "small_cnn", weights_file, 32)
    for colour in ("red", "green"):
        learner.teach(
            [Image.open(io.BytesIO(photo(colour, seed))) for seed in range(4)], colour
        )
    learner.save(path)
    return path


@pytest.fixture
def broker(learner_file, tmp_path):
    shared = SharedLearner(Learner.load(learner_file), learner_file)
    (tmp_path / "red.png").write_bytes(photo("red", 7))
    yield Broker(Bridge(shared, tmp_path / "answers", "crumb", str(tmp_path)))
    shared.close()


def test_snapshots_and_events_are_answered_taught_and_corrected(broker, monkeypatch):
    found = broker.send("door/snapshot", photo("green", 5))["crumb/answer"]
    assert (found["label"], found["from"]) == ("green", "door/snapshot") and 0 <= found[
        "confidence"
    ] <= 1
    assert (
        broker.send("events", {"id": "a", "path": "red.png", "box": [5, 5, 30, 30]})[
            "crumb/answer"
        ]["label"]
        == "red"
    )
    taught = broker.send("crumb/teach/blue", photo("blue"))
    assert taught["crumb/result"]["images"] == {"blue": 1}
    assert taught["homeassistant/select/crumb/config"]["options"] == [
        "red",
        "green",
        "blue",
    ]
    assert taught["homeassistant/sensor/crumb/config"]["state_topic"] == "crumb/answer"
    for colour in ("blue", "green", "blue"):  # the same bytes again
        broker.send("door/snapshot", photo(colour, 3))
    given, shared = [], broker.bridge.shared
    teach = shared.teach
    monkeypatch.setattr(
        shared,
        "teach",
        lambda *what, **how: given.append(what[1]) or teach(*what, **how),
    )
    corrected = [
        broker.send("crumb/correct", b"blue"),
        broker.send("crumb/correct/red", b"a"),
    ]
    assert [one["crumb/result"]["images"] for one in corrected] == [
        {"blue": 1},
        {"red": 1},
    ]
    assert given[0] == [("the image", photo("blue", 3))]
    assert broker.send("crumb/undo", b"")["crumb/result"]["images"] == {"red": 1}
    assert "remains" in broker.send("crumb/forget", b"green")["crumb/result"]
    assert [one.name for one in broker.bridge.shared.classes().classes] == [
        "red",
        "blue",
    ]


def test_events_that_cannot_be_answered_are_named_with_the_reason(broker, tmp_path):
    outside = {"id": "out", "path": "../other.png"}
    for topic, payload, says in (
        ("cam", b"no image", "not an image of these formats"),
        ("cam", b"{no image", "not an image of these formats"),
        ("cam", outside, "there is no file ../other.png"),
        ("cam", {"id": "b"}, "say with --images"),
        ("crumb/teach/Red", photo("red"), "nearly"),
        ("crumb/forget", b"mug", "mug"),
        ("crumb/correct/red", b"none", "teach it as red"),
        ("crumb/undo", b"x", "invalid literal"),
    ):
        found = broker.send(topic, payload)
        said = found["crumb/result" if topic.startswith("crumb") else "crumb/answer"]
        assert says in said["error"], said
    assert len(broker.bridge.shared.lessons()) == 2


def test_no_event_is_lost_or_answered_twice(broker):
    event = {
        "after": {
            "id": "17.5-a",
            "camera": "door",
            "has_snapshot": False,
            "path": "red.png",
        }
    }
    assert broker.send("frigate/events", event) == {}
    event["after"]["has_snapshot"] = True
    broker.fails = 1
    with pytest.raises(ConnectionError):
        broker.send("frigate/events", event)
    assert broker.bridge.journal.execute(
        "SELECT COUNT(*) FROM answers WHERE sent = 0"
    ).fetchone() == (1,)
    assert broker.send("frigate/events", event)["crumb/answer"]["id"] == "17.5-a"
    assert broker.send("frigate/events", event) == {}
    assert broker.send("door", photo("red"), mid=9).keys() == {"crumb/answer"}
    assert broker.send("door", photo("red"), mid=9) == {}, "the broker sent it again"
    assert broker.send("door", photo("red"), mid=10).keys() == {"crumb/answer"}, (
        "the camera sent the same bytes"
    )
    lesson = {"id": "t", "path": "red.png"}
    broker.send("crumb/teach/red", lesson)
    broker.bridge.journal.execute(
        "DELETE FROM answers"
    )  # as if stopped between the lesson and its answer
    assert "images" not in broker.send("crumb/teach/red", lesson)["crumb/result"]
    assert len(broker.bridge.shared.lessons()) == 3


def test_a_stop_during_a_change_is_quiet_and_leaves_the_message_to_the_broker(
    broker, monkeypatch
):
    async def stops(*_):
        raise BusyError("the server stops")

    monkeypatch.setattr(broker.bridge.shared, "change", stops)
    with pytest.raises(asyncio.CancelledError):
        broker.send("crumb/forget", b"red")
    assert broker.bridge.journal.execute("SELECT COUNT(*) FROM answers").fetchone() == (
        0,
    )


def test_a_stop_ends_the_command_also_where_interrupts_are_ignored(
    learner_file, monkeypatch
):
    async def stops(*_, **__):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(60)

    monkeypatch.setattr("crumb_avalanche.serve.mqtt.run", stops)
    lock, close, locked = (
        learner_file.with_name(".mine.safetensors.lock"),
        SharedLearner.close,
        [],
    )
    monkeypatch.setattr(
        SharedLearner, "close", lambda self: locked.append(lock.exists()) or close(self)
    )
    before = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as shells do for background programs
    try:
        with pytest.raises(SystemExit, match="143"):
            connect(
                ConnectSettings("mqtt", str(learner_file), topic="cam", runtime="torch")
            )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert locked == [True], "changes end before the lock is released"


class Mosquitto:
    """A broker with TLS and a password that keeps its sessions on the disk."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.pem, self.log = (
            own_certificate(folder / "broker", "127.0.0.1"),
            folder / "broker.log",
        )
        (folder / "password").write_text("secret\n")
        users = folder / "users"
        subprocess.run(
            ["mosquitto_passwd", "-b", "-c", str(users), "cam", "secret"],
            check=True,
            capture_output=True,
        )
        self.settings = folder / "mosquitto.conf"
        self.settings.write_text(
            f"listener {self.port} 127.0.0.1\ncertfile {self.pem}\nkeyfile {self.pem}\nallow_anonymous false\n"
            f"password_file {users}\npersistence true\npersistence_location {folder}/\nautosave_on_changes true\n"
            f"autosave_interval 1\nmax_queued_messages 0\nuser root\nlog_type all\nlog_dest file {self.log}\n"
        )
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["mosquitto", "-c", str(self.settings)], stderr=subprocess.DEVNULL
        )

    def stop(self):
        self.process.terminate()
        self.process.wait(120)

    def client(self, name):
        plain = {
            "username": "cam",
            "password": "secret",
            "tls_context": ssl.create_default_context(cafile=self.pem),
        }
        return aiomqtt.Client(
            "127.0.0.1", self.port, identifier=name, clean_session=False, **plain
        )


@pytest.mark.slow
def test_each_of_many_events_is_answered_once_while_broker_and_learner_are_restarted(
    learner_file, tmp_path
):
    if shutil.which("mosquitto") is None:
        pytest.skip("mosquitto is not installed")
    broker, got, began = Mosquitto(tmp_path), Counter(), time.monotonic()
    (tmp_path / "red.png").write_bytes(photo("red", 7))
    command = [
        sys.executable,
        "-m",
        "crumb_avalanche.cli",
        "connect",
        "mqtt",
        learner_file,
        "--topic",
        "cam/events",
    ]
    command += [
        "--broker",
        f"127.0.0.1:{broker.port}",
        "--user",
        "cam",
        "--password-file",
        tmp_path / "password",
    ]
    command += [
        "--ca",
        broker.pem,
        "--images",
        tmp_path,
        "--threads",
        "1",
        "--runtime",
        "torch",
    ]
    output = open(tmp_path / "output", "a")  # noqa: SIM115

    def served():
        return subprocess.Popen(command, stdout=output, stderr=output)

    async def listen():
        while True:
            try:
                async with broker.client("listener") as listener:
                    await listener.subscribe("crumb/answer", qos=1)
                    async for message in listener.messages:
                        got[json.loads(message.payload)["id"]] += 1
            except aiomqtt.MqttError:
                await asyncio.sleep(0.2)

    async def publish(program):
        number, stops = 0, {EVENTS // 4, EVENTS // 2, 3 * EVENTS // 4}
        while number < EVENTS:
            try:
                async with broker.client("camera") as camera:
                    while number < EVENTS:
                        event = json.dumps({"id": f"event {number}", "path": "red.png"})
                        await camera.publish("cam/events", event, qos=1)
                        number += 1
                        await asyncio.sleep(
                            max(0.0, start + number / RATE - time.monotonic())
                        )
                        if number in stops:
                            await asyncio.to_thread(broker.stop)
                            await asyncio.sleep(1)
                            broker.start()
                        if number == 2 * EVENTS // 3:
                            program.kill()
                            program.wait()
                            program = served()
            except aiomqtt.MqttError:
                await asyncio.sleep(0.2)
        return program

    async def all_of_it(program):
        listening = asyncio.create_task(listen())
        program = await publish(program)
        kept = EVENTS / (time.monotonic() - start)
        print(f"{EVENTS} events at {kept:.1f}/s, {len(got)} answered by then")
        end = time.monotonic() + 600 + EVENTS / 10
        while len(got) < EVENTS and time.monotonic() < end:
            await asyncio.sleep(0.5)
        await asyncio.sleep(2)
        listening.cancel()
        return program

    time.sleep(1)
    program = served()
    while "connected" not in (tmp_path / "output").read_text():
        assert program.poll() is None and time.monotonic() < began + 300, (
            tmp_path / "output"
        ).read_text()
        time.sleep(0.5)
    start = time.monotonic()
    try:
        program = asyncio.run(all_of_it(program))
    finally:
        program.kill()
        broker.stop()
        output.close()
    said = [
        line
        for line in (tmp_path / "output").read_text().splitlines()
        if line.startswith("cam/events {")
    ]
    arrived = sum(
        "Received PUBLISH from crumb-crumb" in line and "'crumb/answer'" in line
        for line in broker.log.read_text().splitlines()
    )
    print(f"{len(got)} answered, {arrived} answers at the broker, {len(said)} made")
    missing = [number for number in range(EVENTS) if f"event {number}" not in got]
    assert not missing and arrived == EVENTS, (missing[:20], arrived, len(said))
    assert len({json.loads(line.partition(" ")[2])["id"] for line in said}) == EVENTS

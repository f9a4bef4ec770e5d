"""Cameras over MQTT, with a broker of a few lines; a real one is in test_mosquitto."""

import asyncio
import http.server
import json
import re
import shutil
import signal
import socket
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from photos import opened, photo

pytest.importorskip("paho.mqtt")

from crumb_avalanche.cli import main
from crumb_avalanche.cli.serve import connect, topics_of
from crumb_avalanche.cli.settings import ConnectSettings
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.serve import event_images
from crumb_avalanche.serve.broker import BrokerError
from crumb_avalanche.serve.journal import JournalError
from crumb_avalanche.serve.mqtt import Bridge
from crumb_avalanche.serve.shared import BusyError, SharedLearner


class Broker:
    """Calls a bridge for each message, and keeps what it publishes.

    As MQTT has it, messages of QoS 0 have the packet number 0.

    Attributes:
        fails: number of publications that do not arrive.
    """

    def __init__(self, bridge):
        self.bridge = bridge
        self.published = []
        self.fails = 0
        self.last_number = 0

    async def publish(self, topic, text, qos, retain):
        assert (qos, retain) == (1, True)
        if self.fails:
            self.fails -= 1
            raise BrokerError("gone")
        self.published.append((topic, json.loads(text)))

    def send(self, topic, payload, qos=1, mid=None, dup=False, retain=False):
        """Deliver a message; return what is published then, by topic."""
        if not isinstance(payload, bytes):
            payload = json.dumps(payload).encode()
        if mid is None:
            self.last_number += qos
            mid = self.last_number if qos else 0
        message = SimpleNamespace(
            topic=topic, payload=payload, qos=qos, mid=mid, dup=dup, retain=retain
        )
        self.published.clear()
        asyncio.run(self.bridge.answer(self, message))
        return dict(self.published)

    def result(self, topic, payload, **options):
        """Deliver a command; return its result."""
        return self.send(topic, payload, **options)["crumb/result"]

    def answer(self, topic, payload, **options):
        """Deliver a question; return its answer."""
        return self.send(topic, payload, **options)["crumb/answer"]

    def classes(self):
        """The number of images of each class."""
        classes = self.bridge.shared.classes().classes
        return {info.name: info.images for info in classes}


@pytest.fixture(scope="module")
def taught_file(weights_file, tmp_path_factory):
    """The file of a learner of two classes, not to be changed."""
    path = tmp_path_factory.mktemp("taught") / "mine.safetensors"
    learner = Learner("recommended", "small_cnn", weights_file, 32)
    for colour in ("red", "green"):
        images = [opened(photo(colour, seed)) for seed in range(4)]
        learner.teach(images, colour)
    learner.save(path)
    return path


@pytest.fixture
def learner_file(taught_file, tmp_path):
    return Path(shutil.copy(taught_file, tmp_path))


@pytest.fixture
def shared(learner_file):
    shared = SharedLearner(Learner.load(learner_file), learner_file)
    yield shared
    shared.close()


@pytest.fixture
def folder(tmp_path):
    """A folder with the image of an event."""
    (tmp_path / "red.png").write_bytes(photo("red", 7))
    return tmp_path


@pytest.fixture
def log():
    return []


@pytest.fixture
def make_broker(shared, tmp_path, log):
    """A function that makes a broker, and a bridge that goes on with its journal."""

    def make(images):
        journal = tmp_path / "answers"
        return Broker(Bridge(shared, journal, "crumb", str(images), log.append))

    return make


@pytest.fixture
def broker(make_broker, folder):
    """A broker of a bridge with two classes, red and green of 4 images each."""
    return make_broker(folder)


# Questions


def test_a_snapshot_is_answered(broker):
    answer = broker.answer("door/snapshot", photo("green", 5))
    assert (answer["label"], answer["from"]) == ("green", "door/snapshot")
    assert 0 <= answer["confidence"] <= 1


def test_an_event_is_answered(broker):
    event = {"id": "a", "path": "red.png", "box": [5, 5, 30, 30]}
    answer = broker.answer("events", event)
    assert (answer["label"], answer["id"]) == ("red", "a")


def test_an_event_waits_for_its_snapshot(broker):
    event = {"id": "17.5-a", "has_snapshot": False, "path": "red.png"}
    assert broker.send("frigate/events", {"after": event}) == {}
    event["has_snapshot"] = True
    assert broker.answer("frigate/events", {"after": event})["id"] == "17.5-a"


def test_own_answers_are_not_questions(broker):
    answer = broker.answer("door", photo("red"))
    assert broker.send("crumb/answer", answer) == {}


@pytest.mark.parametrize(
    ("topic", "payload", "words"),
    [
        ("cam", b"", "not an image of these formats"),
        ("cam", b"no image", "not an image of these formats"),
        ("cam", b"{no image", "not an image of these formats"),
        ("cam", {"id": "out", "path": "../other.png"}, "there is no file ../other.png"),
        ("cam", {"id": "b"}, "say with --images"),
        ("cam", {"id": "c", "path": "red.png", "box": {"a": []}}, ""),
        ("cam", {"id": "d", "path": "red\0.png"}, "null"),
        ("cam", b'{"id": "\\ud800", "path": "\\ud800"}', "surrogates not allowed"),
        ("crumb/teach/Red", photo("red"), "nearly"),
        ("crumb/teach/a/b", photo("red"), "class name"),
        ("crumb/teach/unknown", photo("red"), "class name"),
        ("crumb/forget", b"mug", "mug"),
        ("crumb/correct/red", b"none", "teach it as red"),
        ("crumb/undo", b"x", "is no number of a lesson"),
        ("crumb/undo", b"9", "no lesson 9"),
        ("crumb/undo", b"0", "there is no lesson 0; only 1, 2 can be taken back"),
        ("crumb/undo", {"lesson": 0}, "there is no lesson 0; only 1, 2 can be"),
        ("crumb/undo", {"lesson": False}, "'False' is no number of a lesson"),
    ],
)
def test_an_error_is_an_answer(broker, topic, payload, words):
    published = broker.send(topic, payload)
    kind = "result" if topic.startswith("crumb") else "answer"
    assert words in published[f"crumb/{kind}"]["error"]
    assert broker.classes() == {"red": 4, "green": 4}


def test_a_lone_surrogate_is_an_id(broker):
    event = b'{"id": "\\ud800", "path": "red.png"}'
    assert broker.answer("cam", event)["id"] == "\ud800"
    assert broker.send("cam", event) == {}


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyError("x"), Exception()])
def test_any_exception_is_an_answer(broker, monkeypatch, error):
    async def fails(*_):
        raise error

    monkeypatch.setattr(broker.bridge.shared, "predict", fails)
    said = broker.answer("cam", photo("red"))["error"]
    assert said == (str(error) or "Exception")


# Commands


def test_teaching_is_answered_and_announced(broker):
    published = broker.send("crumb/teach/blue", photo("blue"))
    assert published["crumb/result"]["images"] == {"blue": 1}
    select = published["homeassistant/select/crumb/config"]
    assert select["options"] == ["red", "green", "blue"]
    sensor = published["homeassistant/sensor/crumb/config"]
    assert sensor["state_topic"] == "crumb/answer"


def test_home_assistant_tells_a_class(broker):
    jinja2 = pytest.importorskip("jinja2")
    published = broker.send("crumb/teach/error", photo("blue"))
    sensor = published["homeassistant/sensor/crumb/config"]
    state = jinja2.Template(sensor["value_template"])
    states = {
        state.render(value_json={"label": "error", "known": True}),
        state.render(value_json={"label": "error", "known": False}),
        state.render(value_json={"error": "x"}),
    }
    assert states == {"error", "/unknown", "/error"}


def test_the_last_answer_is_corrected(broker, monkeypatch):
    broker.send("door/snapshot", photo("blue", 3))
    broker.send("door/snapshot", photo("green", 3))
    broker.send("door/snapshot", photo("blue", 3))  # the same bytes again
    taught = noted_lessons(broker.bridge.shared, monkeypatch)
    assert broker.result("crumb/correct", b"blue")["images"] == {"blue": 1}
    assert taught == [[("the image", photo("blue", 3))]]


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("crumb/correct/blue", b"a"),
        ("crumb/correct/blue", {"id": "a"}),
        ("crumb/correct", {"id": "a", "label": "blue"}),
    ],
)
def test_a_named_answer_is_corrected(broker, monkeypatch, topic, payload):
    broker.send("events", {"id": "a", "path": "red.png"})
    broker.send("door/snapshot", photo("green", 3))
    taught = noted_lessons(broker.bridge.shared, monkeypatch)
    assert broker.result(topic, payload)["images"] == {"blue": 1}
    assert taught == [[("the image", photo("red", 7))]]


def noted_lessons(shared, monkeypatch):
    """A list to which the images of each lesson are added."""
    lessons = []
    teach = shared.teach

    def noted(label, images, **options):
        lessons.append(images)
        return teach(label, images, **options)

    monkeypatch.setattr(shared, "teach", noted)
    return lessons


def test_a_lesson_is_taken_back(broker):
    broker.send("crumb/teach/blue", photo("blue"))
    assert broker.result("crumb/undo", b"")["images"] == {"blue": 1}
    assert broker.result("crumb/undo", b"1")["images"] == {"red": 4}
    assert broker.classes() == {"green": 4}


@pytest.mark.parametrize("payload", [b"", b"2", {"lesson": 2}, {"lesson": None}])
def test_the_last_lesson_is_taken_back(broker, payload):
    assert broker.result("crumb/undo", payload)["images"] == {"green": 4}
    assert broker.classes() == {"red": 4}


def test_no_lesson_is_left_to_take_back(broker):
    broker.send("crumb/undo", b"")
    broker.send("crumb/undo", b"")
    error = broker.result("crumb/undo", b"")["error"]
    assert error == "there is no lesson to take back"


@pytest.mark.parametrize(
    ("topic", "payload"), [("crumb/forget", b"green"), ("crumb/forget/green", b"")]
)
def test_a_class_is_forgotten(broker, topic, payload):
    assert "remains" in broker.result(topic, payload)
    assert broker.classes() == {"red": 4}


# What is answered once, and what each time


@pytest.mark.parametrize("qos", [0, 1])
def test_alike_questions_are_answered_each(broker, qos):
    assert broker.answer("door", photo("red"), qos=qos)["label"] == "red"
    assert broker.answer("door", photo("red"), qos=qos)["label"] == "red"


@pytest.mark.parametrize("qos", [0, 1])
def test_each_undo_takes_a_lesson_back(broker, qos):
    assert broker.result("crumb/undo", b"", qos=qos)["images"] == {"green": 4}
    assert broker.result("crumb/undo", b"", qos=qos)["images"] == {"red": 4}


@pytest.mark.parametrize("qos", [0, 1])
def test_each_correction_is_a_lesson(broker, qos):
    broker.send("door", photo("blue"))
    broker.send("crumb/correct", b"blue", qos=qos)
    assert broker.classes()["blue"] == 1
    broker.send("crumb/correct", b"blue", qos=qos)
    assert broker.classes()["blue"] == 2


@pytest.mark.parametrize("qos", [0, 1])
def test_a_forgotten_class_is_taught_again(broker, qos):
    broker.send("crumb/teach/blue", photo("blue"), qos=qos)
    broker.send("crumb/forget/blue", b"", qos=qos)
    assert broker.classes() == {"red": 4, "green": 4}
    again = broker.result("crumb/teach/blue", photo("blue"), qos=qos)
    assert again["images"] == {"blue": 1}


@pytest.mark.parametrize("qos", [0, 1])
def test_a_restart_swallows_no_command(broker, make_broker, folder, qos):
    broker.send("crumb/undo", b"", qos=qos, mid=qos)
    restarted = make_broker(folder)
    restarted.bridge.begin_session()
    assert restarted.result("crumb/undo", b"", qos=qos, mid=qos)["images"] == {"red": 4}


def test_a_packet_number_is_used_again(broker):
    broker.send("crumb/undo", b"", mid=1)
    broker.send("door", photo("red"), mid=2)
    assert broker.result("crumb/undo", b"", mid=1)["images"] == {"red": 4}


def test_a_packet_delivered_again_is_dropped(broker, make_broker, folder):
    broker.send("crumb/undo", b"", mid=9)
    assert "crumb/result" not in broker.send("crumb/undo", b"", mid=9, dup=True)
    restarted = make_broker(folder)
    assert "crumb/result" not in restarted.send("crumb/undo", b"", mid=9, dup=True)
    assert broker.classes() == {"red": 4}


def test_a_packet_of_a_lost_session_is_another(broker):
    broker.send("crumb/undo", b"", mid=9)
    broker.bridge.begin_session()
    again = broker.result("crumb/undo", b"", mid=9, dup=True)
    assert again["images"] == {"red": 4}


def test_a_packet_that_never_came_is_answered(broker):
    assert broker.answer("door", photo("red"), mid=9, dup=True)["label"] == "red"


def test_an_event_is_answered_once(broker, log):
    event = {"id": "a", "path": "red.png"}
    broker.send("events", event)
    assert broker.send("events", event) == {}
    broker.send("crumb/teach/red", event)
    assert "crumb/result" not in broker.send("crumb/teach/red", event)
    assert log[-1] == "crumb/teach/red a was answered before"
    assert broker.classes() == {"red": 5, "green": 4}


def test_an_event_is_known_by_topic_and_id(broker):
    event = {"id": "a", "path": "red.png"}
    assert broker.answer("one", event)["label"] == "red"
    assert broker.answer("two", event)["label"] == "red"
    assert broker.answer("one", event | {"id": "b"})["label"] == "red"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("crumb/teach/bowl", {}), ("crumb/teach/plate", {})),
        (("crumb/correct/bowl", {}), ("crumb/correct/plate", {})),
        (("crumb/correct", {"label": "bowl"}), ("crumb/correct", {"label": "plate"})),
    ],
)
def test_a_command_is_known_by_its_label(broker, first, second):
    event = {"id": "a", "path": "red.png"}
    broker.send("events", event)
    broker.send(first[0], event | first[1])
    broker.send(second[0], event | second[1])
    assert broker.classes() == {"red": 4, "green": 4, "bowl": 1, "plate": 1}


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("crumb/forget/red", b""),
        ("crumb/undo", b""),
        ("crumb/teach/blue", photo("blue")),
        ("crumb/teach/blue", {"id": "a", "path": "red.png"}),
    ],
)
def test_a_retained_command_is_refused(broker, log, topic, payload):
    error = broker.result(topic, payload, retain=True)["error"]
    assert "a retained command is not carried out" in error
    assert topic in log[-1] and "retained" in log[-1]
    assert broker.result(topic, payload, retain=True)["error"] == error
    assert broker.classes() == {"red": 4, "green": 4}
    assert "error" not in broker.result(topic, payload)


def test_a_retained_snapshot_is_answered(broker):
    assert broker.answer("door", photo("red"), retain=True)["label"] == "red"


# Stops


def test_an_answer_that_did_not_arrive_is_sent(broker):
    broker.fails = 1
    with pytest.raises(BrokerError):
        broker.send("events", {"id": "a", "path": "red.png"})
    (entry,) = broker.bridge.journal.unsent()
    assert json.loads(entry.text)["id"] == "a"
    assert broker.answer("events", {"id": "a", "path": "red.png"})["id"] == "a"
    assert broker.send("events", {"id": "a", "path": "red.png"}) == {}


@pytest.mark.parametrize(("arrived", "sent"), [(False, ["crumb/answer"]), (True, [])])
def test_answers_under_way_are_sent_at_a_start(broker, make_broker, arrived, sent):
    broker.fails = 1
    with pytest.raises(BrokerError):
        broker.send("door", photo("red"), qos=0)

    async def has_arrived(entry):
        return arrived

    restarted = make_broker("")
    asyncio.run(restarted.bridge.send_unsent(restarted, has_arrived))
    assert [topic for topic, _ in restarted.published] == sent
    assert restarted.bridge.journal.unsent() == []


@pytest.mark.parametrize(
    ("topic", "payload", "left"),
    [
        ("crumb/teach/blue", photo("blue"), {"red": 4, "green": 4, "blue": 1}),
        ("crumb/undo", b"", {"red": 4}),
        ("crumb/forget/green", b"", {"red": 4}),
    ],
)
def test_a_saved_change_is_not_repeated(broker, monkeypatch, topic, payload, left):
    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(broker.bridge.journal, "note_answer", stopped)
        with pytest.raises(KeyboardInterrupt):
            broker.send(topic, payload, mid=9)
    assert broker.classes() == left
    again = broker.result(topic, payload, mid=9, dup=True)
    assert again["version"] == broker.bridge.shared.version
    assert broker.classes() == left


@pytest.mark.parametrize("number", [b"0", b"9"])
def test_a_stop_makes_no_absent_lesson_one_that_was_taken_back(
    broker, monkeypatch, number
):
    # Given a command for a lesson that does not exist, and a stop before its answer
    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(broker.bridge.journal, "note_answer", stopped)
        with pytest.raises(KeyboardInterrupt):
            broker.send("crumb/undo", number, mid=9)
    # When it is delivered again
    again = broker.result("crumb/undo", number, mid=9, dup=True)
    # Then it is refused
    assert f"there is no lesson {number.decode()}" in again["error"]
    assert broker.classes() == {"red": 4, "green": 4}


def test_a_stop_leaves_the_message_to_the_broker(broker, monkeypatch):
    async def stops(*_):
        raise BusyError("the server stops")

    with monkeypatch.context() as patched:
        patched.setattr(broker.bridge.shared, "change", stops)
        with pytest.raises(asyncio.CancelledError):
            broker.send("crumb/forget", b"red", mid=9)
    assert "remains" in broker.result("crumb/forget", b"red", mid=9, dup=True)


def test_sigterm_ends_the_command(learner_file, monkeypatch):
    async def stops(*_):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(60)

    monkeypatch.setattr("crumb_avalanche.serve.mqtt.run", stops)
    lock = learner_file.with_name(".mine.safetensors.lock")
    close = SharedLearner.close
    locked = []

    def noted(self):
        locked.append(lock.exists())
        close(self)

    monkeypatch.setattr(SharedLearner, "close", noted)
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as shells do for background programs
    settings = ConnectSettings("mqtt", str(learner_file), topic="cam", runtime="torch")
    try:
        with pytest.raises(SystemExit, match="143"):
            connect(settings)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert locked == [True], "changes end before the lock is released"


# A journal that cannot be written or read


def make_read_only(journal, read_only=True):
    """Let SQLite refuse each change of a journal, as on a disk that takes no more."""
    journal._database.execute(f"PRAGMA query_only = {read_only}")


UNWRITABLE = r"answers .* cannot be read or written .*readonly.*make room on its disk"


@pytest.mark.parametrize("qos", [0, 1])
def test_a_question_is_answered_without_the_journal(broker, log, qos):
    make_read_only(broker.bridge.journal)
    assert broker.answer("cam", photo("red"), qos=qos)["label"] == "red"
    assert re.search(UNWRITABLE, log[-1])


COMMANDS = [
    ("crumb/teach/blue", photo("blue"), {"red": 4, "green": 4, "blue": 1}),
    ("crumb/undo", b"", {"red": 4}),
    ("crumb/undo", b"1", {"green": 4}),
    ("crumb/forget/green", b"", {"red": 4}),
]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(("topic", "payload", "left"), COMMANDS)
def test_a_command_that_cannot_be_noted(broker, topic, payload, left, qos):
    # Given a journal that cannot be written
    make_read_only(broker.bridge.journal)
    # When a command comes
    error = broker.result(topic, payload, qos=qos)["error"]
    # Then it is not carried out, and the answer says what to do
    words = f"nothing was changed, .*{UNWRITABLE}.*; then send it again$"
    assert re.match(words, error)
    assert broker.classes() == {"red": 4, "green": 4}
    # And it is carried out when it is sent again after that
    make_read_only(broker.bridge.journal, read_only=False)
    assert "error" not in broker.result(topic, payload, qos=qos)
    assert broker.classes() == left


@pytest.mark.parametrize(("topic", "payload", "left"), COMMANDS)
def test_a_disk_that_fills_up_during_a_command(
    broker, monkeypatch, topic, payload, left
):
    # Given a journal that cannot be written once a command is noted as begun
    journal = broker.bridge.journal
    note_begun = journal.note_begun

    def filled(*arguments):
        entry = note_begun(*arguments)
        make_read_only(journal)
        return entry

    monkeypatch.setattr(journal, "note_begun", filled)
    # When the command is carried out, and delivered again before it is acknowledged
    assert "error" not in broker.result(topic, payload, mid=9)
    again = broker.result(topic, payload, mid=9, dup=True)
    # Then its change was made once
    assert again["version"] == broker.bridge.shared.version
    assert broker.classes() == left


def test_a_packet_number_is_used_again_after_a_full_disk(broker, monkeypatch):
    # Given an answer whose arrival could not be noted
    def fails(*_):
        raise JournalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(broker.bridge.journal, "note_sent", fails)
        broker.send("crumb/undo", b"", mid=1)
    # When the same command comes anew, in a packet of the same number
    result = broker.result("crumb/undo", b"", mid=1)
    # Then it is carried out
    assert result["images"] == {"red": 4}


def test_a_session_that_begins_on_a_full_disk(broker):
    # Given a new session, whose packet numbers begin anew, that cannot be noted
    broker.send("crumb/undo", b"", mid=9)
    make_read_only(broker.bridge.journal)
    broker.bridge.begin_session()
    # When a command has the number of an earlier one, and is delivered a second time
    error = broker.result("crumb/undo", b"", mid=9, dup=True)["error"]
    # Then it is not confused with the earlier one, but refused while that is so
    assert error.startswith("nothing was changed now, as the journal cannot say")
    make_read_only(broker.bridge.journal, read_only=False)
    again = broker.result("crumb/undo", b"", mid=9, dup=True)
    assert again["images"] == {"red": 4}


@pytest.fixture
def unreadable(broker, tmp_path):
    """A broker of a bridge whose journal cannot be read."""
    sqlite3.connect(tmp_path / "answers").execute("DROP TABLE answers")
    return broker


def test_a_question_whose_answer_cannot_be_looked_up(unreadable, log):
    event = {"id": "a", "path": "red.png"}
    assert unreadable.answer("events", event)["label"] == "red"
    assert "answers holds what was answered, and cannot be read" in log[-1]


@pytest.mark.parametrize(
    ("payload", "dup"), [({"id": "a", "path": "red.png"}, False), (b"", True)]
)
def test_a_command_whose_answer_cannot_be_looked_up(unreadable, payload, dup):
    error = unreadable.result("crumb/teach/blue", payload, dup=dup)["error"]
    assert error.startswith(
        "nothing was changed now, as the journal cannot say whether this command was "
        "carried out before: "
    )
    assert error.endswith("; then send it again if it was not")
    assert unreadable.classes() == {"red": 4, "green": 4}


def test_answers_under_way_that_cannot_be_read(unreadable, log):
    async def has_arrived(entry):
        pytest.fail("there is no answer to ask for")

    asyncio.run(unreadable.bridge.send_unsent(unreadable, has_arrived))
    assert "no such table" in log[-1]
    assert unreadable.answer("cam", photo("red"))["label"] == "red"


def test_a_journal_that_cannot_be_opened_is_a_line(learner_file, capsys):
    learner_file.with_name("mine.safetensors.answers").mkdir()
    command = ["connect", "mqtt", str(learner_file), "--topic", "cam"]
    assert main([*command, "--runtime", "torch"]) == 1
    error = capsys.readouterr().err
    assert re.match(r"crumb connect: .*unable to open.*; make room.*\n$", error)


# Topics of the command line


@pytest.mark.parametrize("text", ["a/+,b c", "a/+, b c", " a/+ ,\tb c\n"])
def test_topics_have_commas_between_them(text):
    assert topics_of(text) == ["a/+", "b c"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "^give --topic, such as "),
        (" ", "^give --topic, such as "),
        ("a,", "^--topic is 'a,', of which a topic is empty; give topics with "),
        ("a, ,b", "^--topic is 'a, ,b', of which a topic is empty; give "),
    ],
)
def test_an_empty_topic_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        topics_of(text)


# Images on a web server


class Images(http.server.BaseHTTPRequestHandler):
    """Serves an image, and what no image server should send."""

    def do_GET(self):
        self.server.paths.append(self.path)
        if self.path.endswith("garbage.png"):
            self.wfile.write(b"garbage\r\n\r\n")
        elif self.path.endswith("chunk.png"):
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx"
            )
        elif self.path.endswith("header.png"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n")
        elif self.path.endswith("short.png"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx")
        elif self.path.endswith("elsewhere.png"):
            self.wfile.write(
                b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2:1/x\r\n\r\n"
            )
        elif self.path.endswith("slow.png"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            self.server.ends.wait(60)
        else:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + photo("red"))

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def web():
    """A web server of images, with the paths that it was asked for."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Images) as server:
        server.paths = []
        server.ends = threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.ends.set()
        server.shutdown()


@pytest.fixture
def address(web):
    return f"http://127.0.0.1:{web.server_port}"


@pytest.mark.parametrize(
    ("source", "event", "path"),
    [
        ("", {"path": "a b.png"}, "/a%20b.png"),
        ("", {"path": "/a.png"}, "/a.png"),
        ("/media", {"path": "x/a.png"}, "/media/x/a.png"),
        ("/media/", {"path": "a.png?x"}, "/media/a.png%3Fx"),
        ("/api/{id}/snapshot.jpg?crop=1", {}, "/api/..%2Fe/snapshot.jpg?crop=1"),
    ],
)
def test_an_image_is_fetched(make_broker, web, address, source, event, path):
    broker = make_broker(f"{address}{source}")
    assert broker.answer("events", {"id": "../e", **event})["label"] == "red"
    assert web.paths == [path]


@pytest.mark.parametrize(
    "name", ["garbage", "chunk", "header", "short", "elsewhere", "slow"]
)
def test_a_bad_server_is_an_answer(make_broker, address, monkeypatch, name):
    monkeypatch.setattr(event_images, "SECONDS", 1.0)
    broker = make_broker(address)
    assert broker.answer("events", {"id": "a", "path": f"{name}.png"})["error"]
    assert broker.answer("events", {"id": "b", "path": "red.png"})["label"] == "red"


@pytest.mark.parametrize(
    ("source", "event"),
    [
        ("http://camera.example", {"path": ".evil.example/x"}),
        ("http://camera.example", {"path": "@evil.example/x"}),
        ("http://camera.example", {"path": ":80@evil.example/x"}),
        ("http://camera.example/media/", {"path": "//evil.example/x"}),
        ("http://camera.example/media/", {"path": "http://evil.example/x"}),
        ("http://camera.example{id}", {"id": ".evil.example"}),
    ],
)
def test_no_other_host_is_asked(make_broker, monkeypatch, source, event):
    asked = []

    def refuse(host, *_, **__):
        asked.append(host)
        raise OSError("not in a test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    answer = make_broker(source).answer("events", {"id": "a", **event})
    assert answer["error"]
    assert set(asked) <= {"camera.example"}

"""Answer for the snapshots that cameras send to an MQTT broker, and be taught over it.

Messages come with QoS 1 in a session that the broker keeps, and are acknowledged once
their answer has arrived at the broker; until then a journal holds it. So a stop of the
broker or of this program loses no message.

A message counts as one that was answered before if MQTT marks it as delivered again
within its session, or if it is an event with the topic, label and id of another one.
All others are answered, however alike they are.

While the journal cannot be read or written, questions are answered and commands are
refused: a change that is not noted before could be made twice.
"""

import asyncio
import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.serve.broker import Address, Broker, BrokerError
from crumb_avalanche.serve.event_images import EventImages
from crumb_avalanche.serve.journal import Journal, JournalEntry, JournalError
from crumb_avalanche.serve.messages import LessonResult
from crumb_avalanche.serve.shared import BusyError, SharedLearner

MOST_RECENT = 16  # images that can be corrected
SECONDS_FOR_RETAINED = 2.0  # until a broker has sent what it retains
SECONDS_TO_CONNECT_AGAIN = 1.0
COMMANDS = ("teach", "correct", "forget", "undo")
# State of Home Assistant's sensor. No class has such a name: names have no slash.
STATE = (
    "{{ '/error' if value_json.error is defined "
    "else value_json.label if value_json.known else '/unknown' }}"
)


@dataclass(frozen=True)
class Message:
    """What a message of a broker asks for.

    Attributes:
        topic: of the message.
        command: one of ``COMMANDS``; empty for a question.
        label: class that a command names, in its topic or event; may be empty.
        data: what it holds.
        event: what it holds, if that is a JSON object.
        id: of the event, or made of the data.
        key: names it among all messages that are not the same.
        retained: whether the broker kept it since before this program asked for it.
    """

    topic: str
    command: str
    label: str
    data: bytes
    event: dict[str, Any]
    id: str
    key: str
    retained: bool

    @property
    def text(self) -> str:
        """The data as text."""
        return self.data.decode(errors="replace").strip()

    @property
    def box(self) -> Any:
        """Part of the image of an event that is looked at; ``None`` for all of it.

        Only an event that names its image by ``path`` may have a box.
        """
        return self.event.get("box") if "path" in self.event else None

    @property
    def has_image(self) -> bool:
        """Whether an event of Frigate has a snapshot yet."""
        return bool(self.event.get("has_snapshot", True))


class Bridge:
    """Takes messages of a broker one after the other, and answers each once.

    Args:
        shared: the learner.
        journal: file of the last answers.
        name: what all topics of this learner begin with.
        images: folder or address of the images that events name; see ``EventImages``.
        log: takes a line for each message.

    Raises:
        JournalError: the file of the journal cannot be used.
    """

    def __init__(
        self,
        shared: SharedLearner,
        journal: Path,
        name: str,
        images: str = "",
        log: Callable[[str], Any] = str,
    ):
        self.shared = shared
        self.name = name
        self.journal = Journal(journal)
        self._images = EventImages(images)
        self._log = log
        # Images and boxes of the last questions, by id.
        self._recent: OrderedDict[str, tuple[bytes, Any]] = OrderedDict()
        # Whether the journal still has the numbers of packets of an earlier session.
        self._has_old_numbers = False

    @property
    def status_topic(self) -> str:
        """The topic that says whether the bridge is there."""
        return f"{self.name}/status"

    def log(self, text: str) -> None:
        """Log a line about a message or the broker."""
        self._log(printable(text))

    @contextmanager
    def _journal_errors_logged(self) -> Iterator[None]:
        """Log an error of the journal and leave the ``with`` block.

        For what can be left out: then an answer may be given twice, but none is lost.
        """
        try:
            yield
        except JournalError as error:
            self.log(str(error))

    async def answer(self, broker: Any, received: Any) -> None:
        """Answer a message of the broker, unless it was answered before.

        The journal, a file, holds the answers by the key of the message: a message that
        the broker delivers again changes the learner once.

        Args:
            broker: what publishes, as ``Broker``.
            received: message with ``topic``, ``payload``, ``qos``, ``mid``, ``dup`` and
                ``retain``, as paho has it.
        """
        message = self.read(received)
        if message.topic in self._own_topics() or not message.has_image:
            return
        entry = await self._answered_entry(message, received)
        if entry.state == "sent":  # the broker has the answer already
            if message.command:
                self.log(f"{message.topic} {message.id} was answered before")
        else:
            await self._send(broker, entry)
        if message.command:
            await self.announce(broker)  # the classes may have changed

    async def _answered_entry(self, message: Message, received: Any) -> JournalEntry:
        """Return the journal's entry of a message with an answer, made before or now.

        Where the journal cannot say whether the message was answered before, a question
        is answered, perhaps once more, and a command is refused.
        """
        try:
            entry = self._earlier_entry(message, received)
        except JournalError as error:
            if message.command:
                refusal = (
                    "nothing was changed now, as the journal cannot say whether this "
                    f"command was carried out before: {error}; then send it again if "
                    "it was not"
                )
                return self._note_answer(message, {"error": refusal})
            self.log(str(error))
            entry = None
        # "begun": this program ended before it had an answer.
        if entry is None or entry.state == "begun":
            return await self._carry_out(message, entry)
        return entry

    def _earlier_entry(self, message: Message, received: Any) -> JournalEntry | None:
        """Return the journal's entry of a message; ``None`` if the message is new.

        MQTT marks a message that is delivered again (dup). A new message may have the
        packet number of an earlier one, with which it must not be confused; an event is
        known by its id.

        Raises:
            JournalError: the journal cannot be read, or still has the numbers of an
                earlier session.
        """
        if self._has_old_numbers:
            self._drop_old_numbers()
        if received.dup:
            return self.journal.find(message.key)
        with self._journal_errors_logged():
            self.journal.drop_keys(prefix=_packet_prefix(received.mid))
        if message.key.startswith(_packet_prefix(None)):
            return None
        return self.journal.find(message.key)

    async def _send(self, broker: Any, entry: JournalEntry) -> None:
        """Publish the answer to a message, and note in the journal that it arrived."""
        await broker.publish(entry.topic, entry.text, qos=1, retain=True)
        with self._journal_errors_logged():
            self.journal.note_sent(entry.key)

    async def send_unsent(
        self, broker: Any, has_arrived: Callable[[JournalEntry], Any]
    ) -> None:
        """Publish the answers that did not arrive before the last connection ended.

        Args:
            broker: what publishes, as ``Broker``.
            has_arrived: coroutine that says whether the broker has an answer.
        """
        unsent: list[JournalEntry] = []
        with self._journal_errors_logged():  # they are sent by the next connection
            unsent = self.journal.unsent()
        for entry in unsent:
            if await has_arrived(entry):
                with self._journal_errors_logged():
                    self.journal.note_sent(entry.key)
            else:
                await self._send(broker, entry)

    def begin_session(self) -> None:
        """Forget the numbers of packets, which begin again in a new session.

        While the journal cannot be written, this is tried again before each message.
        """
        self._has_old_numbers = True
        with self._journal_errors_logged():
            self._drop_old_numbers()

    def _drop_old_numbers(self) -> None:
        """Drop the numbers of packets of an earlier session; may raise JournalError."""
        self.journal.drop_keys(prefix=_packet_prefix(None))
        self._has_old_numbers = False

    def read(self, received: Any) -> Message:
        """Take a message of the broker apart: command, label, event and key.

        The key is the same when the same message is delivered again: it is made of an
        event's id, or of the number of the packet and the data. Messages that are never
        delivered again, and refused ones, have a key of their own.

        Args:
            received: message with ``topic``, ``payload``, ``qos``, ``mid`` (number of
                the packet) and ``retain``, as paho has it.
        """
        topic = _topic_of(received)
        data = bytes(received.payload or b"")
        digest = hashlib.sha256(data).hexdigest()
        command, label = self._command_of(topic)
        event = _event_in(data)
        event_id = str(event.get("id") or "")
        if command:
            label = label or str(event.get("label") or "")
        # A command that is retained is delivered again at each start.
        is_refused = bool(command and received.retain)
        if event_id and not is_refused:
            # As JSON, which has only ASCII characters, whatever the event is.
            event_names = json.dumps([topic, label, event_id])
            key = f"event {hashlib.sha256(event_names.encode()).hexdigest()}"
        elif received.qos and not is_refused:
            key = f"{_packet_prefix(received.mid)}{topic} {digest}"
        else:  # never delivered again
            key = f"message {secrets.token_hex(16)}"
        return Message(
            topic=topic,
            command=command,
            label=label,
            data=data,
            event=event,
            id=event_id or digest[:12],
            key=key,
            retained=bool(received.retain),
        )

    def _command_of(self, topic: str) -> tuple[str, str]:
        """Return the command of a topic and its label; both empty for a question."""
        command, _, label = topic.removeprefix(f"{self.name}/").partition("/")
        if topic.startswith(f"{self.name}/") and command in COMMANDS:
            return command, label.lstrip("/")
        return "", ""

    async def _carry_out(
        self, message: Message, begun_entry: JournalEntry | None
    ) -> JournalEntry:
        """Do what a message asks for, and write the answer to the journal.

        The journal, a file, holds what was begun and answered, so that a message that
        the broker delivers again changes the learner once. An error is an answer, too:
        a change that cannot be noted as begun is not made.

        Args:
            message: a question or a command.
            begun_entry: entry of the journal, if the message was begun before a stop,
                so that its change may have been made already.

        Returns:
            The entry with the answer, which is not published yet.
        """
        try:
            if message.command:
                reply = await self._change(message, begun_entry)
            else:
                reply = await self._predict(message)
        except BusyError as error:
            # Stopped during a change; the broker delivers the message again.
            raise asyncio.CancelledError from error
        except JournalError as error:
            refusal = (
                "nothing was changed, as a command is noted in the journal first: "
                f"{error}; then send it again"
            )
            reply = {"error": refusal}
        except Exception as error:  # whatever a camera sends, the next one is answered
            reply = {"error": str(error) or type(error).__name__}
        return self._note_answer(message, reply)

    def _note_answer(self, message: Message, reply: dict[str, Any]) -> JournalEntry:
        """Write the answer to a message to the log and to the journal, and return it.

        Args:
            message: a question or a command.
            reply: the members of the answer's JSON.
        """
        kind = "result" if message.command else "answer"
        text = json.dumps({"id": message.id, "from": message.topic, **reply})
        self.log(f"{message.topic} {text}")
        entry = JournalEntry(
            key=message.key,
            source="",
            lesson=0,
            topic=f"{self.name}/{kind}",
            text=text,
            state="made",
        )
        with self._journal_errors_logged():
            self.journal.note_answer(entry)
        return entry

    async def _predict(self, message: Message) -> dict[str, Any]:
        """Answer what the image of a message shows, and hold it for a correction.

        Returns the members of the answer's JSON.
        """
        image = await self._image_of(message)
        self._recent.pop(message.id, None)  # the same image as before is the last now
        self._recent[message.id] = image, message.box
        if len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)
        answer = await self.shared.predict([(message.id, image)], message.box)
        return answer.model_dump()

    async def _change(
        self, message: Message, begun_entry: JournalEntry | None
    ) -> dict[str, Any]:
        """Change the learner as a command asks, unless that was done before a stop.

        The journal, a file, says which changes were begun.

        Args:
            message: with the command: teach, correct, undo or forget.
            begun_entry: entry of the journal, if the message was begun before a stop.

        Returns:
            The members of the answer's JSON.

        Raises:
            ValueError: the command cannot be carried out.
            JournalError: the command cannot be noted; nothing was changed.
        """
        if message.retained:
            raise ValueError(
                "a retained command is not carried out, as it would be again at each "
                "start; publish it without retain"
            )
        if begun_entry is not None and self._is_done(message, begun_entry):
            return {"version": self.shared.version}
        if message.command == "undo":
            undone = await self._undo(message, begun_entry)
            return undone.model_dump()
        # Has the name of the source of a lesson that is taught, by which the lesson is
        # recognised after a stop.
        entry = begun_entry or self.journal.note_begun(message.key)
        if message.command == "forget":
            forgotten = await self.shared.forget(message.label or message.text)
            return forgotten.model_dump()
        if message.command == "correct":
            label, image, box = self._correction(message)
        else:
            label = message.label
            image = await self._image_of(message)
            box = message.box
        learned = await self.shared.teach(
            label, [("the image", image)], source=entry.source, box=box
        )
        return learned.model_dump()

    def _is_done(self, message: Message, begun_entry: JournalEntry) -> bool:
        """Whether the learner holds a command's change that was begun before a stop."""
        lessons = self.shared.lessons()
        if message.command == "forget":
            names = [info.name for info in self.shared.classes().classes]
            return (message.label or message.text) not in names
        if message.command == "undo":
            return all(lesson.number != begun_entry.lesson for lesson in lessons)
        return any(lesson.source == begun_entry.source for lesson in lessons)

    async def _undo(
        self, message: Message, begun_entry: JournalEntry | None
    ) -> LessonResult:
        """Take a lesson back, after the journal has noted which one.

        Args:
            message: the command.
            begun_entry: entry of the journal, if the message was begun before a stop.

        Raises:
            ValueError: there is no such lesson, or it can no longer be taken back.
            JournalError: the command cannot be noted; nothing was changed.
        """
        if begun_entry is not None:
            return await self.shared.undo(begun_entry.lesson)
        number = self._lesson_to_undo(message)
        # After a stop, a lesson that is noted and absent was taken back. So a number
        # that no lesson has is not noted; the learner refuses it.
        if number in [lesson.number for lesson in self.shared.lessons()]:
            self.journal.note_begun(message.key, number)
        return await self.shared.undo(number)

    def _lesson_to_undo(self, message: Message) -> int | None:
        """Return the number of the lesson that a message takes back.

        It is the number in the message, or in the ``lesson`` of an event, else that of
        the last lesson; ``None`` if no lesson can be taken back.

        Raises:
            ValueError: the message is another text.
        """
        text = message.text
        if message.event:
            value = message.event.get("lesson")
            text = "" if value is None else str(value)
        if text:
            if not text.isdecimal():
                raise ValueError(
                    f"{text!r} is no number of a lesson; send one, or nothing for the "
                    "last lesson"
                )
            return int(text)
        numbers = [lesson.number for lesson in self.shared.lessons() if lesson.can_undo]
        return numbers[-1] if numbers else None

    def _correction(self, message: Message) -> tuple[str, bytes, Any]:
        """Return the right label of an answer that was wrong, its image and its box.

        The message names the event of the answer, or means the last answer.

        Args:
            message: with the label in its topic or text, and perhaps an event.

        Returns:
            Label, bytes of the image, and box in pixels or ``None``.

        Raises:
            ValueError: the image is no longer held.
        """
        event_id = str(message.event.get("id") or "")
        if message.label and not message.event:
            event_id = message.text  # the label is in the topic then
        label = message.label or message.text
        is_gone = event_id and event_id not in self._recent
        if is_gone or not self._recent:
            raise ValueError(
                f"the image of {event_id or 'the last answer'} is gone; teach it as "
                f"{label}"
            )
        # Image and box of each of the last answers, by the id of the event.
        last_id = next(reversed(self._recent))
        image, box = self._recent[event_id or last_id]
        return label, image, box

    async def _image_of(self, message: Message) -> bytes:
        """Return the bytes of an image: the message itself, or what its event names."""
        if not message.event:
            return message.data
        return await asyncio.to_thread(self._images.read, message.event)

    async def announce(self, broker: Any) -> None:
        """Announce to Home Assistant a sensor of the last answer and a list of classes.

        Choosing a class of the list corrects the answer.

        Args:
            broker: what publishes, as ``Broker``.
        """
        answer_topic = f"{self.name}/answer"
        sensor = {
            "name": "seen",
            "state_topic": answer_topic,
            "json_attributes_topic": answer_topic,
            "value_template": STATE,
        }
        select = {
            "name": "correct to",
            "command_topic": f"{self.name}/correct",
            "options": [info.name for info in self.shared.classes().classes],
            "qos": 1,
        }
        for component, config in (("sensor", sensor), ("select", select)):
            common = {
                "device": {"identifiers": [self._node_id], "name": self.name},
                "availability_topic": self.status_topic,
                "unique_id": f"{self._node_id}_{component}",
            }
            text = json.dumps({**config, **common})
            topic = self._config_topic(component)
            await broker.publish(topic, text, qos=1, retain=True)

    @property
    def _node_id(self) -> str:
        """The name of the bridge, as a part of Home Assistant's topics."""
        return self.name.replace("/", "_")

    def _config_topic(self, component: str) -> str:
        """Return the topic by which Home Assistant learns of a sensor or a list."""
        return f"homeassistant/{component}/{self._node_id}/config"

    def _own_topics(self) -> set[str]:
        """Return the topics that the bridge publishes; ``--topic`` may include them."""
        topics = {f"{self.name}/{last}" for last in ("answer", "result", "status")}
        return topics | {self._config_topic(name) for name in ("sensor", "select")}


def _topic_of(received: Any) -> str:
    """Return the topic of a message; empty if it is not UTF-8, which MQTT forbids."""
    try:
        return str(received.topic)
    except UnicodeDecodeError:
        return ""


def _packet_prefix(number: int | None) -> str:
    """Return how the journal's keys of a packet begin; of all packets for ``None``."""
    return "packet " if number is None else f"packet {number} "


def _event_in(data: bytes) -> dict[str, Any]:
    """Return the event that a message holds; empty if it is none.

    Frigate sends an event again when it changes, as ``before`` and ``after``.
    """
    if data[:1] != b"{":
        return {}
    try:
        event = json.loads(data)
    except (RecursionError, ValueError):
        return {}
    changed = event.get("after")
    return changed if isinstance(changed, dict) else event


async def run(bridge: Bridge, topics: Sequence[str], address: Address) -> None:
    """Answer the messages of an MQTT broker until cancelled; connect again if it goes.

    Args:
        bridge: asks or changes the learner as a message says.
        topics: of the messages: snapshots of cameras, and events.
        address: of the broker.

    Raises:
        ValueError: the broker cannot be reached at first, or refuses the user.
    """
    broker_name = f"broker {address.host}:{address.port}"
    was_reached = False
    while True:
        broker = Broker(address, f"crumb-{bridge.name}", bridge.status_topic)
        try:
            async with broker:
                was_reached = True
                await _serve(bridge, topics, broker, address)
        except BrokerError as error:
            if not was_reached:
                raise ValueError(
                    f"{broker_name}: {error}; check --broker, --user and --ca"
                ) from error
            bridge.log(f"{broker_name} is gone ({error}); trying again")
            await asyncio.sleep(SECONDS_TO_CONNECT_AGAIN)


async def _serve(
    bridge: Bridge, topics: Sequence[str], broker: Broker, address: Address
) -> None:
    """Answer the messages of a connection to the MQTT broker until it ends.

    Args:
        bridge: asks or changes the learner as a message says.
        topics: of the messages: snapshots of cameras, and events.
        broker: the open connection.
        address: of the broker, for a second connection.
    """

    async def has_arrived(entry: JournalEntry) -> bool:
        """Whether the broker has an answer that an earlier process sent."""
        return await _retained_message(address, entry.topic) == entry.text.encode()

    # Answers that an earlier connection did not deliver.
    await bridge.send_unsent(broker, has_arrived)
    if not broker.session_kept:  # then numbers of packets begin anew
        bridge.begin_session()
    commands = [f"{bridge.name}/{command}/#" for command in COMMANDS]
    await broker.subscribe([*topics, *commands])
    await bridge.announce(broker)
    # From here on no message is lost.
    bridge.log(f"connected to {address.host}:{address.port}")
    async for received in broker.messages():
        await bridge.answer(broker, received)
        broker.acknowledge(received)


async def _retained_message(address: Address, topic: str) -> bytes:
    """Return the message of a topic that a broker retains; empty if there is none."""
    async with Broker(address) as broker:
        await broker.subscribe([topic])
        try:
            message = await asyncio.wait_for(
                anext(broker.messages()), SECONDS_FOR_RETAINED
            )
        except asyncio.TimeoutError:
            return b""
        return bytes(message.payload)

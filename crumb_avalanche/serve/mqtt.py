"""Answer for the snapshots that cameras send to an MQTT broker, and be taught and corrected over it.

Messages come with QoS 1 in a persistent session, and are acknowledged once the answer
has arrived at the broker; until then a journal holds it. So a stop of the broker or of
this program loses no event, and none is answered twice.
"""

import asyncio
import hashlib
import json
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

try:
    import aiomqtt
except ImportError as error:
    raise ImportError('a broker needs aiomqtt: pip install -e ".[mqtt]"') from error

from crumb_avalanche.serve.shared import BusyError, SharedLearner

MOST_BYTES = 20_000_000  # of an image
MOST_EVENTS = 10_000  # of which the journal holds that they were answered
MOST_RECENT = 16  # images that can be corrected
SECONDS = 10.0  # to fetch an image
COMMANDS = ("teach", "correct", "forget", "undo")
TABLE = "CREATE TABLE IF NOT EXISTS answers (id TEXT PRIMARY KEY, topic TEXT, text TEXT, sent INT)"


class Bridge:
    """Takes messages of a broker one after the other, and answers each once.

    Args:
        shared: the learner.
        journal: file (SQLite) of the last answers, and of the one of which it is not
            known whether it arrived.
        name: what all topics of this learner begin with.
        images: folder or address of the images that events name by ``path``; ``{id}``
            stands for the event's id.
        log: takes a line for each message.
    """

    def __init__(
        self,
        shared: SharedLearner,
        journal: Path,
        name: str,
        images: str = "",
        log: Callable[[str], Any] = str,
    ):
        self.shared, self.name, self.images, self.log = shared, name, images, log
        self.journal = sqlite3.connect(journal, isolation_level=None)
        self.journal.execute("PRAGMA journal_mode=WAL")
        self.journal.execute(TABLE)
        self._recent: OrderedDict[str, tuple[bytes, Any]] = (
            OrderedDict()
        )  # images and boxes by event

    async def answer(self, client: Any, message: Any) -> None:
        """Answer a message, unless it was answered before."""
        topic, data = str(message.topic), bytes(message.payload or b"")
        command = (
            topic.removeprefix(f"{self.name}/").partition("/")[0]
            if topic.startswith(f"{self.name}/")
            else ""
        )
        event = _json(data) if data[:1] == b"{" else {}
        if isinstance(
            event.get("after"), dict
        ):  # of Frigate, which sends an event again when it changes
            event = event["after"]
            if not event.get("has_snapshot", True):
                return
        given, digest = str(event.get("id") or ""), hashlib.sha256(data).hexdigest()
        # The broker sends bytes again with their number, a camera with another one.
        key = (
            f"{command} {given}"
            if given
            else f"{topic} {message.retain or message.mid} {digest}"
        )
        found = self.journal.execute(
            "SELECT topic, text, sent FROM answers WHERE id = ?", (key,)
        ).fetchone()
        if found is None:
            name = given or digest[:12]
            try:
                if command in COMMANDS:
                    said = await self._command(command, topic, data, event, key)
                else:
                    said = await self._predict(name, data, event)
            except (
                BusyError
            ) as error:  # stopped during a change; the broker sends the message again
                raise asyncio.CancelledError from error
            except (
                OSError,
                ValueError,
            ) as error:  # an event that cannot be answered is named, with the reason
                said = {"error": str(error)}
            text = json.dumps({"id": name, "from": topic, **said})
            found = f"{self.name}/{'result' if command else 'answer'}", text, 0
            self.journal.execute(
                "INSERT INTO answers VALUES (?, ?, ?, ?)", (key, *found)
            )
            self.log(f"{topic} {found[1]}")
        if not found[2]:
            await client.publish(found[0], found[1], qos=1, retain=True)
            self.sent(key)
        if command:
            await self.announce(client)

    def sent(self, key: str) -> None:
        """Note that an answer arrived, and drop the oldest ones."""
        self.journal.execute(
            "UPDATE answers SET sent = 1, text = '' WHERE id = ?", (key,)
        )
        self.journal.execute(
            "DELETE FROM answers WHERE rowid <= (SELECT MAX(rowid) FROM answers) - ?",
            (MOST_EVENTS,),
        )

    async def _predict(
        self, name: str, data: bytes, event: dict[str, Any]
    ) -> dict[str, Any]:
        image, box = await self._image_and_box(data, event)
        self._recent.pop(name, None)  # the same image as before is the last one now
        self._recent[name] = image, box
        if len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)
        return (await self.shared.predict([(name, image)], box)).model_dump()

    async def _command(
        self, command: str, topic: str, data: bytes, event: dict[str, Any], key: str
    ) -> dict[str, Any]:
        label, text = (
            topic.removeprefix(f"{self.name}/{command}").lstrip("/"),
            data.decode(errors="replace").strip(),
        )
        if command == "forget":
            return (await self.shared.forget(label or text)).model_dump()
        if command == "undo":
            return (await self.shared.undo(int(text) if text else None)).model_dump()
        if command == "correct":
            which = str(event.get("id") or (text if label else ""))
            label = label or str(event.get("label") or text)
            if not self._recent or (which and which not in self._recent):
                raise ValueError(
                    f"the image of {which or 'the last answer'} is gone; teach it as {label}"
                )
            image, box = self._recent[which or next(reversed(self._recent))]
        else:
            image, box = await self._image_and_box(data, event)
        source = f"mqtt {hashlib.sha256(key.encode()).hexdigest()[:16]}"
        if any(
            lesson.source == source for lesson in self.shared.lessons()
        ):  # learned before a stop
            return {"version": self.shared.version}
        return (
            await self.shared.teach(
                label, [("the image", image)], source=source, box=box
            )
        ).model_dump()

    async def _image_and_box(
        self, data: bytes, event: dict[str, Any]
    ) -> tuple[bytes, Any]:
        return await asyncio.to_thread(self._image, data, event), event.get(
            "box"
        ) if "path" in event else None

    def _image(self, data: bytes, event: dict[str, Any]) -> bytes:
        """Return the bytes of an image: the message itself, or what an event names."""
        if not event:
            return data
        images, path = self.images, str(event.get("path") or "")
        if images.startswith(("http://", "https://")):
            address = images.replace("{id}", quote(str(event.get("id")), safe=""))
            with urlopen(
                address + ("" if "{id}" in images else quote(path)), timeout=SECONDS
            ) as answer:
                data = answer.read(MOST_BYTES + 1)
        elif images and path:
            folder = Path(images).resolve()
            file = (folder / path).resolve()
            if not file.is_relative_to(folder) or not file.is_file():
                raise ValueError(f"there is no file {path} in {images}")
            with file.open("rb") as opened:
                data = opened.read(MOST_BYTES + 1)
        else:
            raise ValueError(
                "the event holds no image; say with --images where those of events are"
            )
        if len(data) > MOST_BYTES:
            raise ValueError(f"the image has more than {MOST_BYTES:,} bytes")
        return data

    async def announce(self, client: Any) -> None:
        """Tell Home Assistant of a sensor with the last answer, and of a list of classes that corrects it."""
        name, node = self.name, self.name.replace("/", "_")
        value = "{{ 'error' if value_json.error is defined else value_json.label if value_json.known else 'unknown' }}"
        usual = {
            "device": {"identifiers": [node], "name": name},
            "availability_topic": f"{name}/status",
        }
        sensor = {
            "name": "seen",
            "state_topic": f"{name}/answer",
            "value_template": value,
        }
        options = [one.name for one in self.shared.classes().classes]
        select = {
            "name": "correct to",
            "command_topic": f"{name}/correct",
            "options": options,
            "qos": 1,
        }
        for kind, said in (
            ("sensor", sensor | {"json_attributes_topic": f"{name}/answer"}),
            ("select", select),
        ):
            text = json.dumps({**said, **usual, "unique_id": f"{node}_{kind}"})
            await client.publish(
                f"homeassistant/{kind}/{node}/config", text, qos=1, retain=True
            )


def _json(data: bytes) -> dict[str, Any]:
    try:
        return json.loads(data)
    except (RecursionError, ValueError):
        return {}


async def run(
    bridge: Bridge, topics: Sequence[str], host: str, port: int, **how: Any
) -> None:
    """Serve until cancelled; connect again whenever the broker was gone.

    Args:
        bridge, topics: what takes the messages, and the topics of snapshots and events.
        host, port, how: of the broker; ``username``, ``password``, ``tls_context`` of
            ``aiomqtt.Client``.

    Raises:
        ValueError: the broker cannot be reached at first, or refuses the user.
    """
    name, reached, status = bridge.name, False, f"{bridge.name}/status"
    while True:
        try:
            for key, topic, text in bridge.journal.execute(
                "SELECT id, topic, text FROM answers WHERE sent = 0"
            ).fetchall():
                async with aiomqtt.Client(host, port, **how) as other:
                    await other.subscribe(topic, qos=1)
                    try:  # the answer is retained: there if it arrived
                        last = await asyncio.wait_for(other.messages.__anext__(), 2)
                        bridge.sent(key) if bytes(
                            last.payload
                        ) == text.encode() else None
                    except asyncio.TimeoutError:
                        pass
            will = aiomqtt.Will(status, "offline", 1, True)
            client = aiomqtt.Client(
                host,
                port,
                identifier=f"crumb-{name}",
                clean_session=False,
                will=will,
                **how,
            )
            client._client.manual_ack_set(
                True
            )  # aiomqtt 2 has no setting for it, and would acknowledge at once
            async with client:
                reached = True
                await client.subscribe(
                    [
                        (topic, 1)
                        for topic in [*topics, *(f"{name}/{one}/#" for one in COMMANDS)]
                    ]
                )
                await client.publish(status, "online", qos=1, retain=True)
                await bridge.announce(client)
                bridge.log(
                    f"connected to {host}:{port}"
                )  # from here on no message is lost
                async for message in client.messages:
                    await bridge.answer(client, message)
                    client._client.ack(message.mid, message.qos)
        except aiomqtt.MqttError as error:
            if not reached:
                raise ValueError(
                    f"broker {host}:{port}: {error}; check --broker, --user and --ca"
                ) from error
            bridge.log(f"broker {host}:{port} is gone ({error}); trying again")
            await asyncio.sleep(1)

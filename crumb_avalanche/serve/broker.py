"""A connection to an MQTT broker for asyncio, acknowledged by hand.

paho's own client says what others hide: whether a message was delivered before, and
whether the broker kept the session. Its network runs in a thread.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

try:
    from paho.mqtt import client as paho
except ImportError as error:
    raise ImportError('a broker needs paho-mqtt: pip install -e ".[mqtt]"') from error

SECONDS = 10.0  # for what a broker confirms
# Delivered until it is acknowledged, and perhaps again.
AT_LEAST_ONCE = 1
MOST_WAITING = 32  # messages that the broker sends at most once


class BrokerError(OSError):
    """The broker cannot be reached, refuses a call, or is gone."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a broker is, and what it asks for.

    Attributes:
        host, port: of the broker.
        username, password: that it asks for; ``None`` if it asks for none.
        tls_context: how its certificate is checked; ``None`` without TLS.
    """

    host: str
    port: int
    username: str | None = None
    password: str | None = None
    tls_context: ssl.SSLContext | None = None


class Broker:
    """A connection to a broker, as an asynchronous context manager.

    Args:
        address: of the broker.
        identifier: of a session that the broker keeps while this program is away; empty
            for none.
        status_topic: topic of a retained ``online``, which becomes ``offline`` when the
            connection ends; empty for none.

    Attributes:
        session_kept: whether the broker kept the session of an earlier connection, so
            that packet numbers go on.

    Raises:
        BrokerError: by every method, when the broker is gone or does not confirm.
    """

    session_kept = False

    def __init__(self, address: Address, identifier: str = "", status_topic: str = ""):
        self._address = address
        self._status_topic = status_topic
        self._client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=identifier,
            clean_session=not identifier,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        if address.username is not None:
            self._client.username_pw_set(address.username, address.password)
        if address.tls_context is not None:
            self._client.tls_set_context(address.tls_context)
        if status_topic:
            self._client.will_set(status_topic, "offline", AT_LEAST_ONCE, retain=True)

    async def __aenter__(self) -> "Broker":
        loop = asyncio.get_running_loop()
        # Refusal of the connection, empty if the broker accepts it.
        self._connected: asyncio.Future[str] = loop.create_future()
        # Why the connection ended.
        self._lost: asyncio.Future[str] = loop.create_future()
        # Refusal of each call that waits, by number of its packet; empty if confirmed.
        self._refusals: dict[int, asyncio.Future[str]] = {}
        self._arrived: deque[paho.MQTTMessage] = deque()  # messages that wait
        # Set when a message arrives or the connection ends.
        self._has_news = asyncio.Event()
        self._forward_reports(loop)
        try:
            await asyncio.to_thread(
                self._client.connect, self._address.host, self._address.port
            )
        except (OSError, ValueError) as error:
            raise BrokerError(str(error)) from error
        self._client.loop_start()
        try:
            await self._wait_until_confirmed(self._connected)
            if self._status_topic:
                await self.publish(self._status_topic, "online")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._status_topic:  # a will is not sent when a client says goodbye
            self._client.publish(
                self._status_topic, "offline", AT_LEAST_ONCE, retain=True
            )
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)

    def _forward_reports(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let what paho reports in its own thread be done in the thread of the loop.

        The functions below get what paho reports but for its first two arguments, and
        resolve the futures that calls wait for: of the connection, of its loss and of
        each message that the broker confirms.

        Args:
            loop: of this connection.
        """

        def in_loop(function: Callable[..., None]) -> Callable[..., None]:
            """Return a function for paho that lets the loop call this one."""

            def call(client: object, userdata: object, *arguments: Any) -> None:
                loop.call_soon_threadsafe(function, *arguments)

            return call

        def on_connect(flags: Any, reason: Any, properties: object) -> None:
            self.session_kept = flags.session_present
            refusal = str(reason) if reason.is_failure else ""
            _resolve_once(self._connected, refusal)

        def on_disconnect(flags: object, reason: Any, properties: object) -> None:
            _resolve_once(self._lost, str(reason))
            self._has_news.set()  # ends the iteration over messages

        def on_publish(number: int, reason: Any, properties: object) -> None:
            self._confirm(number, [reason])

        def on_subscribe(number: int, reasons: Any, properties: object) -> None:
            self._confirm(number, reasons)

        self._client.on_connect = in_loop(on_connect)
        self._client.on_disconnect = in_loop(on_disconnect)
        self._client.on_publish = in_loop(on_publish)
        self._client.on_subscribe = in_loop(on_subscribe)
        self._client.on_message = in_loop(self._keep)

    def _keep(self, message: paho.MQTTMessage) -> None:
        """Keep a message until it is asked for.

        Of those that the broker sends at most once, the oldest goes where too many
        wait: a camera may publish faster than pictures are answered. The broker itself
        holds the others back.
        """
        at_most_once = [waiting for waiting in self._arrived if waiting.qos == 0]
        if message.qos == 0 and len(at_most_once) >= MOST_WAITING:
            self._arrived.remove(at_most_once[0])
        self._arrived.append(message)
        self._has_news.set()

    def _confirm(self, number: int, reasons: Iterable[Any]) -> None:
        """End the wait for a call, by the codes with which the broker answered it.

        Args:
            number: of the packet of the call.
            reasons: paho's codes, one for each topic.
        """
        refusals = [str(reason) for reason in reasons if reason.is_failure]
        if number in self._refusals:
            _resolve_once(self._refusals.pop(number), ", ".join(refusals))

    async def _wait_until_confirmed(self, refusal: "asyncio.Future[str]") -> None:
        """Wait until the broker answers a call.

        Args:
            refusal: gets why the broker refuses it; empty if it confirms.

        Raises:
            BrokerError: it refuses, is gone, or does not answer in time.
        """
        await asyncio.wait(
            {refusal, self._lost},
            timeout=SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if refusal.done():
            if refusal.result():
                raise BrokerError(refusal.result())
        elif self._lost.done():
            raise BrokerError(self._lost.result())
        else:
            raise BrokerError(f"it does not answer in {SECONDS:g} s")

    async def _finish_call(self, error: int, number: int | None) -> None:
        """Wait until the broker confirms a call that paho has begun.

        Args:
            error: paho's code of the call.
            number: of its packet.
        """
        if error != paho.MQTT_ERR_SUCCESS or number is None:
            raise BrokerError(paho.error_string(paho.MQTTErrorCode(error)))
        # The number is noted before its confirmation, which comes through the loop.
        refusal = asyncio.get_running_loop().create_future()
        self._refusals[number] = refusal
        await self._wait_until_confirmed(refusal)

    async def publish(
        self, topic: str, text: str, qos: int = AT_LEAST_ONCE, retain: bool = True
    ) -> None:
        """Publish a text on a topic; return when the broker has it."""
        call = self._client.publish(topic, text, qos, retain)
        await self._finish_call(call.rc, call.mid)

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Let the broker send the messages of topics."""
        error, number = self._client.subscribe(
            [(topic, AT_LEAST_ONCE) for topic in topics]
        )
        await self._finish_call(error, number)

    async def messages(self) -> AsyncIterator[paho.MQTTMessage]:
        """Yield the broker's messages as they arrive."""
        while True:
            while not self._arrived and not self._lost.done():
                self._has_news.clear()
                await self._has_news.wait()
            if self._lost.done():
                raise BrokerError(self._lost.result())
            yield self._arrived.popleft()

    def acknowledge(self, message: paho.MQTTMessage) -> None:
        """Let the broker forget a message; without it, it is delivered again."""
        self._client.ack(message.mid, message.qos)


def _resolve_once(future: "asyncio.Future[str]", text: str) -> None:
    """Give a future of a connection its text, unless it has one already."""
    if not future.done():
        future.set_result(text)

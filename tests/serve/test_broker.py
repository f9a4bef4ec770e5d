"""The connection to a broker, by its first packet; the rest is in test_mosquitto."""

import asyncio
import socket
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("paho.mqtt")

from crumb_avalanche.serve.broker import MOST_WAITING, Address, Broker, BrokerError

# Flags of the first packet, by MQTT 3.1.1.
HAS_WILL = 1 << 2
AT_LEAST_ONCE = 1 << 3
IS_RETAINED = 1 << 5


@pytest.fixture
def first_packet():
    """What a broker gets first, which closes the connection then."""

    def received(listener):
        client, _ = listener.accept()
        with client:
            return client.recv(1000)

    async def connect(port):
        async with Broker(Address(host="127.0.0.1", port=port), "", "door/status"):
            pytest.fail("it is connected without an answer")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, port = listener.getsockname()
        with ThreadPoolExecutor() as pool:
            packet = pool.submit(received, listener)
            with pytest.raises(BrokerError):
                asyncio.run(connect(port))
            return packet.result()


@pytest.fixture
def connected():
    """A function that returns what a broker yields of messages that arrived at once."""

    async def yielded(messages, count):
        broker = Broker(Address(host="127.0.0.1", port=1))
        broker._arrived = deque()
        broker._has_news = asyncio.Event()
        broker._lost = asyncio.get_running_loop().create_future()
        for message in messages:
            broker._keep(message)
        arrived = broker.messages()
        return [await anext(arrived) for _ in range(count)]

    return lambda *arguments: asyncio.run(yielded(*arguments))


def test_the_oldest_pictures_that_wait_are_dropped(connected):
    # Given more messages sent at most once than may wait, and one sent at least once
    pictures = [SimpleNamespace(qos=0, number=n) for n in range(MOST_WAITING + 3)]
    command = SimpleNamespace(qos=1, number=-1)
    # When they are read
    messages = connected([pictures[0], command, *pictures[1:]], MOST_WAITING + 1)
    # Then the command is there, and the last pictures
    numbers = [message.number for message in messages]
    assert numbers == [-1, *range(3, MOST_WAITING + 3)]


def test_that_it_is_gone_is_retained(first_packet):
    head, protocol, rest = first_packet.partition(b"\x00\x04MQTT\x04")
    assert len(head) == 2, "type and length"
    assert protocol
    for flag in (HAS_WILL, AT_LEAST_ONCE, IS_RETAINED):
        assert rest[0] & flag
    assert rest.endswith(b"\x00\x0bdoor/status\x00\x07offline")

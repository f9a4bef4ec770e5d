"""The connection to a broker, by its first packet; the rest is in test_mosquitto."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("paho.mqtt")

from crumb_avalanche.serve.broker import Address, Broker, BrokerError

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


def test_that_it_is_gone_is_retained(first_packet):
    head, protocol, rest = first_packet.partition(b"\x00\x04MQTT\x04")
    assert len(head) == 2, "type and length"
    assert protocol
    for flag in (HAS_WILL, AT_LEAST_ONCE, IS_RETAINED):
        assert rest[0] & flag
    assert rest.endswith(b"\x00\x0bdoor/status\x00\x07offline")

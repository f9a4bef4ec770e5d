"""SIGTERM ends a command's work where it waits."""

import asyncio
import os
import signal
import threading

import pytest

from crumb_avalanche.cli.serve import until_terminated


@pytest.fixture(autouse=True)
def handler():
    """Without its own handler for SIGTERM the work goes on to its end."""
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, handler)


def kill():
    os.kill(os.getpid(), signal.SIGTERM)


def test_work_that_waits_is_cancelled():
    ends = []

    async def work():
        threading.Timer(0.2, kill).start()  # when the loop waits
        # Wakes the loop if the signal does not; far later.
        asyncio.get_running_loop().call_later(30, ends.append, "no signal")
        try:
            await asyncio.sleep(60)
        finally:
            ends.append("cleanup")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(until_terminated(work()))
    assert ends == ["cleanup"]


def test_work_that_ends_by_itself():
    ends = []

    async def work():
        await asyncio.sleep(0)
        ends.append("work")

    asyncio.run(until_terminated(work()))
    assert ends == ["work"]


def test_an_error_of_the_work():
    async def work():
        raise ValueError("no broker")

    with pytest.raises(ValueError, match="no broker"):
        asyncio.run(until_terminated(work()))

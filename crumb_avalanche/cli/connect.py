"""``crumb connect``: a learner where the images already are."""

import asyncio
import signal
import ssl
from pathlib import Path

from crumb_avalanche.cli.serve import shared_learner
from crumb_avalanche.runs.command_settings import ConnectSettings


def main(settings: ConnectSettings) -> None:
    """Answer messages until interrupted; print each."""
    try:
        from crumb_avalanche.connect.mqtt import Bridge, run
    except ImportError as error:
        raise ImportError(f'a broker needs {error.name}: pip install -e ".[mqtt]"') from error
    if not settings.topic:
        raise ValueError("give --topic, such as cameras/+/snapshot or frigate/events")
    host, _, port = settings.broker.partition(":")
    if port and not port.isdecimal():
        raise ValueError(f"--broker is {settings.broker!r}; give HOST or HOST:PORT")
    if not settings.name or any(sign in settings.name for sign in "+#"):
        raise ValueError(f"--name is {settings.name!r}; give the beginning of a topic, without + and #")
    password = Path(settings.password_file).read_text(encoding="utf-8").strip() if settings.password_file else None
    tls = None
    if settings.ca is not None:
        try:
            tls = ssl.create_default_context(cafile=None if settings.ca == "system" else settings.ca)
        except OSError as error:
            raise ValueError(f"--ca {settings.ca} is no file of the PEM format ({error.strerror or error})") from error
    with shared_learner(settings) as shared:
        # An interrupt makes asyncio cancel its task; an exception of the signal would leave it pending.
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        journal = Path(f"{settings.model}.answers")
        bridge = Bridge(shared, journal, settings.name, settings.images or "", lambda line: print(line, flush=True))
        how = {"username": settings.user, "password": password, "tls_context": tls}
        number = int(port or (1883 if tls is None else 8883))
        asyncio.run(run(bridge, settings.topic.split(","), host, number, **how))

"""``crumb serve`` and ``crumb connect``: teach and ask a learner over a network.

In a browser or over HTTP, or over MQTT.
"""

import asyncio
import signal
import ssl
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from crumb_avalanche.cli.open_learner import open_or_make_learner
from crumb_avalanche.cli.settings import ConnectSettings, ServeSettings
from crumb_avalanche.learner.header import holds_weights, refuse_folder
from crumb_avalanche.serve.access import (
    check_certificate,
    own_certificate,
    print_qr_code,
    token_of,
)
from crumb_avalanche.serve.listening import LOOPBACK, listen, load_server, run
from crumb_avalanche.serve.shared import SharedLearner
from crumb_avalanche.system.folder_lock import locked_file
from crumb_avalanche.system.words import counted

if TYPE_CHECKING:
    from crumb_avalanche.serve.broker import Address

PORT = 1883
TLS_PORT = 8883
TERMINATED = 128 + signal.SIGTERM  # the exit code, as shells have it


def main(settings: ServeSettings) -> None:
    """Serve a learner over HTTP until interrupted; print the address."""
    load_server()  # raises if the extra is not installed
    from crumb_avalanche.serve.server import application  # which needs the extra

    check_certificate_settings(settings)  # raises for files that cannot be used
    is_reachable = settings.host not in LOOPBACK  # by other devices
    secure = is_reachable or settings.certificate is not None
    listener, origins = listen(settings.host, settings.port, secure)
    path = Path(settings.model)
    with listener, shared_learner(settings, pictures=True) as shared:
        token = token_of(path)  # that requests must have; kept beside the file
        certificate = settings.certificate
        if secure and certificate is None:
            certificate = own_certificate(path, settings.host)
        classes = counted(len(shared.learner.classes), "class")
        print(f"{path}: {classes}. Every change is saved in it.")
        print_address(f"{origins[0]}/?token={token}", settings, is_reachable)
        print(f"Programs: {origins[0]}/openapi.json, header X-Crumb-Token: {token}")
        print("Press Ctrl+C to stop.", flush=True)
        # By default SIGTERM would skip what follows the server.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
        app = application(shared, token, origins)
        run(app, listener, certificate, settings.key)


def check_certificate_settings(settings: ServeSettings) -> None:
    """Raise ValueError if certificate and key are not both given, or cannot be used."""
    if (settings.certificate is None) != (settings.key is None):
        raise ValueError(
            "--certificate and --key go together: both are files of the PEM format"
        )
    if settings.certificate is not None:
        check_certificate(settings.certificate, settings.key)


def print_address(address: str, settings: ServeSettings, is_reachable: bool) -> None:
    """Print the address of the page, and as a QR code if other devices reach it."""
    print(f"Open {address}")
    if not is_reachable:
        return
    print_qr_code(address)
    warning = ""
    if settings.certificate is None:
        warning = (
            "Its browser does not know this computer's certificate and warns once: "
            "choose to go on."
        )
    print(f"Scan it with a phone in the same network. {warning}")


@contextmanager
def shared_learner(
    settings: ConnectSettings | ServeSettings, pictures: bool
) -> Iterator[SharedLearner]:
    """Yield a learner that several ask and change, in a ``with`` block.

    Its file is locked meanwhile, and made if it is absent.

    Args:
        settings: ``model`` is the file; others are for a new learner.
        pictures: whether the file keeps a picture of each lesson.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    path = Path(settings.model)
    refuse_folder(path)
    with locked_file(path):
        learner = open_or_make_learner(settings, path)
        learner.use_runtime(settings.runtime)
        if not path.exists():
            learner.save(path, locked=True)  # by this block
        weights = holds_weights(path)
        if settings.strict is not None:  # which the file keeps
            learner.save(path, weights=weights, pictures=True, locked=True)
        shared = SharedLearner(learner, path, weights=weights, pictures=pictures)
        try:
            yield shared
        finally:
            shared.close()  # before the file's lock is released


def connect(settings: ConnectSettings) -> None:
    """Answer the messages of an MQTT broker until interrupted; print each."""
    from crumb_avalanche.serve import mqtt  # which needs the extra

    topics = topics_of(settings.topic)
    if not settings.name or any(sign in settings.name for sign in "+#"):
        raise ValueError(
            f"--name is {settings.name!r}; give the beginning of a topic, without + "
            "and #"
        )
    address = address_of(settings)
    with shared_learner(settings, pictures=False) as shared:
        bridge = mqtt.Bridge(
            shared,
            journal=Path(f"{settings.model}.answers"),
            name=settings.name,
            images=settings.images or "",
            log=lambda line: print(line, flush=True),
        )
        try:
            asyncio.run(until_terminated(mqtt.run(bridge, topics, address)))
        except asyncio.CancelledError:
            sys.exit(TERMINATED)


def topics_of(text: str) -> list[str]:
    """Return the topics of ``--topic``, without the white space around them.

    Args:
        text: topics with commas between them.

    Raises:
        ValueError: a topic is empty, or all are.
    """
    topics = [topic.strip() for topic in text.split(",")]
    if not any(topics):
        raise ValueError("give --topic, such as cameras/+/snapshot or frigate/events")
    if not all(topics):
        raise ValueError(
            f"--topic is {text!r}, of which a topic is empty; give topics with one "
            "comma between two, such as cameras/+/snapshot,frigate/events"
        )
    return topics


def address_of(settings: ConnectSettings) -> "Address":
    """Return where the MQTT broker is, with user, password and TLS if it asks for them.

    Args:
        settings: ``broker`` is HOST or HOST:PORT, ``password_file`` and ``ca`` are
            files.

    Raises:
        ValueError: a setting cannot be used.
        OSError: the file of the password cannot be read.
    """
    from crumb_avalanche.serve.broker import Address

    host, _, port = settings.broker.partition(":")
    if port and not port.isdecimal():
        raise ValueError(f"--broker is {settings.broker!r}; give HOST or HOST:PORT")
    password = None
    if settings.password_file:
        password = Path(settings.password_file).read_text(encoding="utf-8").strip()
    context = None if settings.ca is None else tls_context(settings.ca)
    usual_port = PORT if context is None else TLS_PORT
    return Address(
        host=host,
        port=int(port or usual_port),
        username=settings.user,
        password=password,
        tls_context=context,
    )


def tls_context(authority: str) -> ssl.SSLContext:
    """Return how the certificate of an MQTT broker is checked.

    Args:
        authority: a PEM file of the authority, or ``system`` for those of the system.
    """
    if authority == "system":
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"--ca {authority} is no file of the PEM format ({reason})"
        ) from error


async def until_terminated(work: Coroutine[Any, Any, None]) -> None:
    """Serve a broker until SIGTERM cancels it, as an interrupt does.

    A program in the background may ignore interrupts, and an exception would leave the
    work undone where it is.
    """
    task = asyncio.ensure_future(work)

    def cancel(*_: object) -> None:
        task.get_loop().call_soon_threadsafe(task.cancel)

    signal.signal(signal.SIGTERM, cancel)
    await task

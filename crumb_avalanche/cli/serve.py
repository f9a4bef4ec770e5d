"""``crumb serve`` and ``crumb connect``: teach and ask a learner in a browser, over HTTP, or over MQTT."""

import asyncio
import signal
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from crumb_avalanche.cli.settings import ConnectSettings, ServeSettings
from crumb_avalanche.cli.teach import opened
from crumb_avalanche.learner.file import holds_weights, refuse_folder
from crumb_avalanche.serve.access import (
    check_certificate,
    own_certificate,
    print_qr_code,
    token_of,
)
from crumb_avalanche.serve.listening import LOOPBACK, listen, load_server, run
from crumb_avalanche.serve.shared import SharedLearner
from crumb_avalanche.system.folder_lock import locked_file
from crumb_avalanche.system.progress import counted


def main(settings: ServeSettings) -> None:
    """Serve until interrupted; print the address."""
    load_server()
    from crumb_avalanche.serve.server import application  # which needs the extra

    certificate, key = settings.certificate, settings.key
    if (certificate is None) != (key is None):
        raise ValueError(
            "--certificate and --key go together: both are files of the PEM format"
        )
    if certificate is not None:
        check_certificate(certificate, key)
    outside = settings.host not in LOOPBACK
    port, origins = listen(
        settings.host, settings.port, outside or certificate is not None
    )
    path = Path(settings.model)
    with port, shared_learner(settings) as shared:
        token = token_of(path)
        made = outside and certificate is None
        certificate = own_certificate(path, settings.host) if made else certificate
        print(
            f"{path}: {counted(len(shared.learner.classes), 'class')}. Every change is saved in it."
        )
        print(f"Open {origins[0]}/?token={token}")
        if outside:
            print_qr_code(f"{origins[0]}/?token={token}")
            print("Scan it with a phone in the same network.", end=" ")
            print(
                "Its browser does not know this computer's certificate and warns once: choose to go on."
                * made
            )
        print(f"Programs: {origins[0]}/openapi.json, header X-Crumb-Token: {token}")
        print("Press Ctrl+C to stop.", flush=True)
        signal.signal(
            signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
        )  # by default it would skip the rest
        run(application(shared, token, origins), port, certificate, key)


@contextmanager
def shared_learner(
    settings: ConnectSettings | ServeSettings,
) -> Iterator[SharedLearner]:
    """Hold a learner that several ask and change, and lock its file, which is made if absent."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    path = Path(settings.model)
    refuse_folder(path)
    with locked_file(path):
        learner = opened(settings, path)
        learner.use_runtime(settings.runtime)
        if not path.exists():
            learner.save(path, locked=True)
        shared = SharedLearner(learner, path, weights=holds_weights(path))
        try:
            yield shared
        finally:
            shared.close()  # before the file's lock is released


def connect(settings: ConnectSettings) -> None:
    """Answer messages until interrupted; print each."""
    from crumb_avalanche.serve.mqtt import Bridge  # which needs the extra
    from crumb_avalanche.serve.mqtt import run as answer

    if not settings.topic:
        raise ValueError("give --topic, such as cameras/+/snapshot or frigate/events")
    host, _, port = settings.broker.partition(":")
    if port and not port.isdecimal():
        raise ValueError(f"--broker is {settings.broker!r}; give HOST or HOST:PORT")
    if not settings.name or any(sign in settings.name for sign in "+#"):
        raise ValueError(
            f"--name is {settings.name!r}; give the beginning of a topic, without + and #"
        )
    password = (
        Path(settings.password_file).read_text(encoding="utf-8").strip()
        if settings.password_file
        else None
    )
    tls = None
    if settings.ca is not None:
        try:
            tls = ssl.create_default_context(
                cafile=None if settings.ca == "system" else settings.ca
            )
        except OSError as error:
            raise ValueError(
                f"--ca {settings.ca} is no file of the PEM format ({error.strerror or error})"
            ) from error
    with shared_learner(settings) as shared:
        journal = Path(f"{settings.model}.answers")
        bridge = Bridge(
            shared,
            journal,
            settings.name,
            settings.images or "",
            lambda line: print(line, flush=True),
        )
        how = {"username": settings.user, "password": password, "tls_context": tls}
        number = int(port or (1883 if tls is None else 8883))

        async def answering() -> None:
            task = asyncio.ensure_future(
                answer(bridge, settings.topic.split(","), host, number, **how)
            )
            # Cancel as an interrupt does, which a background program may ignore; an
            # exception would leave the task.
            signal.signal(
                signal.SIGTERM,
                lambda *_: task.get_loop().call_soon_threadsafe(task.cancel),
            )
            await task

        try:
            asyncio.run(answering())
        except asyncio.CancelledError:
            sys.exit(128 + signal.SIGTERM)

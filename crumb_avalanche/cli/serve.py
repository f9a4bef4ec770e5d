"""``crumb serve``: teach and ask a learner in a browser, or from other programs."""

import secrets
import signal
import ssl
import sys
from pathlib import Path

import torch

from crumb_avalanche.cli.teach import opened, start_runtime
from crumb_avalanche.learner.file import holds_weights, refuse_folder
from crumb_avalanche.learner.listening import listen, load_server, run
from crumb_avalanche.learner.shared import SharedLearner
from crumb_avalanche.runs.command_settings import ServeSettings
from crumb_avalanche.system.counted import counted
from crumb_avalanche.system.folder_lock import locked_file


def main(settings: ServeSettings) -> None:
    """Serve until interrupted; print the address."""
    load_server()
    from crumb_avalanche.learner.server import application  # which needs the extra

    certificate, key = settings.certificate, settings.key
    if (certificate is None) != (key is None):
        raise ValueError("--certificate and --key go together: both are files of the PEM format")
    if certificate is not None:
        check_certificate(certificate, key)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    path = Path(settings.model)
    refuse_folder(path)
    port, origins = listen(settings.host, settings.port, certificate is not None)
    with port, locked_file(path):
        learner = opened(settings, path)
        start_runtime(learner, settings.runtime)
        if not path.exists():
            learner.save(path)
        shared = SharedLearner(learner, path, weights=holds_weights(path))
        token = secrets.token_urlsafe(16)
        print(f"{path}: {counted(len(learner.classes), 'class')}. Every change is saved in it.")
        print(f"Open {origins[0]}/?token={token}")
        print(f"Programs: {origins[0]}/openapi.json, header X-Crumb-Token: {token}")
        print("Press Ctrl+C to stop.", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by default it would skip the rest
        try:
            run(application(shared, token, origins), port, certificate, key)
        finally:
            shared.close()  # before the file's lock is released


def check_certificate(certificate: str, key: str | None) -> None:
    """Raise ValueError if a certificate and its key cannot be used."""
    for file in (certificate, key):
        if file is not None and not Path(file).is_file():
            raise ValueError(f"there is no file {file}; --certificate and --key are files of the PEM format")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:
        raise ValueError(
            f"certificate {certificate} and key {key} cannot be used ({error}); give files of the PEM format that "
            "belong together, the key without a password"
        ) from error

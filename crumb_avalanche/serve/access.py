"""How devices reach a served learner: token, certificate, and address as a QR code."""

import datetime
import ipaddress
import os
import re
import secrets
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write

if TYPE_CHECKING:
    from cryptography import x509

DAYS = 397  # of a certificate that is made here; browsers take no longer ones
DAYS_LEFT = 30  # or more, of one that is used
_TOKEN = re.compile(r"[\w-]{22}\n")


def token_of(path: Path) -> str:
    """Return the token of a learner's file.

    It is kept in ``NAME.token`` beside the file, which its owner alone can read. A new
    one is made if there is none, or if others could read it.

    Args:
        path: of the learner's file.

    Raises:
        OSError: the file of the token cannot be read or written.
    """
    token_file = path.with_name(f"{path.name}.token")
    if _is_private(token_file):
        text = token_file.read_text(encoding="utf-8", errors="replace")
        if _TOKEN.fullmatch(text):
            return text.strip()
    token = secrets.token_urlsafe(16)
    _write_private(token_file, f"{token}\n".encode())
    return token


def own_certificate(path: Path, host: str) -> str:
    """Return the PEM file of a key and a certificate that this computer made itself.

    It is kept in ``NAME.pem`` beside a learner's file, so that a browser that was made
    to trust it does so after a restart. A new one is made for another host, or 30 days
    before the end of the old one.

    Args:
        path: of the learner's file.
        host: name or address that the certificate is for.

    Raises:
        ImportError: cryptography is not installed.
        OSError: it cannot be read or written.
    """
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise missing_extra(error) from error
    certificate_file = path.with_name(f"{path.name}.pem")
    is_usable = _is_private(certificate_file) and _is_certificate_of(
        certificate_file, host
    )
    if not is_usable:
        _write_private(certificate_file, _new_certificate(host))
    return str(certificate_file)


def _names_of(host: str) -> "x509.SubjectAlternativeName":
    """Return the names of a certificate for a host: its address or its name."""
    from cryptography import x509

    try:
        return x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    except ValueError:
        return x509.SubjectAlternativeName([x509.DNSName(host)])


def _is_certificate_of(file: Path, host: str) -> bool:
    """Whether a PEM file holds a certificate for a host that lasts another month."""
    from cryptography import x509

    try:
        check_certificate(str(file), None)  # raises if it cannot be used
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    now = datetime.datetime.now(datetime.timezone.utc)
    time_left = certificate.not_valid_after_utc - now
    return names == _names_of(host) and time_left > datetime.timedelta(days=DAYS_LEFT)


def _new_certificate(host: str) -> bytes:
    """Return a new key and a certificate for a host, one behind the other, as PEM.

    The certificate is signed with the key itself, and a browser has to be made to trust
    it.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "crumb serve")])
    now = datetime.datetime.now(datetime.timezone.utc)
    # It proves who a server is, and signs no other certificate.
    constraints = x509.BasicConstraints(ca=False, path_length=None)
    usage = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])
    builder = (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(_names_of(host), critical=False)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=False)
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    certificate = builder.sign(key, hashes.SHA256())
    return key_pem + certificate.public_bytes(serialization.Encoding.PEM)


def check_certificate(certificate: str, key: str | None) -> None:
    """Raise ValueError if a certificate and its key cannot be used.

    Args:
        certificate: PEM file.
        key: PEM file of its key; ``None`` if both are in the same file.
    """
    for file in (certificate, key):
        if file is not None and not Path(file).is_file():
            raise ValueError(
                f"there is no file {file}; --certificate and --key are files of the "
                "PEM format"
            )
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            certificate, key
        )
    except OSError as error:
        raise ValueError(
            f"certificate {certificate} and key {key} cannot be used ({error}); give "
            "files of the PEM format that belong together, the key without a password"
        ) from error


def print_qr_code(address: str) -> None:
    """Print an address as a QR code, with half blocks where the output has them.

    Raises:
        ImportError: segno is not installed.
    """
    try:
        import segno
    except ImportError as error:
        raise missing_extra(error) from error
    has_half_blocks = (sys.stdout.encoding or "").lower().startswith("utf")
    code = segno.make_qr(address, error="l")
    code.terminal(sys.stdout, border=2, compact=has_half_blocks)


def missing_extra(error: ImportError) -> ImportError:
    """Return the error that says how to install a module of the extra ``serve``.

    ``error`` is Python's, which names the module.
    """
    return ImportError(f'the server needs {error.name}: pip install -e ".[serve]"')


def _is_private(file: Path) -> bool:
    """Whether the file of a token or a key exists and its owner alone can read it.

    Other systems than POSIX do not tell; there, every file counts as private.
    """
    return file.is_file() and (os.name != "posix" or not file.stat().st_mode & 0o077)


def _write_private(file: Path, content: bytes) -> None:
    """Write the file of a token or a key, which its owner alone can read.

    A link is replaced, not followed, as others may have made it.
    """
    if file.is_symlink():
        file.unlink()
    with atomic_write(file, permissions=0o600) as unfinished:
        unfinished.write(content)

"""
How is a receiver recognized? By a certificate of its own, which the plan carries to every process that talks to it.

Made in the planner's worker, loaded in the receiver. Invariant: each receiver has a key of its own, which no other
process is told.
"""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass, field
from datetime import datetime, timezone
from tempfile import NamedTemporaryFile

from pgonce.offsets_store.errors import bad_option

_PASSWORD_BYTES = 32
# Valid at any time: callers know this very certificate, it ends with its receiver, and the clocks of two hosts differ.
_ALWAYS = datetime(2000, 1, 1, tzinfo=timezone.utc), datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Identity:
    """A certificate (DER), and its private key (PEM), which ``password`` opens."""

    certificate: bytes
    key: bytes = field(repr=False)
    password: bytes = field(repr=False)


def new_identity() -> Identity:
    """
    Make a key, and a certificate that is signed with it.

    :raises ConfigurationError: NO_RECEIVER_TLS, if the library that makes them is missing.
    """
    try:
        # Python's own ssl module reads certificates, but cannot make them.
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
    except ImportError:
        raise bad_option(
            "NO_RECEIVER_TLS",
            "receiver is set, but the Python package cryptography is not installed on the driver. It makes the "
            "certificate by which tasks recognize the receiver.",
            "Install it there (pip install 'pgonce[receiver]'), or leave receiver out; executors do not need it.",
        ) from None
    # A curve that hosts in FIPS mode support, too.
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pgonce receiver")])
    since, until = _ALWAYS
    certificate = (
        x509.CertificateBuilder()
        .issuer_name(name)
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    password = secrets.token_bytes(_PASSWORD_BYTES)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))
    return Identity(certificate.public_bytes(Encoding.DER), locked, password)


def context_of(identity: Identity) -> ssl.SSLContext:
    """How a receiver answers: with this certificate, and only with TLS 1.3."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Nobody resumes a session, and a caller that hangs up without having read a ticket resets the line, so that its
    # last message is lost.
    context.num_tickets = 0
    # Python's ssl loads keys only from files. The password that opens this one is not in a file.
    with NamedTemporaryFile(prefix="pgonce-") as file:
        file.write(ssl.DER_cert_to_PEM_cert(identity.certificate).encode() + identity.key)
        file.flush()
        context.load_cert_chain(file.name, password=identity.password)
    return context


def context_for(certificate: bytes) -> ssl.SSLContext:
    """For a caller, which talks only to the process that has the key of this very certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The only certificate that is trusted names no host, because callers know the whole certificate.
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context

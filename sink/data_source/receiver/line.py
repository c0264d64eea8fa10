"""
The line between a receiver and its callers, and the certificate that they recognize it by.

Runs at both ends; the certificate is made in the planner's worker. Invariant: each receiver has a key of its own, which
no other process is told. A line over a network uses TLS 1.3 from its first byte; one that stays on the host leads to a
process of the same user. The caller says nothing until it has seen the certificate that the plan names, or that user,
and the receiver listens only to callers that know the secret. Only rows and JSON are sent, never objects, and each
is preceded by its length: a line that ends too early is broken.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import ssl
import struct
from dataclasses import dataclass, field
from datetime import datetime, timezone
from tempfile import NamedTemporaryFile
from typing import Any, cast

from ...positions import EncodedRows

# The receiver reads at once what arrives, and while it commits it says so every second. If it is silent for this long,
# it is frozen, or its host is gone; or its host is so busy that it had better be left alone.
SILENCE_SECONDS = 20
SECRET_BYTES = 32

# What breaks a line. That includes errors of TLS, and a wrong certificate or secret: only a stranger has one of those.
BROKEN = (OSError, EOFError)
# Those of them that mean that no answer came in time, while connecting or afterwards.
SILENT = (TimeoutError,)

_LENGTH = struct.Struct("!Q")
# Of rows: the bytes of the body, the bytes of the positions, and how many rows.
_ROWS = struct.Struct("!QQQ")
# What a receiver says first on a line without TLS.
_GREETING = b"."
# A process's id, user and group, as the kernel tells its other side.
_CREDENTIALS = struct.Struct("3i")
# A host that vanished silently is noticed after a minute, whether something was sent to it (TCP_USER_TIMEOUT, in
# milliseconds: keepalives wait while sent data is not acknowledged) or not.
_NOTICED = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}

_PASSWORD_BYTES = 32
# Valid at any time: callers know only this certificate, it ends with its receiver, and the clocks of two hosts differ.
_ALWAYS = datetime(2000, 1, 1, tzinfo=timezone.utc), datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc)


class OtherUserError(OSError):
    """The process at the other end of a Unix socket is another user's."""


class Line:
    """
    One connection: messages as JSON, and encoded rows as they are.

    :param connected: belongs to this line from now on, which closes it even if the handshake fails. It is a socket of
        TCP, or one of this host.
    :param context: for TCP.
    :param patience: seconds that any wait for the other side may take; 0 means for ever.
    :raises OtherUserError: on this host.
    :raises OSError: if the other side does not present what ``context`` asks for.
    """

    def __init__(
        self, connected: socket.socket, context: ssl.SSLContext | None, patience: float, *, dialled: bool
    ) -> None:
        try:
            connected.settimeout(patience)
            if connected.family == socket.AF_UNIX:
                self._socket = _met(connected, dialled=dialled)
            else:
                self._socket = _encrypted(connected, context, dialled=dialled)
        except BaseException:
            connected.close()
            raise
        self.be_patient(patience)

    def be_patient(self, seconds: float) -> None:
        """Change how long a wait may take."""
        self._socket.settimeout(seconds or None)

    def show(self, secret: bytes) -> None:
        """Show the secret to the other side, which has already shown its certificate."""
        self._socket.sendall(secret)

    def refuse_stranger(self, secret: bytes) -> None:
        """
        Refuse a caller that does not begin with the secret.

        :raises OSError: for such a caller.
        """
        # The secret is sent in one piece and arrives in one, so there is only one wait: a stranger cannot draw it out.
        if not hmac.compare_digest(self._socket.recv(SECRET_BYTES), secret):
            raise OSError("the caller does not know the secret")

    def say(self, **message: Any) -> None:
        """Send a message."""
        said = json.dumps(message).encode()
        self._send(_LENGTH.pack(len(said)) + said)

    def hear(self) -> dict[str, Any]:
        """Wait for a message."""
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        heard: dict[str, Any] = json.loads(self._exactly(size))
        return heard

    def send_rows(self, rows: EncodedRows) -> None:
        """Send these rows; from a task, an empty body means that no more come, and how many there were."""
        self._send(_ROWS.pack(len(rows.body), len(rows.positions), rows.count))
        self._send(rows.body)
        self._send(rows.positions)

    def next_rows(self) -> EncodedRows:
        """Wait for rows."""
        body_size, positions_size, count = _ROWS.unpack(self._exactly(_ROWS.size))
        return EncodedRows(self._exactly(body_size), count, self._exactly(positions_size))

    def _send(self, said: bytes) -> None:
        # Not by sendall: without TLS it allows the time of one wait for all of a large body.
        left = memoryview(said)
        while left:
            left = left[self._socket.send(left) :]

    def _exactly(self, size: int) -> bytes:
        body = bytearray(size)
        missing = memoryview(body)
        while missing:
            count = self._socket.recv_into(missing)
            if count == 0:
                raise EOFError("the other side hung up")
            missing = missing[count:]
        # Not turned into bytes: COPY, files and json read it as it is, and a copy would cost as much as receiving it.
        return cast("bytes", body)

    def close(self) -> None:
        """End it."""
        self._socket.close()


def _encrypted(connected: socket.socket, context: ssl.SSLContext | None, *, dialled: bool) -> socket.socket:
    if context is None:
        raise OSError("a line over a network needs a certificate")
    # A message does not wait until the one before is acknowledged, which would take 40 ms, twice a task.
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _NOTICED.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    # There is one time limit for the whole handshake, so that a caller cannot draw it out byte by byte.
    return context.wrap_socket(connected, server_side=not dialled, suppress_ragged_eofs=False)


def _met(connected: socket.socket, *, dialled: bool) -> socket.socket:
    """
    Do on a socket of this host what a handshake does on a network: find out that the other side is there, and who.

    :raises OtherUserError: if it is another user's.
    :raises OSError: if it does not answer.
    """
    # Linux has it, and only there are receivers on Unix sockets.
    other = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(other)
    if user != os.geteuid():
        raise OtherUserError(f"the process at the other end of the line is of user {user}")
    if not dialled:
        connected.sendall(_GREETING)
    elif not connected.recv(len(_GREETING)):
        raise ConnectionError("the other side hung up")
    return connected


@dataclass(frozen=True)
class Identity:
    """A certificate (DER), and its private key (PEM), which ``password`` opens."""

    certificate: bytes
    key: bytes = field(repr=False)
    password: bytes = field(repr=False)


def new_identity() -> Identity:
    """Make a key, and a certificate that is signed with it."""
    # Python's own ssl module reads certificates, but cannot make them.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    # A curve that hosts in FIPS mode also support.
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
    # No caller resumes a session, and one that hangs up without having read a ticket resets the line, so that its
    # last message is lost.
    context.num_tickets = 0
    # Python's ssl loads keys only from files. The password that opens this one is not in a file.
    with NamedTemporaryFile(prefix="pgonce-") as file:
        file.write(ssl.DER_cert_to_PEM_cert(identity.certificate).encode() + identity.key)
        file.flush()
        context.load_cert_chain(file.name, password=identity.password)
    return context


def context_for(certificate: bytes) -> ssl.SSLContext:
    """For a caller, which talks only to the process that has the key of this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The only certificate that is trusted names no host, because callers know the whole certificate.
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context
